"""Loading the splits of a data set; `validation` is a fixed, stratified tenth of train, held out on request."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from bpcbench.api import Dataset
from bpcbench.errors import UserError, unknown
from bpcbench.records import Data, Facts, Split
from bpcbench.sampling import stratified_holdout

VALIDATION = "validation"
VALIDATION_FRACTION = 0.1
VALIDATION_SEED = 0


def load_split(dataset: Dataset, root: Path, split: str, *, holdout: bool = False) -> Split:
    """Return a split; with `holdout`, train is without the validation part."""
    if split != VALIDATION and not (split == "train" and holdout):
        sizes = dataset.facts(root).sizes
        if split not in sizes:
            raise UserError(f"data set {dataset.name}: {unknown('split', split, [*sizes, VALIDATION])}")
        return _checked(dataset, split, dataset.load(root, split), dataset.facts(root))
    train = _checked(dataset, "train", dataset.load(root, "train"), dataset.facts(root))
    if train.labels is None:
        raise UserError(f"data set {dataset.name} has no training labels, so no validation split can be held out")
    kept, held = stratified_holdout(train.labels, VALIDATION_FRACTION, VALIDATION_SEED)
    chosen = held if split == VALIDATION else kept
    return Split(train.images[chosen], train.labels[chosen])


def training_data(dataset: Dataset, root: Path, *, holdout: bool) -> Data:
    """Return what a method may see: the training split only."""
    train = load_split(dataset, root, "train", holdout=holdout)
    facts = dataset.facts(root)
    return Data(dataclasses.replace(facts, sizes={**facts.sizes, "train": len(train)}), train)


def planning_facts(dataset: Dataset, root: Path, *, holdout: bool) -> Facts:
    """Return the facts as a plan needs them, without reading labels; sizes after a holdout are rounded."""
    facts = dataset.facts(root)
    if not holdout:
        return facts
    train = facts.sizes["train"] - round(VALIDATION_FRACTION * facts.sizes["train"])
    return dataclasses.replace(facts, sizes={**facts.sizes, "train": train})


def _checked(dataset: Dataset, name: str, split: Split, facts: Facts) -> Split:
    """Raise ValueError unless a data set keeps its contract."""
    if split.images.dtype != np.uint8 or split.images.shape[1:] != facts.shape:
        raise ValueError(
            f"data set {dataset.name}, split {name}: images must be uint8 (n, {', '.join(map(str, facts.shape))}), "
            f"got {split.images.dtype} {split.images.shape}"
        )
    labels = split.labels
    if labels is not None:
        if labels.shape != (len(split),):
            raise ValueError(f"data set {dataset.name}, split {name}: {len(split)} images but labels {labels.shape}")
        if len(labels) and (labels.min() < 0 or labels.max() >= facts.classes):
            raise ValueError(
                f"data set {dataset.name}, split {name}: labels must lie in 0 ... {facts.classes - 1}, "
                f"got {labels.min()} ... {labels.max()}"
            )
    return split
