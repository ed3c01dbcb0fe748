"""The base of the baselines: real or averaged training images, `ipc` per class, with hard labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bpcbench.api import Method
from bpcbench.records import Array, Coreset, Data, Facts, Inputs, Native, Ref, Resources


@dataclass(frozen=True)
class Baseline(Method):
    """A method that needs no GPU and whose native inference is plain training."""

    resources: ClassVar[Resources] = Resources()

    def native(self, facts: Facts, ipc: int) -> Native:
        """Return one ConvNet with BatchNorm, trained on the coreset."""
        return Native(Ref("network"), Ref("conv-bn"))

    def skip(self, facts: Facts, ipc: int) -> str | None:
        """Return a reason to skip if some class certainly has fewer than `ipc` images."""
        if not self.uses_ipc:
            return None
        if ipc < 1:
            return f"{self.name} needs at least 1 image per class, got {ipc}"
        # Class counts are not known here, but the smallest class is never larger than the mean.
        mean = facts.sizes["train"] // facts.classes
        if ipc > mean:
            return f"{ipc} images per class asked for, but the training data have {mean} per class on average"
        return None


def rows_by_class(data: Data, ipc: int) -> dict[int, Array]:
    """Return the training rows of every class that has any; raise ValueError if one has fewer than `ipc`."""
    rows = {label: np.flatnonzero(data.labels == label) for label in data.present}
    for label, members in rows.items():
        if len(members) < ipc:
            raise ValueError(
                f"class {label} has {len(members)} training images, fewer than the {ipc} per class asked for"
            )
    return rows


def real_images(data: Data, rows: Array, inputs: Inputs) -> Coreset:
    """Return the coreset of the given training images."""
    labels = data.labels[rows].astype(np.int64)
    images = inputs.transform.apply(data.train.images[rows])
    return Coreset(images=images, targets=labels, class_ids=labels.copy(), classes=data.facts.classes)
