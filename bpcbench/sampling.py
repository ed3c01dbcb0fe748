"""Draws of training rows by class: deterministic, nested, and equal for all who ask with the same seed."""

from __future__ import annotations

import numpy as np

from bpcbench.records import Array

_HOLDOUT = 0x686F6C64
"""Keeps the draws of a holdout apart from those of `per_class` under the same seed."""
_SUBSET = 0x73756273
"""The same for subsets."""


def per_class(labels: Array, count: int, seed: int) -> Array:
    """Return the rows of `count` examples of every class that occurs, ordered by class, drawn without replacement.

    A class's rows depend on (seed, class) and on where its examples stand, on nothing else, and the rows of a smaller
    draw are the first ones of a larger draw. Raises ValueError if a class has fewer than `count` examples.
    """
    if count < 0:
        raise ValueError(f"count must not be negative, got {count}")
    drawn = []
    for label in np.unique(labels).tolist():
        rows = np.flatnonzero(labels == label)
        if len(rows) < count:
            raise ValueError(f"class {label} has {len(rows)} examples, fewer than the {count} asked for")
        drawn.append(rows[_permutation(len(rows), seed, label)[:count]])
    return np.concatenate(drawn) if drawn else np.empty(0, np.int64)


def stratified_holdout(labels: Array, fraction: float, seed: int) -> tuple[Array, Array]:
    """Return the rows kept and the rows held out, both sorted.

    Every class gives round(fraction * count) of its examples, and at least one if it has two or more.
    """
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"fraction must lie between 0 and 1, got {fraction}")
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels).tolist():
        rows = np.flatnonzero(labels == label)
        count = max(round(fraction * len(rows)), int(len(rows) > 1))
        held[rows[_permutation(len(rows), seed, label, _HOLDOUT)[:count]]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def stratified_subset(labels: Array, count: int, seed: int) -> Array:
    """Return `count` rows, sorted: every class has its share to within one row (Sainte-Laguë's apportionment).

    A smaller subset is part of a larger one. All rows are returned if there are no more than `count`.
    """
    if count < 0:
        raise ValueError(f"count must not be negative, got {count}")
    turn = np.empty(len(labels), np.float64)
    for label in np.unique(labels).tolist():
        rows = np.flatnonzero(labels == label)
        # The j-th row drawn from a class of n comes when (j + 1/2) / n of the whole has been taken.
        turn[rows[_permutation(len(rows), seed, label, _SUBSET)]] = (np.arange(len(rows)) + 0.5) / len(rows)
    return np.sort(np.lexsort((labels, turn))[:count])


def _permutation(count: int, *entropy: int) -> Array:
    # Sorted raw words instead of Generator.permutation: NumPy promises the stream of a bit generator for ever, that
    # of Generator's methods only within a version.
    return np.argsort(np.random.PCG64(entropy).random_raw(count), kind="stable")
