"""SVHN, the street view house numbers, in its cropped format: two MATLAB files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bpcbench.errors import MissingData, UserError
from bpcbench.records import Download, Facts
from bpcbench_data.converted import Chunk, ConvertedDataset

_FOLDERS = ("svhn", "SVHN", ".")
_FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat"}
_SUMS = {"train": "e26dedcc434d2e4c54c9b2d4a06d8373", "test": "eb5a983be6a315427106f1b164d9cef3"}
_BYTES = {"train": 182_040_794, "test": 64_275_384}
_SHAPE = (3, 32, 32)
_CLASSES = 10
_SITE = "http://ufldl.stanford.edu/housenumbers/"
_CHUNK = 8192


@dataclass(frozen=True)
class SVHN(ConvertedDataset):
    """73,257 + 26,032 colour 32x32 images of digits on house walls (Netzer et al., 2011); the files' label 10 is 0."""

    name: ClassVar[str] = "svhn"
    licence: ClassVar[str] = (
        "non-commercial use only: Y. Netzer et al., Reading Digits in Natural Images with Unsupervised Feature "
        "Learning, 2011"
    )
    downloads: ClassVar[tuple[Download, ...]] = tuple(
        Download(_SITE + file, f"svhn/{file}", size=size, md5=md5)
        for file, size, md5 in zip(_FILES.values(), _BYTES.values(), _SUMS.values(), strict=True)
    )

    def declared(self) -> Facts:
        """Return the facts of the official data."""
        sizes = {"train": 73_257, "test": 26_032}
        return Facts(shape=_SHAPE, classes=_CLASSES, sizes=sizes, class_names=tuple("0123456789"))

    def facts(self, root: Path) -> Facts:
        """Return the facts, from the files' headers; the counts are cached."""
        present = [self.state(root, split) for split in _FILES]
        counts = self.learned(root, "counts", present, lambda: {s: _count(self._path(root, s)) for s in _FILES})
        return Facts(
            shape=_SHAPE,
            classes=_CLASSES,
            sizes=dict(counts),
            class_names=tuple("0123456789"),
            official=not self.differs(root),
        )

    def sources(self, root: Path, split: str) -> Sequence[Path]:
        return [self._path(root, split)]

    def official(self, root: Path) -> Mapping[Path, Collection[str]]:
        return {self._path(root, split): (md5,) for split, md5 in _SUMS.items()}

    def places(self, root: Path) -> Sequence[Path]:
        folders = [root / name for name in _FOLDERS if any((root / name / file).is_file() for file in _FILES.values())]
        return [(folders or [root / _FOLDERS[0]])[0] / file for file in _FILES.values()]

    def chunks(self, root: Path, split: str) -> Iterator[Chunk]:
        """Yield the images, which the file stores as height x width x channels x number."""
        path = self._path(root, split)
        content = _read(path)
        images, labels = content["X"], content["y"].reshape(-1)
        if labels.dtype.kind not in "ui" or (labels.size and not 1 <= labels.min() <= labels.max() <= _CLASSES):
            raise UserError(f"{path}: the labels `y` must be integers from 1 to {_CLASSES}")
        if images.dtype != np.uint8 or images.shape != (32, 32, 3, len(labels)):
            raise UserError(f"{path}: `X` is {images.dtype} {images.shape}, but there are {len(labels)} labels")
        for start in range(0, len(labels), _CHUNK):
            part = slice(start, start + _CHUNK)
            yield images[..., part].transpose(3, 2, 0, 1), labels[part].astype(np.int64) % _CLASSES

    def _path(self, root: Path, split: str) -> Path:
        paths = dict(zip(_FILES, self.places(root), strict=True))
        missing = [path.name for path in paths.values() if not path.is_file()]
        if missing:
            raise MissingData(
                f"data set {self.name} needs {' and '.join(missing)}, looked for in {paths[split].parent}. Place the "
                f"files there, as torchvision.datasets.SVHN does, or set BPCBENCH_DATA (or --data) to the folder "
                f"that contains them or their folder svhn"
            )
        return paths[split]


def _count(path: Path) -> int:
    """Return the number of images declared in the file's header."""
    from scipy.io import whosmat

    try:
        shapes = {name: shape for name, shape, _ in whosmat(path)}
    except Exception as error:  # a damaged file may raise anything
        raise _damaged(path, error) from None
    shape = shapes.get("X", ())
    if len(shape) != 4 or shape[:3] != (32, 32, 3) or "y" not in shapes:
        raise UserError(f"{path} must hold `X`, 32 x 32 x 3 x number, and `y`; it holds {shapes}")
    return int(shape[3])


def _read(path: Path) -> Mapping[str, Any]:
    from scipy.io import loadmat

    try:
        content: Mapping[str, Any] = loadmat(path, variable_names=("X", "y"))
    except Exception as error:  # a damaged file may raise anything
        raise _damaged(path, error) from None
    return content


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} cannot be read: {error}. Replace it with a fresh copy.")
