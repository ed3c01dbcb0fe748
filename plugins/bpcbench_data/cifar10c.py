"""CIFAR-10-C: the released files if present, else the seven corruptions of the VBPC paper, generated."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from bpcbench.api import Dataset, option
from bpcbench.errors import MissingData, UserError, unknown
from bpcbench.records import Array, Facts, Split
from bpcbench_data.bar import bar
from bpcbench_data.cache import places, remembered, state
from bpcbench_data.cifar import CIFAR10
from bpcbench_data.corrupted import GENERATED, SPLITS, Corrupted
from bpcbench_data.corruptions import CORRUPTIONS, SEVERITIES

_FOLDER, _LABELS = "CIFAR-10-C", "labels.npy"
_SHAPE, _CLASSES, _SIZE = (3, 32, 32), 10, 10_000
TYPES = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    *("speckle_noise", "gaussian_blur", "spatter", "saturate"),
)
"""The types of the release: the 15 of the benchmark, then the 4 held out for validation."""


@dataclass(frozen=True)
class CIFAR10C(Dataset):
    """The CIFAR-10 test set, corrupted in up to 19 ways at 5 severities (Hendrycks & Dietterich, 2019).

    Splits are named TYPE-SEVERITY, such as `snow-3`. A type is read from its released file if that is below the data
    root. The rest of the VBPC paper's seven types are generated from CIFAR-10 as `corrupted` does, and are marked
    `generated`.
    """

    name: ClassVar[str] = "cifar10c"
    licence: ClassVar[str] = "CC BY 4.0: D. Hendrycks and T. Dietterich, CIFAR-10-C, 2019, doi:10.5281/zenodo.2535967"

    seed: int = option(0, "seed of the generated corruptions")
    types: list[str] = option([], "required types; a missing one is an error", key=False)

    def __post_init__(self) -> None:
        self._generator()
        for kind in self.types:
            if kind not in TYPES:
                raise ValueError(unknown("type of corruption", kind, TYPES))

    def declared(self) -> Facts:
        """Return the facts of the official data."""
        sizes = {f"{kind}-{severity}": _SIZE for kind in self.types for severity in SEVERITIES}
        return Facts(shape=_SHAPE, classes=_CLASSES, sizes=sizes)

    def facts(self, root: Path) -> Facts:
        """Return the facts, from the released labels and from CIFAR-10; MissingData if neither is present."""
        files = _released(root)
        try:
            made = self._generator().facts(root)
        except MissingData as error:
            if not files:
                raise MissingData(
                    f"data set {self.name} needs the released files, {_LABELS} and one file per type such as snow.npy, "
                    f"looked for in {root / _FOLDER}; or CIFAR-10, to generate {', '.join(CORRUPTIONS)}: {error}"
                ) from None
            made = Facts(shape=_SHAPE, classes=_CLASSES, sizes={})
        generated = {split: size for split, size in made.sizes.items() if split.rpartition("-")[0] not in files}
        size = len(_labels(root)) // len(SEVERITIES) if files else 0
        sizes = {f"{kind}-{severity}": size for kind in files for severity in SEVERITIES}
        sizes |= generated
        if absent := [f"{kind}.npy" for kind in self.types if f"{kind}-1" not in sizes]:
            raise MissingData(
                f"data set {self.name} needs {', '.join(absent)} of the release, looked for in {root / _FOLDER}; only "
                f"{', '.join(CORRUPTIONS)} can be generated, from CIFAR-10"
            )
        notes = _notes(generated) if files else made.notes
        official = size == _SIZE if files else made.official
        return Facts(
            shape=_SHAPE, classes=_CLASSES, sizes=sizes, class_names=made.class_names, official=official, notes=notes
        )

    def fingerprint(self, root: Path, split: str) -> str:
        """Return the cached SHA-256 of released images and labels, or the digest of a generated split's inputs."""
        kind, severity, path = self._find(root, split)
        if path is None:
            return self._generator().fingerprint(root, split)
        files = [state(path), state(root / _FOLDER / _LABELS)]
        folders = [place / self.name for place in places(root)]
        digests: list[str] = remembered(folders, kind, files, lambda: _digests(root, kind, path))
        return digests[severity - 1]

    def load(self, root: Path, split: str) -> Split:
        """Return a split whose images are a read-only memory map."""
        _, severity, path = self._find(root, split)
        return self._generator().load(root, split) if path is None else _slice(root, path, severity)

    def differs(self, root: Path) -> str:
        """Return how the release, or the CIFAR-10 that replaces it, differs from the official data."""
        if _released(root):
            return f"{root / _FOLDER / _LABELS} does not have {len(SEVERITIES) * _SIZE:,} labels"
        return self._generator().differs(root)

    def places(self, root: Path) -> Sequence[Path]:
        """Return the folder of the release and that of CIFAR-10."""
        return (root / _FOLDER, *self._generator().places(root))

    def _find(self, root: Path, split: str) -> tuple[str, int, Path | None]:
        kind, _, severity = split.rpartition("-")
        path = _released(root).get(kind)
        known = SPLITS if path is None else [f"{kind}-{number}" for number in SEVERITIES]
        if split not in known:
            raise ValueError(f"data set {self.name}: {unknown('split', split, self.facts(root).sizes)}")
        return kind, int(severity), path

    def _generator(self) -> Corrupted:
        return Corrupted(CIFAR10(), self.seed)


def _released(root: Path) -> dict[str, Path]:
    """Return the released files that are present, by type."""
    folder = root / _FOLDER
    files = {kind: folder / f"{kind}.npy" for kind in TYPES}
    present = {kind: path for kind, path in files.items() if path.is_file()}
    if present and not (folder / _LABELS).is_file():
        raise MissingData(
            f"data set cifar10c: {folder} holds {', '.join(present)}, but not {_LABELS}; place it there as well"
        )
    return present


def _notes(generated: Iterable[str]) -> tuple[str, ...]:
    """Return which corruptions are generated although some are released files."""
    kinds = ", ".join(dict.fromkeys(split.rpartition("-")[0] for split in generated))
    return (f"{GENERATED}: {kinds}",) if kinds else ()


def _array(path: Path, shape: tuple[int, ...]) -> Array:
    """Return a memory map of a released file whose rows have the given shape."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} cannot be read: {error}. Replace it with a fresh copy.") from None
    rows = len(array) if array.ndim else 0
    if array.dtype != np.uint8 or array.shape[1:] != shape or rows == 0 or rows % len(SEVERITIES):
        wanted = ", ".join(["5 n", *map(str, shape)])
        raise UserError(f"{path} holds {array.dtype} {array.shape}, but should hold uint8 ({wanted})")
    return array


def _labels(root: Path) -> Array:
    path = root / _FOLDER / _LABELS
    labels = _array(path, ())
    if labels.max() >= _CLASSES:
        raise UserError(f"{path} holds the label {labels.max()}, but there are only {_CLASSES} classes")
    return labels


def _slice(root: Path, path: Path, severity: int) -> Split:
    labels, images = _labels(root), _array(path, (*_SHAPE[1:], _SHAPE[0]))
    if len(images) != len(labels):
        raise UserError(f"{path} holds {len(images)} images, but {path.parent / _LABELS} {len(labels)} labels")
    size = len(labels) // len(SEVERITIES)
    rows = slice((severity - 1) * size, severity * size)
    return Split(images[rows].transpose(0, 3, 1, 2), labels[rows].astype(np.int64))


def _digests(root: Path, kind: str, path: Path) -> list[str]:
    digests = []
    with bar(len(SEVERITIES), f"cifar10c: checksums of {kind}", "split") as progress:
        for severity in SEVERITIES:
            split = _slice(root, path, severity)
            digest = hashlib.sha256(np.ascontiguousarray(split.images).data)
            digest.update(np.ascontiguousarray(split.labels, "<i8").data)
            digests.append(digest.hexdigest())
            progress(1)
    return digests
