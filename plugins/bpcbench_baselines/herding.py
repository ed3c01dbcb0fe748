"""Herding: real images whose running mean approximates the mean of their class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bpcbench.api import Context
from bpcbench.records import Array, Coreset, Data, Facts, Inputs
from bpcbench_baselines.selection import Baseline, real_images, rows_by_class


@dataclass(frozen=True)
class Herding(Baseline):
    """Greedy mean matching per class in preprocessed pixel space, without replacement.

    With mu the mean of a class, its t-th image is the argmin over the remaining images x of
    ||mu - (x + x_1 + ... + x_(t-1)) / t||; the first one wins ties. Welling, Herding dynamical weights to learn, ICML
    2009; in this form Rebuffi et al., iCaRL, CVPR 2017. The method is deterministic, and the coreset of a larger ipc
    contains that of a smaller one.
    """

    name: ClassVar[str] = "herding"
    uses_seed: ClassVar[bool] = False

    def operations(self, facts: Facts, ipc: int) -> float:
        """Return the norms of all images once, and for every selection a product of each with the residual."""
        return 2.0 * facts.sizes["train"] * math.prod(facts.shape) * (1 + ipc)

    def distil(self, data: Data, ipc: int, inputs: Inputs, ctx: Context) -> Coreset:
        """Return the selected images, in order of selection within each class."""
        chosen = []
        for rows in rows_by_class(data, ipc).values():
            points = inputs.transform.apply(data.train.images[rows]).reshape(len(rows), -1)
            chosen.append(rows[greedy_mean(points.astype(np.float64), ipc)])
        return real_images(data, np.concatenate(chosen), inputs)


def greedy_mean(points: Array, count: int) -> Array:
    """Return rows, in order of selection, whose running mean approximates the mean of all `points` (n, d)."""
    mean = points.mean(0)
    squares = np.einsum("ij,ij->i", points, points)
    residual = np.zeros_like(mean)
    chosen = np.empty(count, np.int64)
    for t in range(count):
        # ||t mu - s - x||^2 without the term common to all x; `residual` is t mu - s.
        residual += mean
        scores = squares - 2 * (points @ residual)
        scores[chosen[:t]] = np.inf
        chosen[t] = scores.argmin()
        residual -= points[chosen[t]]
    return chosen
