"""The corrupted test images of any data set, generated at first use and cached."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from bpcbench.api import Dataset, option, refers
from bpcbench.errors import UserError, unknown
from bpcbench.records import Facts, Split
from bpcbench_data.converted import Chunk, ConvertedDataset
from bpcbench_data.corruptions import CORRUPTIONS, SEVERITIES, VERSION, corrupted

GENERATED = "generated"
_CHANNELS = (1, 3)
_LIMIT = 2**32
SPLITS = tuple(f"{kind}-{severity}" for kind in CORRUPTIONS for severity in SEVERITIES)


@dataclass(frozen=True)
class Corrupted(ConvertedDataset):
    """The test images of another data set, corrupted in 7 ways at 5 severities; splits are named such as `snow-3`.

    The definitions and severities, in pixels, are those of CIFAR-10-C (Hendrycks & Dietterich, 2019). On other images
    they give shifts of the same kind, but no published benchmark. Planning generates no image: the content of a split
    is determined by the fingerprint of the base's test split, the type, the severity and the seed.
    """

    name: ClassVar[str] = "corrupted"
    licence: ClassVar[str] = "that of the base data set"

    base: Dataset = refers("dataset", "digits", "the data set whose test split is corrupted")
    seed: int = option(0, "seed of the angles and the snowflakes")

    def __post_init__(self) -> None:
        if not 0 <= self.seed < _LIMIT:
            raise ValueError(f"seed must be at least 0 and below 2^32, got {self.seed}")

    def declared(self) -> Facts | None:
        """Return the facts of the corrupted official data, if those of the data themselves are declared."""
        base = self.base.declared()
        return base and replace(base, sizes=dict.fromkeys(SPLITS, base.sizes["test"]), notes=(*base.notes, GENERATED))

    def facts(self, root: Path) -> Facts:
        """Return the facts of the base, with one split per corruption and severity, marked `generated`."""
        facts = self.base.facts(root)
        if "test" not in facts.sizes:
            raise UserError(f"data set {self.base.name} has no test split to corrupt")
        if facts.shape[0] not in _CHANNELS:
            raise UserError(f"data set {self.base.name}: images of {facts.shape[0]} channels cannot be corrupted")
        sizes = dict.fromkeys(SPLITS, facts.sizes["test"])
        return Facts(
            shape=facts.shape,
            classes=facts.classes,
            sizes=sizes,
            class_names=facts.class_names,
            official=facts.official,
            notes=(*facts.notes, GENERATED),
        )

    def fingerprint(self, root: Path, split: str) -> str:
        """Return a digest of the split's inputs; nothing is generated."""
        if split not in SPLITS:
            raise ValueError(f"data set {self.name}: {unknown('split', split, SPLITS)}")
        return hashlib.sha256(json.dumps(self.state(root, split)).encode()).hexdigest()

    def differs(self, root: Path) -> str:
        """Return how the base differs from the official data."""
        return self.base.differs(root)

    def places(self, root: Path) -> Sequence[Path]:
        """Return the places of the base."""
        return self.base.places(root)

    def state(self, root: Path, split: str) -> list[str | int]:
        """Return everything that determines a split."""
        return [VERSION, self.base.fingerprint(root, "test"), split, self.seed]

    def sources(self, root: Path, split: str) -> Sequence[Path]:
        """Return no files: the base loads its own images."""
        return ()

    def chunks(self, root: Path, split: str) -> Iterator[Chunk]:
        """Yield corrupted images with the labels of the clean ones."""
        clean = self.base.load(root, "test")
        if clean.labels is None:
            raise UserError(f"data set {self.base.name} has no test labels")
        kind, _, severity = split.rpartition("-")
        start = 0
        for images in corrupted(clean.images, kind, int(severity), self.seed):
            yield images, clean.labels[start : start + len(images)]
            start += len(images)

    def load(self, root: Path, split: str) -> Split:
        """Return a split as a memory map; one process generates it while others that need it wait."""
        place = SPLITS.index(split) if split in SPLITS else 0
        with _turn(self._folders(root), place):
            return super().load(root, split)


@contextlib.contextmanager
def _turn(folders: Sequence[Path], place: int) -> Iterator[None]:
    """Hold the lock of one split, which is one byte of the file `lock`; go on without it if no folder is writable.

    The lock only saves work. Without it several processes may generate a split, and the first complete one is kept.
    """
    with contextlib.ExitStack() as stack:
        for folder in folders:
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                stream = stack.enter_context((folder / "lock").open("ab"))
                fcntl.lockf(stream, fcntl.LOCK_EX, 1, place)
                break
        yield
