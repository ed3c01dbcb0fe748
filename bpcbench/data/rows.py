"""Rows of images, chosen without reading them: those of a memory map stay on disk until they are asked for."""

from __future__ import annotations

import mmap
from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from bpcbench.records import Array


def chosen(images: Array, rows: Array) -> Array:
    """Return `images[rows]`: an array or, where `images` is a memory map, a `Rows` of it, which reads nothing yet."""
    source: Any = images
    if isinstance(source, Rows):
        return cast(Array, Rows(source.base, source.rows[rows]))
    return cast(Array, Rows(images, rows)) if _mapped(images) else images[rows]


def _mapped(images: Array) -> bool:
    base: Any = images
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)


class Rows(NDArrayOperatorsMixin):
    """Rows of an array that read like an array of their own. Indexing returns arrays, with what was asked for only.

    Everything else an array can do works too, on a copy of all rows.
    """

    def __init__(self, base: Array, rows: Array) -> None:
        self.base, self.rows = base, np.arange(len(base))[rows]
        self.dtype, self.shape = base.dtype, (len(self.rows), *base.shape[1:])

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """The bytes of all rows, once they are read."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"Rows({len(self)} of {len(self.base)}, {self.dtype}, {self.shape[1:]})"

    def __getitem__(self, index: Any) -> Any:
        first, *rest = index if isinstance(index, tuple) else (index,)
        if not _selects(first) or not all(isinstance(one, int | slice) for one in rest):
            return np.asarray(self)[index]
        found = np.asarray(self.base[self.rows[first]])
        # An index that removes the first axis leaves none to pass over.
        return found[tuple(rest) if np.ndim(self.rows[first]) == 0 else (slice(None), *rest)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("rows of a memory map cannot be had without a copy")
        return np.asarray(self.base[self.rows], dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = [np.asarray(one) if isinstance(one, Rows) else one for one in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def __getattr__(self, name: str) -> Any:
        # Not the protocols by which others ask for memory: it would be gone before they read it.
        if name.startswith("_") or name in ("base", "rows", "dtype", "shape"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)


def _selects(index: Any) -> bool:
    """Return whether an index is one along the first axis: a number, a slice, or numbers or a mask in one axis."""
    if isinstance(index, int | np.integer | slice):
        return not isinstance(index, bool)
    return isinstance(index, list | np.ndarray) and np.ndim(index) == 1
