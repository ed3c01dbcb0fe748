"""ImageNet downsampled to 64x64 pixels: eleven files, pickles or .npz."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

import numpy as np
from numpy.lib import format as npy

from bpcbench.errors import MissingData, UserError
from bpcbench.records import Array, Facts
from bpcbench_data.converted import Chunk, ConvertedDataset
from bpcbench_data.pickles import count_rows, read_pickle

_FOLDERS = ("imagenet64", "imagenet64/train", "imagenet64/val")
_FILES = {"train": tuple(f"train_data_batch_{number}" for number in range(1, 11)), "test": ("val_data",)}
_SIZES = {"train": 1_281_167, "test": 50_000}
_SHAPE = (3, 64, 64)
_PIXELS = 3 * 64 * 64
_CLASSES = 1000
_CHUNK = 4096


@dataclass(frozen=True)
class ImageNet64(ConvertedDataset):
    """1,281,167 + 50,000 colour 64x64 images of 1000 classes (Chrabaszcz, Loshchilov & Hutter, 2017).

    Labels 1 ... 1000 of the files become 0 ... 999; the test split is `val_data`. Files are read one at a time: a
    pickle needs 1.6 GB of memory, an .npz file hardly any. The conversion takes 16 GB on disk.
    """

    name: ClassVar[str] = "imagenet64"
    licence: ClassVar[str] = (
        "non-commercial research only, ImageNet's terms, after registration at https://image-net.org/download-images: "
        "P. Chrabaszcz, I. Loshchilov and F. Hutter, A Downsampled Variant of ImageNet, 2017"
    )

    def declared(self) -> Facts:
        """Return the facts of the official data."""
        return Facts(shape=_SHAPE, classes=_CLASSES, sizes=dict(_SIZES))

    def facts(self, root: Path) -> Facts:
        """Return the facts, from the shapes declared in the files; the counts are cached."""
        present = [self.state(root, split) for split in _FILES]
        counts = self.learned(root, "counts", present, lambda: {s: self._count(root, s) for s in _FILES})
        return Facts(shape=_SHAPE, classes=_CLASSES, sizes=dict(counts), class_names=(), official=counts == _SIZES)

    def differs(self, root: Path) -> str:
        """Name the splits that do not have the official size; checksums are published for archives only."""
        sizes = self.facts(root).sizes
        wrong = [
            f"{', '.join(map(str, self.sources(root, split)))} hold {sizes[split]:,} images, not {size:,}"
            for split, size in _SIZES.items()
            if sizes[split] != size
        ]
        return "; ".join(wrong)

    def sources(self, root: Path, split: str) -> Sequence[Path]:
        """Return the files of a split; MissingData names the missing files."""
        paths = {name: _find(root, name) for names in _FILES.values() for name in names}
        missing = [name for name, path in paths.items() if path is None]
        if missing:
            names = ", ".join(missing[:3]) + ", ..." * (len(missing) > 3)
            raise MissingData(
                f"data set {self.name} needs {names} (pickles, or .npz), looked for in "
                f"{root / _FOLDERS[0]}. Register at https://image-net.org/download-images, get the downsampled images "
                f"of 64x64 pixels and unpack them there, or set BPCBENCH_DATA (or --data) to the folder that contains "
                f"{_FOLDERS[0]}"
            )
        return [path for name in _FILES[split] if (path := paths[name]) is not None]

    def places(self, root: Path) -> Sequence[Path]:
        return [root / _FOLDERS[0]]

    def chunks(self, root: Path, split: str) -> Iterator[Chunk]:
        """Yield a few thousand images at a time."""
        for path in self.sources(root, split):
            yield from _from_npz(path) if path.suffix == ".npz" else _from_pickle(path)

    def _count(self, root: Path, split: str) -> int:
        paths = self.sources(root, split)
        return sum(_rows_of_npz(path) if path.suffix == ".npz" else count_rows(path, _PIXELS) for path in paths)


def _find(root: Path, name: str) -> Path | None:
    places = [root / folder / f"{name}{suffix}" for folder in _FOLDERS for suffix in ("", ".npz")]
    return next((path for path in places if path.is_file()), None)


def _from_pickle(path: Path) -> Iterator[Chunk]:
    content = read_pickle(path)
    images, labels = content.get("data"), content.get("labels")
    if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != _PIXELS:
        raise UserError(f"{path}: `data` is not an array of rows of {_PIXELS} unsigned bytes")
    if not isinstance(labels, list) or not all(type(one) is int for one in labels):
        raise UserError(f"{path}: `labels` is not a list of integers")
    classes = _checked(path, np.asarray(labels, np.int64), len(images))
    for start in range(0, len(images), _CHUNK):
        yield images[start : start + _CHUNK].reshape(-1, *_SHAPE), classes[start : start + _CHUNK]


def _from_npz(path: Path) -> Iterator[Chunk]:
    try:
        with zipfile.ZipFile(path) as archive:
            with archive.open("labels.npy") as stream:
                labels = npy.read_array(stream, allow_pickle=False)
            with archive.open("data.npy") as stream:
                rows = _header(stream)
                classes = _checked(path, labels, rows)
                for start in range(0, rows, _CHUNK):
                    count = min(_CHUNK, rows - start)
                    content = stream.read(count * _PIXELS)
                    if len(content) != count * _PIXELS:
                        raise ValueError("it ends early")
                    yield np.frombuffer(content, np.uint8).reshape(-1, *_SHAPE), classes[start : start + count]
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise _damaged(path, error) from None


def _rows_of_npz(path: Path) -> int:
    try:
        with zipfile.ZipFile(path) as archive, archive.open("data.npy") as stream:
            return _header(stream)
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise _damaged(path, error) from None


def _header(stream: IO[bytes]) -> int:
    """Read an array's header and return its number of rows; ValueError if the rows are not images."""
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, kind = read(stream)
    if len(shape) != 2 or shape[1] != _PIXELS or fortran or kind != np.uint8:
        raise ValueError(f"`data` is {kind} {shape}, not rows of {_PIXELS} unsigned bytes")
    return int(shape[0])


def _checked(path: Path, labels: Array, rows: int) -> Array:
    """Return labels that start at 0; UserError unless there is one label from 1 to 1000 per row."""
    if labels.shape != (rows,) or labels.dtype.kind not in "ui":
        raise UserError(f"{path}: `labels` is {labels.dtype} {labels.shape}, but there are {rows} images")
    if rows and not 1 <= labels.min() <= labels.max() <= _CLASSES:
        raise UserError(f"{path}: labels run from {labels.min()} to {labels.max()}, not within 1 ... {_CLASSES}")
    return labels.astype(np.int64) - 1


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} cannot be read: {error}. Replace it with a fresh copy.")
