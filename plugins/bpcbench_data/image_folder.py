"""A user's own pictures, with one folder per class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bpcbench.api import option
from bpcbench.errors import MissingData, UserError
from bpcbench.records import Array, Facts
from bpcbench.sampling import stratified_holdout
from bpcbench_data.pictures import PictureDataset, decode
from bpcbench_data.tree import Tree, tree

_TRAIN, _TEST = "train", "test"
_TESTS = (_TEST, "val")


@dataclass(frozen=True)
class ImageFolder(PictureDataset):
    """Your own pictures, with one folder per class, optionally below `train` and `test` (or `val`).

    Without `test` or `val`, the test split is `test_fraction` of every class, drawn with `seed`. The shorter side is
    scaled to `size` (bilinear, antialiased), the centre square is cut out, and the colours are converted.
    """

    name: ClassVar[str] = "folder"
    licence: ClassVar[str] = "that of your pictures"
    path: str = option("", "the folder, absolute or relative to the data root", key=False)
    size: int = option(32, "width and height in pixels")
    grey: bool = option(False, "one channel instead of three")
    test_fraction: float = option(0.2, "share of every class to test on, if the folder has no test part")
    seed: int = option(0, "seed of the test part's draw")

    def __post_init__(self) -> None:
        if not 4 <= self.size <= 1024:
            raise ValueError(f"size must lie between 4 and 1024, got {self.size}")
        if not 0.0 < self.test_fraction < 1.0:
            raise ValueError(f"test_fraction must lie between 0 and 1, got {self.test_fraction}")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, got {self.seed}")

    def facts(self, root: Path) -> Facts:
        """Return the facts, from the file names; classes are the sorted folder names."""
        parts = _parts(self._tree(root))
        names = tuple(parts[_TRAIN])
        sizes = self.learned(root, "sizes", self.state(root, _TRAIN), lambda: self._sizes(root))
        return Facts(
            shape=(1 if self.grey else 3, self.size, self.size),
            classes=len(names),
            sizes=dict(sizes),
            class_names=names,
        )

    def sources(self, root: Path, split: str) -> Sequence[Path]:
        return self.places(root)

    def places(self, root: Path) -> Sequence[Path]:
        return [root / Path(self.path).expanduser()] if self.path else []

    def state(self, root: Path, split: str) -> Any:
        # The state of all files, because which of them belong to a split depends on the others.
        return self._tree(root).state

    def listed(self, root: Path, split: str) -> tuple[Sequence[str], Sequence[int]]:
        """List the pictures class by class."""
        pictures = self._tree(root)
        parts = _parts(pictures)
        numbers = {name: number for number, name in enumerate(parts[_TRAIN])}
        chosen = parts.get(split, parts[_TRAIN])
        pairs = [(f"{pictures.folder}/{file}", numbers[name]) for name, files in chosen.items() for file in files]
        if _TEST not in parts:
            labels = np.asarray([label for _, label in pairs], np.int64)
            kept, held = stratified_holdout(labels, self.test_fraction, self.seed)
            pairs = [pairs[row] for row in (kept if split == _TRAIN else held)]
        return [path for path, _ in pairs], [label for _, label in pairs]

    def picture(self, path: str) -> Array:
        return decode(path, "L" if self.grey else "RGB", self.size)

    def _tree(self, root: Path) -> Tree:
        if not self.path:
            raise MissingData(f"data set {self.name} needs its option `path`: a folder with one folder per class")
        (path,) = self.places(root)
        if not path.is_dir():
            raise MissingData(f"data set {self.name}: the folder {path} of its option `path` does not exist")
        return tree(path)

    def _sizes(self, root: Path) -> dict[str, int]:
        labels = {split: self.listed(root, split)[1] for split in (_TRAIN, _TEST)}
        trained = set(labels[_TRAIN])
        for number, name in enumerate(_parts(self._tree(root))[_TRAIN]):
            if number not in trained:
                raise UserError(f"class {name} has no picture left to train on: lower test_fraction or add pictures")
        return {split: len(mine) for split, mine in labels.items()}


@lru_cache(maxsize=4)
def _parts(pictures: Tree) -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return the files of each class, for `train` and, if the folder has one, for `test`."""
    top = pictures.folders_in("")
    test = next((name for name in _TESTS if name in top), None)
    if _TRAIN not in top:
        if test is not None:
            raise UserError(f"{pictures.folder} has a folder {test} but no folder {_TRAIN}")
        return {_TRAIN: _classes(pictures, "")}
    parts = {_TRAIN: _classes(pictures, f"{_TRAIN}/")}
    if test is not None:
        parts[_TEST] = _classes(pictures, f"{test}/", parts[_TRAIN])
    return parts


def _classes(pictures: Tree, below: str, known: Mapping[str, object] | None = None) -> dict[str, list[str]]:
    """Return the pictures of each class folder; UserError for fewer than two classes or an empty one."""
    names = pictures.folders_in(below)
    where = Path(pictures.folder) / below
    if known is not None:
        if extra := [name for name in names if name not in known]:
            raise UserError(f"{where} has the classes {', '.join(extra)}, which {_TRAIN} does not have")
    elif len(names) < 2:
        raise UserError(f"{where} must have at least two folders, one per class, but has {len(names)}")
    files: dict[str, list[str]] = {name: [] for name in names}
    for path, *_ in pictures.files:
        name, inside, _ = path.removeprefix(below).partition("/")
        if path.startswith(below) and inside and name in files:
            files[name].append(path)
    for name, mine in files.items():
        if not mine and known is None:
            raise UserError(f"{where / name} has no pictures")
    if not any(files.values()):
        raise UserError(f"{where} has no pictures")
    return files
