"""Telling data of another kind from the cell's own by what a predictive says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from bpcbench import metrics
from bpcbench.api import Evaluator, option
from bpcbench.errors import UserError
from bpcbench.figures import Curves, Series
from bpcbench.records import Array, EvaluatorInputs, Facts, Metric, Predictions, Ref, Scores, SplitRef

DEFAULT = "max_probability"
SETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cifar10": ("svhn", "tiny_imagenet", "cifar100"),
        "cifar100": ("svhn", "tiny_imagenet", "cifar10"),
        "digits": ("fashion_mnist",),
        "fashion_mnist": ("mnist",),
        "mnist": ("fashion_mnist",),
        "svhn": ("cifar10", "cifar100"),
        "tiny_imagenet": ("svhn",),
    }
)
"""What is out of distribution for a data set unless a suite says otherwise."""

METRICS: Mapping[str, Callable[[Array, Array], float]] = MappingProxyType(
    {
        "auroc": metrics.auroc,
        "aupr_in": metrics.aupr_in,
        "aupr_out": metrics.aupr_out,
        "fpr95": metrics.fpr95,
    }
)
SCORES = (DEFAULT, "entropy", "mutual_information", "variance")
_POINTS = 41
"""Steps of 2.5 %, so that a ROC curve has a point where 95 % are kept."""


@dataclass(frozen=True)
class OutOfDistribution(Evaluator):
    """How well uncertainty tells the test images of other data sets from those of the cell's own.

    Metrics: `SET/auroc`, `SET/aupr_in`, `SET/aupr_out` and `SET/fpr95` by the probability of the predicted class, with
    the cell's own images as the positive ones but for `aupr_out`; and `SET/SCORE/auroc` and so on by other scores:
    `entropy` of the predictive; `mutual_information` of prediction and parameters, for inferences that sample; and
    `variance`, the predictive variance of the logits, for inferences that have one in closed form (`vi`).

    Images of another size or with other channels are converted to those of the cell. A set that is not there is left
    out, and the table says so. Figures: the ROC curves of every set.
    """

    name: ClassVar[str] = "ood"

    sets: list[str] = option([], "names of the other data sets, without the cell's own; empty: by the cell's data set")

    def splits(self, facts: Facts) -> Sequence[SplitRef]:
        """Return the evaluation split and the test splits of the other data sets."""
        names = [name for name in dict.fromkeys(self.sets or SETS.get(facts.name, ())) if name != facts.name]
        if not names:
            raise UserError(
                f"evaluator ood: no data set is out of distribution for {facts.name!r}; name some, as in "
                "`evaluators: {ood: {sets: [svhn]}}`"
            )
        return (SplitRef(), *(SplitRef("test", Ref(name), optional=True) for name in names))

    def score(self, predictions: Mapping[SplitRef, Predictions], inputs: EvaluatorInputs) -> Scores:
        """Return every metric of every set by every score that the inference allows."""
        values: dict[str, float] = {}
        figures: dict[str, Curves] = {}
        inside = uncertainty_scores(predictions[SplitRef()])
        for ref, predicted in predictions.items():
            if ref.dataset is None:
                continue
            other, outside = ref.dataset.plugin, uncertainty_scores(predicted)
            series = {}
            for score in (name for name in SCORES if name in inside and name in outside):
                for metric, compute in METRICS.items():
                    values[_name(other, score, metric)] = compute(inside[score], outside[score])
                kept, taken = metrics.roc(inside[score], outside[score], _POINTS)
                series[score] = Series((*taken.tolist(), 1.0), (*kept.tolist(), 1.0))
            series["chance"] = Series((0, 1), (0, 1))
            labels = (f"share of {other} taken for own", "share of own images kept")
            figures[f"roc_{other}"] = Curves("", *labels, series, markers=False)
        return Scores(values, figures)

    def metrics(self) -> tuple[Metric, ...]:
        sets = dict.fromkeys(self.sets or (name for names in SETS.values() for name in names))
        return tuple(
            replace(metrics.METRICS[metric], name=_name(name, score, metric))
            for name in sets
            for score in SCORES
            for metric in METRICS
        )


def uncertainty_scores(predictions: Predictions) -> dict[str, Array]:
    """Return the scores that predictions allow, (n,) each, higher for what looks more like the known data."""
    found = {
        DEFAULT: np.minimum(predictions.log_probs.max(axis=1), 0.0),
        "entropy": -metrics.entropy(predictions.log_probs),
    }
    if predictions.expected_entropy is not None:
        found["mutual_information"] = -metrics.mutual_information(predictions.log_probs, predictions.expected_entropy)
    if "variance" in predictions.extras:
        found["variance"] = -predictions.extras["variance"]
    return found


def _name(other: str, score: str, metric: str) -> str:
    return f"{other}/{metric}" if score == DEFAULT else f"{other}/{score}/{metric}"
