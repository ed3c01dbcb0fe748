"""Load the splits of a data set; `validation` is a fixed, stratified tenth of train, held out on request."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from bpcbench.api import Dataset
from bpcbench.data.conversion import converted
from bpcbench.data.rows import chosen
from bpcbench.errors import UserError, unknown
from bpcbench.records import Data, Facts, Split
from bpcbench.registry.options import describe
from bpcbench.sampling import stratified_holdout, stratified_subset

TRAIN = "train"
VALIDATION = "validation"
VALIDATION_FRACTION = 0.1
VALIDATION_SEED = 0
SUBSET_SEED = 0


def load_split(
    dataset: Dataset, root: Path, split: str, *, holdout: bool = False, examples: int | None = None
) -> Split:
    """Return a split; with `holdout`, train excludes the validation part.

    `examples` requests a fixed subset of that many images, in the split's order and stratified by label where there are
    labels. A split that is not larger is returned whole.
    """
    found = _load(dataset, root, split, holdout=holdout)
    if examples is None or examples >= len(found):
        return found
    labels = np.zeros(len(found), np.int64) if found.labels is None else found.labels
    rows = stratified_subset(labels, examples, SUBSET_SEED)
    return Split(chosen(found.images, rows), None if found.labels is None else found.labels[rows])


def evaluated_split(
    dataset: Dataset,
    root: Path,
    split: str,
    classes: int,
    *,
    examples: int | None = None,
    shape: tuple[int, int, int] | None = None,
) -> Split:
    """Return a split for prediction by a coreset of `classes` classes: `examples` of it, converted to `shape`.

    Labels are None if the data set has other classes than the coreset.
    """
    loaded = load_split(dataset, root, split, examples=examples)
    images = loaded.images if shape is None else converted(loaded.images, shape)
    return Split(images, loaded.labels if dataset.facts(root).classes == classes else None)


def split_size(facts: Facts, split: str) -> int:
    """Return the number of images in a split, without reading labels; for `validation` it is rounded."""
    return round(VALIDATION_FRACTION * facts.sizes[TRAIN]) if split == VALIDATION else facts.sizes[split]


def _load(dataset: Dataset, root: Path, split: str, *, holdout: bool) -> Split:
    facts = check_split(dataset, root, split)
    if split != VALIDATION and not (split == TRAIN and holdout):
        return _checked(dataset, split, dataset.load(root, split), facts)
    train = _checked(dataset, TRAIN, dataset.load(root, TRAIN), facts)
    if train.labels is None:
        raise UserError(f"data set {dataset.name} has no training labels, so no validation split can be held out")
    kept, held = stratified_holdout(train.labels, VALIDATION_FRACTION, VALIDATION_SEED)
    rows = held if split == VALIDATION else kept
    return Split(chosen(train.images, rows), train.labels[rows])


def check_split(dataset: Dataset, root: Path, split: str) -> Facts:
    """Return the facts of a data set; raise UserError if it lacks the split. `validation` is part of train."""
    return with_split(dataset, dataset.facts(root), split)


def with_split(dataset: Dataset, facts: Facts, split: str) -> Facts:
    """Return facts with the data set's name and options; raise UserError if they lack the split."""
    options = {name: value for name, value in describe(dataset).items() if name != "plugin"}
    facts = dataclasses.replace(facts, name=dataset.name, options=options)
    if (TRAIN if split == VALIDATION else split) not in facts.sizes:
        allowed = [*facts.sizes, *([VALIDATION] if TRAIN in facts.sizes else [])]
        raise UserError(f"data set {dataset.name}: {unknown('split', split, allowed)}")
    return facts


def training_data(dataset: Dataset, root: Path, *, holdout: bool) -> Data:
    """Return what a method may see: the training split only."""
    train = load_split(dataset, root, TRAIN, holdout=holdout)
    facts = check_split(dataset, root, TRAIN)
    return Data(dataclasses.replace(facts, sizes={**facts.sizes, TRAIN: len(train)}), train)


def planning_facts(facts: Facts, *, holdout: bool) -> Facts:
    """Return the facts as a plan needs them, without reading labels; sizes after a holdout are rounded."""
    if not holdout:
        return facts
    train = facts.sizes[TRAIN] - split_size(facts, VALIDATION)
    return dataclasses.replace(facts, sizes={**facts.sizes, TRAIN: train})


def _checked(dataset: Dataset, name: str, split: Split, facts: Facts) -> Split:
    """Return the split; raise ValueError if it violates the contract of data sets."""
    where = f"data set {dataset.name}, split {name}"
    if split.images.dtype != np.uint8 or split.images.shape[1:] != facts.shape:
        raise ValueError(
            f"{where}: images must be uint8 (n, {', '.join(map(str, facts.shape))}), "
            f"got {split.images.dtype} {split.images.shape}"
        )
    if len(split) != facts.sizes[name]:
        raise ValueError(f"{where}: {len(split)} images, but its facts say {facts.sizes[name]}")
    labels = split.labels
    if labels is not None:
        if labels.shape != (len(split),):
            raise ValueError(f"{where}: {len(split)} images but labels {labels.shape}")
        if labels.dtype != np.int64:
            raise ValueError(f"{where}: labels must be int64, got {labels.dtype}")
        if len(labels) and (labels.min() < 0 or labels.max() >= facts.classes):
            raise ValueError(
                f"{where}: labels must lie in 0 ... {facts.classes - 1}, got {labels.min()} ... {labels.max()}"
            )
    return split
