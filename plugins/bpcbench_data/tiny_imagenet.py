"""Tiny ImageNet in its original layout: the folder `tiny-imagenet-200`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bpcbench.errors import MissingData, UserError
from bpcbench.records import Array, Download, Facts
from bpcbench_data.pictures import PictureDataset, changed, decode, pictures_below

_FOLDER = "tiny-imagenet-200"
_SIDE = 64
_CLASSES, _PER_CLASS = 200, 500
_TESTS = 10_000


@dataclass(frozen=True)
class TinyImageNet(PictureDataset):
    """100,000 + 10,000 colour 64x64 images of 200 classes of ImageNet (Le & Yang, 2015); the test split is `val`.

    Classes are the WordNet identifiers in sorted order. Grey pictures get three equal channels.
    """

    name: ClassVar[str] = "tiny_imagenet"
    licence: ClassVar[str] = (
        "non-commercial research only, ImageNet's terms: Y. Le and X. Yang, Tiny ImageNet Visual Recognition "
        "Challenge, 2015"
    )
    downloads: ClassVar[tuple[Download, ...]] = (
        Download(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            _FOLDER,
            unpack=True,
            size=248_100_043,
            md5="90528d7ca1a48142e341f4ef8d21d0de",
        ),
    )

    def declared(self) -> Facts:
        """Return the facts of the official data."""
        return Facts(shape=(3, _SIDE, _SIDE), classes=_CLASSES, sizes={"train": _CLASSES * _PER_CLASS, "test": _TESTS})

    def facts(self, root: Path) -> Facts:
        """Return the facts, from the lists of names; the counts are cached until a folder changes."""
        counted = self._counted(root)
        names = tuple(counted["names"])
        return Facts(
            shape=(3, _SIDE, _SIDE),
            classes=len(names),
            sizes=counted["sizes"],
            class_names=names,
            official=not self.differs(root),
        )

    def differs(self, root: Path) -> str:
        """Name the first count that is not the official one; no checksums are published for the files."""
        folder, classes = self._classes(root)
        counted = self._counted(root)
        if len(classes) != _CLASSES:
            return f"{folder / 'wnids.txt'} lists {len(classes)} classes, not {_CLASSES}"
        if counted["uneven"]:
            return f"{folder / 'train' / counted['uneven']} does not have {_PER_CLASS} pictures"
        tests = counted["sizes"]["test"]
        return "" if tests == _TESTS else f"{folder / 'val'} has {tests:,} pictures, not {_TESTS:,}"

    def sources(self, root: Path, split: str) -> Sequence[Path]:
        """Return the picture folders and the files that list their classes; MissingData if one is missing."""
        folder, classes = self._classes(root)
        if split == "test":
            return [folder / "val" / "images", folder / "val" / "val_annotations.txt"]
        return [folder / "wnids.txt", *(folder / "train" / wnid / "images" for wnid in classes)]

    def state(self, root: Path, split: str) -> Any:
        return [changed(path) for path in self.sources(root, split)]

    def places(self, root: Path) -> Sequence[Path]:
        return [root / _FOLDER]

    def listed(self, root: Path, split: str) -> tuple[Sequence[str], Sequence[int]]:
        """List the pictures class by class, or in the order of the annotations."""
        folder, classes = self._classes(root)
        if split == "train":
            pairs = [(p, k) for k, wnid in enumerate(classes) for p in pictures_below(f"{folder}/train/{wnid}/images")]
        else:
            numbers = {wnid: number for number, wnid in enumerate(classes)}
            pairs = []
            for line in _lines(folder / "val" / "val_annotations.txt"):
                name, wnid = [*line.split("\t"), ""][:2]
                if wnid not in numbers or "/" in name:
                    raise UserError(f"{folder}/val/val_annotations.txt: {line!r} names no class of wnids.txt")
                pairs.append((f"{folder}/val/images/{name}", numbers[wnid]))
        return [path for path, _ in pairs], [label for _, label in pairs]

    def picture(self, path: str) -> Array:
        image = decode(path, "RGB")
        if image.shape[1:] != (_SIDE, _SIDE):
            raise UserError(f"{path} has {image.shape[2]}x{image.shape[1]} pixels, not {_SIDE}x{_SIDE}")
        return image

    def _classes(self, root: Path) -> tuple[Path, list[str]]:
        """Return the folder and the sorted classes; MissingData names what is missing."""
        folder = root / _FOLDER
        needed = [folder / name for name in ("wnids.txt", "val/images", "val/val_annotations.txt")]
        missing = [path for path in needed if not path.exists()]
        classes = [] if missing else sorted(line.strip() for line in _lines(needed[0]) if line.strip())
        missing += [path for path in (folder / "train" / wnid / "images" for wnid in classes) if not path.is_dir()]
        if missing:
            names = ", ".join(str(path.relative_to(root)) for path in missing[:3]) + ", ..." * (len(missing) > 3)
            raise MissingData(
                f"data set {self.name} needs {names}, looked for in {root}. Unpack tiny-imagenet-200.zip there, or set "
                f"BPCBENCH_DATA (or --data) to the folder that contains {_FOLDER}"
            )
        if len(classes) < 2 or len(set(classes)) != len(classes):
            raise UserError(f"{needed[0]} must list at least two classes, each once")
        return folder, classes

    def _counted(self, root: Path) -> dict[str, Any]:
        """Return the split sizes, the class names, and the first class that does not have 500 pictures."""
        present = [self.state(root, split) for split in ("train", "test")]
        return dict(self.learned(root, "counts", present, lambda: self._count(root)))

    def _count(self, root: Path) -> dict[str, Any]:
        folder, classes = self._classes(root)
        labels = {split: self.listed(root, split)[1] for split in ("train", "test")}
        counts = np.bincount(labels["train"], minlength=len(classes))
        words = dict(line.split("\t", 1) for line in _lines(folder / "words.txt") if "\t" in line)
        return {
            "sizes": {split: len(mine) for split, mine in labels.items()},
            "uneven": next((wnid for wnid, count in zip(classes, counts, strict=True) if count != _PER_CLASS), ""),
            "names": [words.get(wnid, wnid).partition(",")[0].strip() for wnid in classes],
        }


def _lines(path: Path) -> list[str]:
    """Return the lines of a text file, none if it does not exist; UserError if it cannot be read."""
    try:
        return path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
