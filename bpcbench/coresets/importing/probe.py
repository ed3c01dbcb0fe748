"""Whether an imported coreset makes sense: its values beside those of training data, and a linear probe."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bpcbench.records import Array, Coreset, Data, Transform
from bpcbench.sampling import stratified_subset

PROBED = 2000
"""Training images that are looked at."""
_RIDGE = 0.1
_FACTOR = 8.0


@dataclass(frozen=True)
class Channel:
    """The values of one channel."""

    low: float
    high: float
    mean: float
    std: float

    def __str__(self) -> str:
        return f"{self.low:.3g} to {self.high:.3g}, mean {self.mean:.3g}, std {self.std:.3g}"


@dataclass(frozen=True)
class Probe:
    """The accuracy on training images of ridge regression on a coreset, and what the images of both look like."""

    accuracy: float
    chance: float
    images: int
    training: tuple[Channel, ...]
    doubts: tuple[str, ...]


def channels(images: Array) -> tuple[Channel, ...]:
    """Return the range, mean and standard deviation of every channel."""
    planes = images.transpose(1, 0, 2, 3).reshape(images.shape[1], -1).astype(np.float64)
    return tuple(Channel(*map(float, (row.min(), row.max(), row.mean(), row.std()))) for row in planes)


def probe(coreset: Coreset, transform: Transform, data: Data) -> Probe:
    """Fit ridge regression to the pixels of a coreset and score it on some training images; compare their channels.

    In pixels, because whitened images are mostly fine structure, from which a linear model learns next to nothing.
    """
    rows = stratified_subset(data.labels, min(PROBED, len(data.train)), 0)
    raw = np.asarray(data.train.images[rows])
    images = transform.apply(raw)
    labels = data.labels[rows]
    accuracy = float((_predicted(coreset, transform.invert(coreset.images), raw / 255.0) == labels).mean())
    chance = float(np.bincount(labels).max() / len(labels))
    mine, theirs = channels(coreset.images), channels(images)
    doubts = []
    if accuracy < chance + 3 * math.sqrt(chance * (1 - chance) / len(labels)):
        doubts.append(
            "the linear probe is no better than chance: the order of axes, the labels, the order of the classes or "
            "the data set may be wrong"
        )
    for number, (own, other) in enumerate(zip(mine, theirs, strict=True)):
        if not 1 / _FACTOR < (own.std + 1e-12) / (other.std + 1e-12) < _FACTOR:
            doubts.append(
                f"channel {number} has a standard deviation of {own.std:.3g}, but training images have {other.std:.3g} "
                "in this space: the data range or the preprocessing may be wrong"
            )
            break
        if abs(own.mean - other.mean) > 3 * max(own.std, other.std):
            doubts.append(
                f"channel {number} has a mean of {own.mean:.3g}, but training images have {other.mean:.3g} in this "
                "space: the data range or the preprocessing may be wrong"
            )
            break
    return Probe(accuracy, chance, len(labels), theirs, tuple(doubts))


def _predicted(coreset: Coreset, pixels: Array, images: Array) -> Array:
    """Return the classes that kernel ridge regression with a linear kernel and an intercept predicts."""
    x = pixels.reshape(len(coreset), -1).astype(np.float64)
    y = (
        np.eye(coreset.classes)[coreset.targets]
        if coreset.convention == "class"
        else coreset.targets.astype(np.float64)
    )
    centre, middle = x.mean(0), y.mean(0)
    x = x - centre
    gram = x @ x.T
    inverse = np.ones(len(x)) if coreset.weights is None else 1.0 / np.maximum(coreset.weights, 1e-6)
    ridge = _RIDGE * (gram.trace() / len(x) or 1.0)
    dual = np.linalg.solve(gram + ridge * np.diag(inverse), y - middle)
    flat = images.reshape(len(images), -1).astype(np.float64) - centre
    return (flat @ (x.T @ dual) + middle).argmax(1)
