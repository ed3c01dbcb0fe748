"""The method `file`: a coreset that somebody else distilled, or that was distilled elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from bpcbench import describe_coreset, load_coreset, load_transform
from bpcbench.api import Context, Method, option
from bpcbench.errors import UserError
from bpcbench.records import (
    Convention,
    Coreset,
    Data,
    Facts,
    Inputs,
    Native,
    Ref,
    Resources,
    StoredCoreset,
    mirrored,
)


@dataclass(frozen=True)
class File(Method):
    """A coreset in a folder that `bpcbench import` or `bpcbench export` wrote; nothing is distilled.

    It is brought into the space of the cell's preprocessing: images stay as they are if the folder's own preprocessing
    is the same, and else go back to pixels and forward again. To evaluate them in their own space, name that
    preprocessing in the suite. Cells of other images per class, classes or image sizes are skipped. Where the training
    data lack classes, as in the steps of class-incremental learning, the rows of the others are left out.

    The digest of the content is part of every key; without it in the suite, that of the folder counts.
    """

    name: ClassVar[str] = "file"
    resources: ClassVar[Resources] = Resources()
    uses_seed: ClassVar[bool] = False

    path: str = option("", "the folder, absolute or relative to the working directory", key=False)
    digest: str = option("", "of the folder's content, as `bpcbench import` prints it; empty: whatever it holds")
    mirror: bool | None = option(None, "append mirrored copies of all rows; none: as the folder says", absent=None)

    def __post_init__(self) -> None:
        if not self.path:
            return
        object.__setattr__(self, "path", str(Path(self.path).expanduser().absolute()))
        try:
            held = self._stored().digest
        except UserError as error:
            raise ValueError(str(error)) from None
        if self.digest and self.digest != held:
            raise ValueError(f"{self.path} holds a coreset with the digest {held}, not {self.digest}")
        object.__setattr__(self, "digest", held)

    def _stored(self) -> StoredCoreset:
        return _described(self.path)

    def convention(self) -> Convention:
        """Return how the targets of the folder are to be read."""
        return self._stored().convention if self.path else "class"

    def native(self, facts: Facts, ipc: int) -> Native:
        """Return the recipe's inference and network, else one ConvNet with BatchNorm, trained on the coreset."""
        recipe = load_coreset(self.path).recipe if self.path else None
        if recipe is not None and recipe.inference is not None and recipe.network is not None:
            return Native(recipe.inference, recipe.network)
        return Native(Ref("network"), Ref("conv-bn"))

    def skip(self, facts: Facts, ipc: int) -> str | None:
        """Return a reason to skip cells for which the coreset was not made."""
        if not self.path:
            return "file needs `path`, the folder of a coreset"
        return next(_mismatches(self._stored(), facts, ipc), None)

    def rows_per_class(self, ipc: int) -> int:
        """Return twice the images per class where mirrored copies are appended."""
        mirrored_too = self._stored().mirrored if self.mirror is None else self.mirror
        return 2 * ipc if mirrored_too else ipc

    def notes(self) -> tuple[str, ...]:
        """Return the mark of a coreset that was not made by this run."""
        return ("imported",)

    def distil(self, data: Data, ipc: int, inputs: Inputs, ctx: Context) -> Coreset:
        """Return the coreset in the space of the cell's preprocessing."""
        stored = self._stored()
        if stored.digest != self.digest:
            raise ValueError(f"{self.path} has changed since it was planned with")
        coreset = load_coreset(self.path)
        images = inputs.transform.convert(coreset.images, load_transform(self.path))
        brought = _of_classes(replace(coreset, images=images), data)
        return mirrored(brought) if (stored.mirrored if self.mirror is None else self.mirror) else brought


def _of_classes(coreset: Coreset, data: Data) -> Coreset:
    if data.train.labels is None or len(data.present) == data.facts.classes:
        return coreset
    rows = np.flatnonzero(np.isin(coreset.class_ids, data.present))
    return replace(
        coreset,
        images=coreset.images[rows],
        targets=coreset.targets[rows],
        class_ids=coreset.class_ids[rows],
        weights=None if coreset.weights is None else coreset.weights[rows],
    )


def _mismatches(stored: StoredCoreset, facts: Facts, ipc: int) -> Iterator[str]:
    if stored.classes != facts.classes:
        yield f"the file has {stored.classes} classes, the data {facts.classes}"
    if stored.shape != facts.shape:
        yield f"the file has images of {_sides(stored.shape)}, the data of {_sides(facts.shape)}"
    if stored.ipc is None:
        yield f"the file has {min(stored.counts)} to {max(stored.counts)} images per class, not {ipc} of each"
    elif stored.ipc != ipc:
        yield f"images per class: {stored.ipc} in the file, {ipc} in the suite"


def _sides(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _described(path: str) -> StoredCoreset:
    folder = Path(path)
    file = folder / "stage.json"
    status = file.stat() if file.is_file() else None
    return _cached(path, status and (status.st_mtime_ns, status.st_size, status.st_ino))


@lru_cache(maxsize=64)
def _cached(path: str, identity: tuple[int, int, int] | None) -> StoredCoreset:
    return describe_coreset(path)
