"""MNIST and Fashion-MNIST, in torchvision's layout: four idx files, gzipped or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bpcbench.errors import MissingData, UserError
from bpcbench.records import Facts
from bpcbench_data import idx
from bpcbench_data.converted import Chunk, ConvertedDataset

_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_SIZES = {"train": 60_000, "test": 10_000}
_CLASSES = 10
_SIDE = 28


@dataclass(frozen=True)
class IdxDataset(ConvertedDataset):
    """Grey 28x28 images of 10 classes as idx files in `FOLDER/raw`; sizes are those of the files' headers."""

    folder: ClassVar[str]
    class_names: ClassVar[tuple[str, ...]]

    def facts(self, root: Path) -> Facts:
        """Return the facts from the headers of the files; other than official sizes are noted as a subset."""
        sizes = {}
        for split in _FILES:
            images, labels = self.sources(root, split)
            shape = idx.shape(images)
            if shape[1:] != (_SIDE, _SIDE):
                raise UserError(f"{images} holds an array {shape}, not images of {_SIDE}x{_SIDE} pixels")
            if idx.shape(labels) != shape[:1]:
                raise UserError(f"{images} holds {shape[0]} images, but {labels} an array {idx.shape(labels)}")
            sizes[split] = shape[0]
        notes = () if sizes == _SIZES else ("subset",)
        return Facts((1, _SIDE, _SIDE), _CLASSES, sizes, self.class_names, notes)

    def sources(self, root: Path, split: str) -> Sequence[Path]:
        """Return the file of the images and the file of the labels; MissingData names all files that are absent."""
        folder = root / self.folder / "raw"
        missing = [name for names in _FILES.values() for name in names if idx.find(folder, name) is None]
        if missing:
            raise MissingData(
                f"data set {self.name} needs {', '.join(missing)} (plain or .gz), looked for in {folder}. Place the "
                f"files there, as torchvision.datasets.{self.folder} does, or let BPCBENCH_DATA (or --data) name the "
                f"folder that holds {self.folder}/raw"
            )
        return [path for name in _FILES[split] if (path := idx.find(folder, name)) is not None]

    def chunks(self, root: Path, split: str) -> Iterator[Chunk]:
        """Yield the whole split."""
        images, labels = self.sources(root, split)
        classes = idx.read(labels)
        if classes.size and classes.max() >= _CLASSES:
            raise UserError(f"{labels} holds the label {classes.max()}, and there are {_CLASSES} classes")
        yield idx.read(images)[:, None], classes


@dataclass(frozen=True)
class MNIST(IdxDataset):
    """60,000 + 10,000 grey 28x28 images of handwritten digits (LeCun, Bottou, Bengio & Haffner, 1998)."""

    name: ClassVar[str] = "mnist"
    licence: ClassVar[str] = "CC BY-SA 3.0: Y. LeCun, C. Cortes and C. J. C. Burges, the MNIST database"
    folder: ClassVar[str] = "MNIST"
    class_names: ClassVar[tuple[str, ...]] = tuple("0123456789")


@dataclass(frozen=True)
class FashionMNIST(IdxDataset):
    """60,000 + 10,000 grey 28x28 images of Zalando's articles (Xiao, Rasul & Vollgraf, 2017)."""

    name: ClassVar[str] = "fashion_mnist"
    licence: ClassVar[str] = "MIT: Copyright 2017 Zalando SE, https://github.com/zalandoresearch/fashion-mnist"
    folder: ClassVar[str] = "FashionMNIST"
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
