"""MNIST and Fashion-MNIST, in torchvision's layout: four idx files, gzipped or not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bpcbench.errors import MissingData, UserError
from bpcbench.records import Download, Facts
from bpcbench_data import idx
from bpcbench_data.converted import Chunk, ConvertedDataset

_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_CLASSES = 10
_SIDE = 28


def _downloads(
    site: str, folder: str, sums: Mapping[str, tuple[str, str]], sizes: Sequence[int]
) -> tuple[Download, ...]:
    return tuple(
        Download(f"{site}{name}.gz", f"{folder}/raw/{name}.gz", size=size, md5=gzipped)
        for (name, (gzipped, _)), size in zip(sums.items(), sizes, strict=True)
    )


@dataclass(frozen=True)
class IdxDataset(ConvertedDataset):
    """Grey 28x28 images of 10 classes as idx files in `FOLDER/raw`; the sizes come from the headers."""

    folder: ClassVar[str]
    class_names: ClassVar[tuple[str, ...]]
    sums: ClassVar[Mapping[str, tuple[str, str]]]
    """The MD5 sums of every file, gzipped (as published) and unpacked."""

    def declared(self) -> Facts:
        """Return the facts of the official data."""
        sizes = {"train": 60_000, "test": 10_000}
        return Facts(shape=(1, _SIDE, _SIDE), classes=_CLASSES, sizes=sizes, class_names=self.class_names)

    def facts(self, root: Path) -> Facts:
        """Return the facts, from the headers of the files."""
        sizes = {}
        for split in _FILES:
            images, labels = self.sources(root, split)
            shape = idx.shape(images)
            if shape[1:] != (_SIDE, _SIDE):
                raise UserError(f"{images} holds an array {shape}, not images of {_SIDE}x{_SIDE} pixels")
            if idx.shape(labels) != shape[:1]:
                raise UserError(f"{images} holds {shape[0]} images, but {labels} holds an array {idx.shape(labels)}")
            sizes[split] = shape[0]
        return Facts(
            shape=(1, _SIDE, _SIDE),
            classes=_CLASSES,
            sizes=sizes,
            class_names=self.class_names,
            official=not self.differs(root),
        )

    def sources(self, root: Path, split: str) -> Sequence[Path]:
        """Return the image file and the label file; MissingData names all missing files."""
        folder = root / self.folder / "raw"
        missing = [name for names in _FILES.values() for name in names if idx.find(folder, name) is None]
        if missing:
            raise MissingData(
                f"data set {self.name} needs {', '.join(missing)} (plain or .gz), looked for in {folder}. Place the "
                f"files there, as torchvision.datasets.{self.folder} does, or set BPCBENCH_DATA (or --data) to the "
                f"folder that contains {self.folder}/raw"
            )
        return [path for name in _FILES[split] if (path := idx.find(folder, name)) is not None]

    def official(self, root: Path) -> Mapping[Path, Collection[str]]:
        files = [path for split in _FILES for path in self.sources(root, split)]
        return {path: self.sums[path.name.removesuffix(".gz")] for path in files}

    def places(self, root: Path) -> Sequence[Path]:
        return [root / self.folder / "raw"]

    def chunks(self, root: Path, split: str) -> Iterator[Chunk]:
        """Yield the whole split."""
        images, labels = self.sources(root, split)
        classes = idx.read(labels)
        if classes.size and classes.max() >= _CLASSES:
            raise UserError(f"{labels} holds the label {classes.max()}, but there are only {_CLASSES} classes")
        yield idx.read(images)[:, None], classes


@dataclass(frozen=True)
class MNIST(IdxDataset):
    """60,000 + 10,000 grey 28x28 images of handwritten digits (LeCun, Bottou, Bengio & Haffner, 1998)."""

    name: ClassVar[str] = "mnist"
    licence: ClassVar[str] = "CC BY-SA 3.0: Y. LeCun, C. Cortes and C. J. C. Burges, the MNIST database"
    folder: ClassVar[str] = "MNIST"
    class_names: ClassVar[tuple[str, ...]] = tuple("0123456789")
    sums: ClassVar[Mapping[str, tuple[str, str]]] = {
        "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
        "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
        "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
        "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
    }
    downloads: ClassVar[tuple[Download, ...]] = _downloads(
        "https://ossci-datasets.s3.amazonaws.com/mnist/", folder, sums, (9_912_422, 28_881, 1_648_877, 4_542)
    )


@dataclass(frozen=True)
class FashionMNIST(IdxDataset):
    """60,000 + 10,000 grey 28x28 images of Zalando's articles (Xiao, Rasul & Vollgraf, 2017)."""

    name: ClassVar[str] = "fashion_mnist"
    licence: ClassVar[str] = "MIT: Copyright 2017 Zalando SE, https://github.com/zalandoresearch/fashion-mnist"
    folder: ClassVar[str] = "FashionMNIST"
    sums: ClassVar[Mapping[str, tuple[str, str]]] = {
        "train-images-idx3-ubyte": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
        "train-labels-idx1-ubyte": ("25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
        "t10k-images-idx3-ubyte": ("bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
        "t10k-labels-idx1-ubyte": ("bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
    }
    downloads: ClassVar[tuple[Download, ...]] = _downloads(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        folder,
        sums,
        (26_421_880, 29_515, 4_422_102, 5_148),
    )
    class_names: ClassVar[tuple[str, ...]] = (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    )
