"""CIFAR-10 and CIFAR-100 in their "python version", read without running any code from their pickles."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from bpcbench.errors import MissingData, UserError
from bpcbench.records import Download, Facts
from bpcbench_data.converted import Chunk, ConvertedDataset
from bpcbench_data.pickles import count_rows, read_pickle, text

_SHAPE = (3, 32, 32)
_PIXELS = math.prod(_SHAPE)
_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_LICENCE = "none declared: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"


@dataclass(frozen=True)
class CIFAR(ConvertedDataset):
    """Colour 32x32 images in pickles, as torchvision unpacks them; the file `meta` names the classes."""

    licence: ClassVar[str] = _LICENCE
    folder: ClassVar[str]
    archive: ClassVar[str]
    meta: ClassVar[str]
    files: ClassVar[Mapping[str, tuple[str, ...]]]
    """The files of each split."""
    sums: ClassVar[Mapping[str, str]]
    """The official MD5 sum of every file."""
    keys: ClassVar[tuple[str, str]]
    """The key of the class names in the meta file, and the key of the labels in the other files."""
    classes: ClassVar[int]

    def declared(self) -> Facts:
        """Return the facts of the official data."""
        return Facts(shape=_SHAPE, classes=self.classes, sizes={"train": 50_000, "test": 10_000})

    def facts(self, root: Path) -> Facts:
        """Return the facts, from the meta file and the shapes declared in the other files."""
        path = self._path(root, self.meta)
        names = read_pickle(path).get(self.keys[0])
        if not isinstance(names, list) or len(names) != self.classes:
            raise UserError(f"{path} must name {self.classes} classes, but holds {names!r}")
        return Facts(
            shape=_SHAPE,
            classes=self.classes,
            sizes=self._counts(root),
            class_names=tuple(map(text, names)),
            official=not self.differs(root),
        )

    def _counts(self, root: Path) -> dict[str, int]:
        paths = {split: self.sources(root, split) for split in self.files}
        present = {split: self.state(root, split) for split in paths}
        return dict(
            self.learned(root, "counts", present, lambda: {split: _rows(files) for split, files in paths.items()})
        )

    def sources(self, root: Path, split: str) -> Sequence[Path]:
        """Return the files of a split; MissingData names all missing files."""
        return [self._path(root, name) for name in self.files[split]]

    def official(self, root: Path) -> Mapping[Path, Collection[str]]:
        """Return the official MD5 sums, which torchvision checks as well."""
        return {self._path(root, name): (md5,) for name, md5 in self.sums.items()}

    def places(self, root: Path) -> Sequence[Path]:
        return [root / self.folder]

    def _path(self, root: Path, name: str) -> Path:
        folder = root / self.folder
        if not (folder / name).is_file():
            missing = [name for name in self.sums if not (folder / name).is_file()]
            raise MissingData(
                f"data set {self.name} needs {', '.join(missing)}, looked for in {folder}. Unpack {self.archive} in "
                f"{root}, as torchvision.datasets.{type(self).__name__} does, or set BPCBENCH_DATA (or --data) to "
                f"the folder that contains {self.folder}"
            )
        return folder / name

    def chunks(self, root: Path, split: str) -> Iterator[Chunk]:
        """Yield the content of each file in turn."""
        for path in self.sources(root, split):
            content = read_pickle(path)
            images, labels = content.get("data"), content.get(self.keys[1])
            if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != _PIXELS:
                raise UserError(f"{path}: `data` is not an array of rows of {_PIXELS} unsigned bytes")
            if not isinstance(labels, list) or not all(type(one) is int and 0 <= one < self.classes for one in labels):
                raise UserError(f"{path}: `{self.keys[1]}` is not a list of integers from 0 to {self.classes - 1}")
            yield images.reshape(-1, *_SHAPE), np.asarray(labels, np.int64)


def _rows(paths: Sequence[Path]) -> int:
    return sum(count_rows(path, _PIXELS) for path in paths)


@dataclass(frozen=True)
class CIFAR10(CIFAR):
    """50,000 + 10,000 colour 32x32 images of 10 classes of vehicles and animals (Krizhevsky, 2009)."""

    name: ClassVar[str] = "cifar10"
    folder: ClassVar[str] = "cifar-10-batches-py"
    archive: ClassVar[str] = "cifar-10-python.tar.gz"
    meta: ClassVar[str] = "batches.meta"
    files: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
        "test": ("test_batch",),
    }
    sums: ClassVar[Mapping[str, str]] = {
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    }
    keys: ClassVar[tuple[str, str]] = ("label_names", "labels")
    classes: ClassVar[int] = 10
    downloads: ClassVar[tuple[Download, ...]] = (
        Download(f"{_TORONTO}{archive}", folder, unpack=True, size=170_498_071, md5="c58f30108f718f92721af3b95e74349a"),
    )


@dataclass(frozen=True)
class CIFAR100(CIFAR):
    """50,000 + 10,000 colour 32x32 images of 100 classes, the fine labels of CIFAR-100 (Krizhevsky, 2009)."""

    name: ClassVar[str] = "cifar100"
    folder: ClassVar[str] = "cifar-100-python"
    archive: ClassVar[str] = "cifar-100-python.tar.gz"
    meta: ClassVar[str] = "meta"
    files: ClassVar[Mapping[str, tuple[str, ...]]] = {"train": ("train",), "test": ("test",)}
    sums: ClassVar[Mapping[str, str]] = {
        "meta": "7973b15100ade9c7d40fb424638fde48",
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    }
    keys: ClassVar[tuple[str, str]] = ("fine_label_names", "fine_labels")
    classes: ClassVar[int] = 100
    downloads: ClassVar[tuple[Download, ...]] = (
        Download(f"{_TORONTO}{archive}", folder, unpack=True, size=169_001_437, md5="eb9058c3a382ffc7106e4002c42a8d85"),
    )
