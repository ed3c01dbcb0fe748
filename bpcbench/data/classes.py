"""The training data of some classes only, as each step of class-incremental learning has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bpcbench.data.rows import chosen
from bpcbench.errors import UserError
from bpcbench.records import Data, Split


def of_classes(data: Data, classes: Sequence[int]) -> Data:
    """Return the images of some classes, in the order of the split; the number of all classes stays what it is."""
    if data.train.labels is None:
        raise UserError(f"data set {data.facts.name} has no training labels, so its classes cannot come in steps")
    rows = np.flatnonzero(np.isin(data.labels, list(classes)))
    facts = replace(data.facts, sizes={**data.facts.sizes, "train": len(rows)})
    return Data(facts, Split(chosen(data.train.images, rows), data.labels[rows]))
