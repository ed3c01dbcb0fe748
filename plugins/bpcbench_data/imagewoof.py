"""Imagewoof: ten dog breeds of ImageNet, in folders `train` and `val`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bpcbench.api import option
from bpcbench.errors import MissingData
from bpcbench.records import Array, Download, Facts
from bpcbench_data.pictures import PictureDataset, changed, decode, pictures_below

_FOLDERS = ("imagewoof2", "imagewoof2-320", "imagewoof2-160", "imagewoof")
_PARTS = {"train": "train", "test": "val"}
_SIZES = {"train": 9_025, "test": 3_929}
_BREEDS = {
    "n02086240": "Shih-Tzu",
    "n02087394": "Rhodesian ridgeback",
    "n02088364": "beagle",
    "n02089973": "English foxhound",
    "n02093754": "Border terrier",
    "n02096294": "Australian terrier",
    "n02099601": "golden retriever",
    "n02105641": "Old English sheepdog",
    "n02111889": "Samoyed",
    "n02115641": "dingo",
}


@dataclass(frozen=True)
class Imagewoof(PictureDataset):
    """9,025 + 3,929 colour images of 10 dog breeds (Howard, 2019, second version); the test split is `val`.

    Pictures come in many sizes: the shorter side is scaled to `size` (bilinear, antialiased) and the centre square is
    cut out. The first folder that exists is read: full-size pictures, then those of 320, then those of 160 pixels.
    """

    name: ClassVar[str] = "imagewoof"
    licence: ClassVar[str] = (
        "non-commercial research only, ImageNet's terms: J. Howard, Imagewoof, https://github.com/fastai/imagenette"
    )
    downloads: ClassVar[tuple[Download, ...]] = (
        Download(
            "https://s3.amazonaws.com/fast-ai-imageclas/imagewoof2.tgz",
            "imagewoof2",
            unpack=True,
            md5="9aafe18bcdb1632c4249a76c458465ba",
        ),
    )
    size: int = option(128, "width and height in pixels")

    def __post_init__(self) -> None:
        if not 8 <= self.size <= 512:
            raise ValueError(f"size must lie between 8 and 512, got {self.size}")

    def declared(self) -> Facts:
        """Return the facts of the official data."""
        shape, names = (3, self.size, self.size), tuple(_BREEDS.values())
        return Facts(shape=shape, classes=len(names), sizes=dict(_SIZES), class_names=names)

    def facts(self, root: Path) -> Facts:
        """Return the facts; the counts are cached until a folder changes."""
        shape = (3, self.size, self.size)
        return Facts(
            shape=shape,
            classes=len(_BREEDS),
            sizes=self._counts(root),
            class_names=tuple(_BREEDS.values()),
            official=not self.differs(root),
        )

    def differs(self, root: Path) -> str:
        """Name the splits that do not have the official size; no checksums are published for the files."""
        folder, counts = self._folder(root), self._counts(root)
        wrong = [
            f"{folder / _PARTS[s]} has {counts[s]:,} pictures, not {n:,}" for s, n in _SIZES.items() if counts[s] != n
        ]
        return "; ".join(wrong)

    def sources(self, root: Path, split: str) -> Sequence[Path]:
        """Return the class folders; MissingData if one is missing."""
        folder = self._folder(root)
        paths = [folder / _PARTS[split] / wnid for wnid in _BREEDS]
        missing = [str(path.relative_to(root)) for path in paths if not path.is_dir()]
        if missing:
            raise MissingData(f"data set {self.name} needs the folders {', '.join(missing)}, looked for in {root}")
        return paths

    def state(self, root: Path, split: str) -> Any:
        return [changed(path) for path in self.sources(root, split)]

    def places(self, root: Path) -> Sequence[Path]:
        return [next((root / name for name in _FOLDERS if (root / name).is_dir()), root / _FOLDERS[0])]

    def listed(self, root: Path, split: str) -> tuple[Sequence[str], Sequence[int]]:
        """List the pictures class by class."""
        pairs = [(file, k) for k, path in enumerate(self.sources(root, split)) for file in pictures_below(str(path))]
        return [path for path, _ in pairs], [label for _, label in pairs]

    def picture(self, path: str) -> Array:
        return decode(path, "RGB", self.size)

    def _folder(self, root: Path) -> Path:
        (folder,) = self.places(root)
        if not folder.is_dir():
            raise MissingData(
                f"data set {self.name} needs one of the folders {', '.join(_FOLDERS)}, looked for in {root}. Unpack "
                f"imagewoof2.tgz there, or set BPCBENCH_DATA (or --data) to the folder that contains imagewoof2"
            )
        return folder

    def _counts(self, root: Path) -> dict[str, int]:
        present = [self.state(root, split) for split in _SIZES]
        return dict(self.learned(root, "counts", present, lambda: {s: len(self.listed(root, s)[0]) for s in _SIZES}))
