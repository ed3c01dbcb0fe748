"""CIFAR-10 in its "python version", read without trusting its pickles."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bpcbench.errors import MissingData, UserError
from bpcbench.records import Array, Facts
from bpcbench_data.converted import Chunk, ConvertedDataset

_FOLDER = "cifar-10-batches-py"
_META = "batches.meta"
_FILES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
_PER_FILE = 10_000
_SHAPE = (3, 32, 32)
_CLASSES = 10


@dataclass(frozen=True)
class CIFAR10(ConvertedDataset):
    """50,000 + 10,000 colour 32x32 images of 10 classes of things and animals (Krizhevsky, 2009)."""

    name: ClassVar[str] = "cifar10"
    licence: ClassVar[str] = "none declared: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"

    def facts(self, root: Path) -> Facts:
        """Return the facts from `batches.meta`, a file of 158 bytes; other than official sizes are a subset."""
        self.sources(root, "train")
        path = root / _FOLDER / _META
        meta = read_pickle(path)
        count, names = meta.get("num_cases_per_batch"), meta.get("label_names")
        if not isinstance(count, int) or not 0 < count <= _PER_FILE:
            raise UserError(f"{path} says that there are {count!r} images per file")
        if not isinstance(names, list) or len(names) != _CLASSES:
            raise UserError(f"{path} must name {_CLASSES} classes, and has {names!r}")
        sizes = {split: count * len(files) for split, files in _FILES.items()}
        notes = () if count == _PER_FILE else ("subset",)
        return Facts(_SHAPE, _CLASSES, sizes, tuple(_text(name) for name in names), notes)

    def sources(self, root: Path, split: str) -> Sequence[Path]:
        """Return the files of a split; MissingData names all files that are absent."""
        folder = root / _FOLDER
        names = [_META, *(name for files in _FILES.values() for name in files)]
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise MissingData(
                f"data set {self.name} needs {', '.join(missing)}, looked for in {folder}. Unpack "
                f"cifar-10-python.tar.gz in {root}, as torchvision.datasets.CIFAR10 does, or let BPCBENCH_DATA (or "
                f"--data) name the folder that holds {_FOLDER}"
            )
        return [folder / name for name in _FILES[split]]

    def chunks(self, root: Path, split: str) -> Iterator[Chunk]:
        """Yield the content of one file after the other."""
        for path in self.sources(root, split):
            content = read_pickle(path)
            images, labels = content.get("data"), content.get("labels")
            pixels = math.prod(_SHAPE)
            if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != pixels:
                raise UserError(f"{path}: `data` is not an array of rows of {pixels} bytes")
            if not isinstance(labels, list) or not all(type(one) is int and 0 <= one < _CLASSES for one in labels):
                raise UserError(f"{path}: `labels` is not a list of numbers below {_CLASSES}")
            yield images.reshape(-1, *_SHAPE), np.asarray(labels, np.int64)


def read_pickle(path: Path) -> dict[str, Any]:
    """Return a pickled dict of numbers, strings, lists and byte arrays; UserError for everything else.

    No code is imported or called for the file: what it may name are three classes of NumPy, and even these are replaced
    by `_Bytes` and `_Type`, which understand nothing but an array of unsigned bytes.
    """
    try:
        content = _Restricted(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except Exception as error:  # a damaged pickle may fail in any way
        raise UserError(f"{path} cannot be read: {error}. Replace it by a fresh copy.") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}, not a dict")
    return {_text(key): value.array if isinstance(value, _Bytes) else value for key, value in content.items()}


def _text(word: object) -> str:
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)


class _Type:
    """Stands for `numpy.dtype`: unsigned bytes, whatever else a file says makes it fail."""

    def __init__(self, code: object, *flags: object) -> None:
        if code not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"it holds an array of type {code!r}, not of unsigned bytes")

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and alignment, which bytes do not have."""


class _Bytes:
    """Stands for `numpy.ndarray` and the function that makes an empty one, to be filled by its state."""

    array: Array | None = None

    def __init__(self, *arguments: object) -> None:
        """Ignore what to make: there is one kind."""

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Type, bool, bytes]) -> None:
        """Take over (version, shape, type, Fortran order, content)."""
        _, shape, kind, fortran, content = state
        if not isinstance(kind, _Type) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("it holds an array of an unknown form")
        self.array = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


_ADMITTED: dict[tuple[str, str], type] = {
    ("numpy", "ndarray"): _Bytes,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _Bytes,
    ("numpy._core.multiarray", "_reconstruct"): _Bytes,
}


class _Restricted(pickle.Unpickler):
    """An unpickler that knows no names but those of an array."""

    def find_class(self, module: str, name: str) -> type:
        """Return the stand-in for an admitted name."""
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs")
        return _ADMITTED[module, name]
