"""How far a coreset is from its training data in a model whose posteriors are known exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from bpcbench.api import Context, Evaluator, Prerequisite, option
from bpcbench.records import (
    Array,
    Arrays,
    Coreset,
    Data,
    EvaluatorInputs,
    Facts,
    Inputs,
    Metric,
    Need,
    Predictions,
    Ref,
    Scores,
    SplitRef,
)
from bpcbench_torch.targets import centred_targets

Floats = npt.NDArray[np.float64]

_CHUNK = 4096
"""How many images are preprocessed at a time."""


@dataclass(frozen=True, eq=False)
class Moments:
    """All that a Gaussian linear model sees of a data set: X'X (d, d) and X'Y (d, k) of pixels and a constant."""

    gram: Floats
    cross: Floats

    @classmethod
    def of(cls, images: Array, targets: Array, weights: Array | None = None) -> Moments:
        """Return the moments of images (n, c, h, w) in network space and real targets (n, k); rows may have weights."""
        inputs = np.hstack([images.reshape(len(images), -1), np.ones((len(images), 1))]).astype(np.float64)
        counted = inputs if weights is None else inputs * weights[:, None]
        return cls(inputs.T @ counted, counted.T @ targets.astype(np.float64))

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.gram + other.gram, self.cross + other.cross)

    def times(self, factor: float) -> Moments:
        """Return the moments if every row counts so many times."""
        return Moments(factor * self.gram, factor * self.cross)


@dataclass(frozen=True, eq=False)
class Gaussian:
    """A posterior: independent N(mean_c, precision^-1) for the weights of each output c."""

    mean: Floats
    precision: Floats

    @classmethod
    def posterior(cls, moments: Moments, rho: float, gamma: float) -> Gaussian:
        """Return p(W | X, Y) for y = W'x + N(0, 1/gamma) and W ~ N(0, 1/rho): precision rho I + gamma X'X."""
        precision = rho * np.eye(len(moments.gram)) + gamma * moments.gram
        mean = np.linalg.solve(precision, gamma * moments.cross)
        return cls(np.asarray(mean, np.float64), precision)

    def kl(self, other: Gaussian) -> float:
        """Return KL(self || other) in nats, summed over the outputs.

        k/2 (tr(P2 P1^-1) - d + log det P1 - log det P2) + sum_c (m1 - m2)' P2 (m1 - m2) / 2 for precisions P1 and P2.
        """
        size, outputs = self.mean.shape
        trace = np.trace(np.linalg.solve(self.precision, other.precision))
        volume = np.linalg.slogdet(self.precision)[1] - np.linalg.slogdet(other.precision)[1]
        off = self.mean - other.mean
        nats = outputs / 2 * (trace - size + volume) + np.sum(off * (other.precision @ off)) / 2
        return max(0.0, float(nats))  # rounding may leave it just below


@dataclass(frozen=True)
class LinearMoments(Prerequisite):
    """X'X and X'Y of all preprocessed training images and their centred one-hot labels."""

    name: ClassVar[str] = "linear-moments"

    def make(self, data: Data, inputs: Inputs, ctx: Context, member: str) -> Arrays:
        """Return `gram`, `cross` and the number of `rows`."""
        parts = _parts(data, inputs)
        total = next(parts)
        for part in parts:
            total += part
        return {"gram": total.gram, "cross": total.cross, "rows": np.array(len(data.train))}


def _parts(data: Data, inputs: Inputs) -> Iterator[Moments]:
    for start in range(0, len(data.train), _CHUNK):
        rows = slice(start, start + _CHUNK)
        images, labels = inputs.transform.apply(data.train.images[rows]), data.labels[rows]
        yield Moments.of(
            images,
            centred_targets(Coreset(images=images, targets=labels, class_ids=labels, classes=data.facts.classes)),
        )


@dataclass(frozen=True)
class LinearPosterior(Evaluator):
    """The exact divergence of the posterior given the coreset from that given all training data, in a linear model.

    y = W'x + N(0, 1/gamma), W ~ N(0, 1/rho) with preprocessed pixels and a constant as x and centred labels as y;
    class numbers and probabilities are centred, real targets are divided by `label_scale`. Metrics, in nats:
    `linear_rkl` = KL(coreset || data) and `linear_fkl` = KL(data || coreset). They are 0 for the whole data and depend
    on the coreset alone, neither on the inference nor on the network.
    """

    name: ClassVar[str] = "linear-posterior"
    uses_coreset: ClassVar[bool] = True

    rho: float = option(1.0, "prior precision")
    gamma: float = option(1.0, "likelihood precision")
    reweigh: bool = option(
        False, "let every row of the coreset count (training images / total weight of the rows) times"
    )
    label_scale: float = option(1.0, "what `centred` targets are divided by: the scale of a method's own labels")

    def __post_init__(self) -> None:
        if min(self.rho, self.gamma, self.label_scale) <= 0:
            got = f"{self.rho}, {self.gamma} and {self.label_scale}"
            raise ValueError(f"rho, gamma and label_scale must be positive, got {got}")

    def prerequisites(self, facts: Facts) -> Mapping[str, Need]:
        """Return the moments of the training data."""
        return {"moments": Need(Ref("linear-moments"))}

    def score(self, predictions: Mapping[SplitRef, Predictions], inputs: EvaluatorInputs) -> Scores:
        """Return both divergences; predictions are not looked at."""
        coreset = inputs.coreset
        if coreset is None:
            raise ValueError("linear-posterior looks at the coreset, and none is given")
        (kept,) = inputs["moments"].members.values()
        scale = self.label_scale if coreset.convention == "centred" else 1.0
        rows = float(len(coreset)) if coreset.weights is None else float(coreset.weights.sum(dtype=np.float64))
        mine = Moments.of(coreset.images, centred_targets(coreset) / scale, coreset.weights)
        if self.reweigh:
            mine = mine.times(float(kept["rows"]) / rows)
        small = Gaussian.posterior(mine, self.rho, self.gamma)
        full = Gaussian.posterior(Moments(kept["gram"], kept["cross"]), self.rho, self.gamma)
        return Scores({"linear_rkl": small.kl(full), "linear_fkl": full.kl(small)})

    def metrics(self) -> tuple[Metric, ...]:
        return (
            Metric("linear_rkl", "lower", "", "KL(coreset || data), in nats"),
            Metric("linear_fkl", "lower", "", "KL(data || coreset), in nats"),
        )
