"""Accuracy, likelihood and calibration under image corruptions of growing severity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from bpcbench import metrics
from bpcbench.api import Evaluator, option
from bpcbench.errors import UserError, unknown
from bpcbench.figures import Curves, Series
from bpcbench.records import Array, EvaluatorInputs, Facts, Metric, Predictions, Ref, Scores, SplitRef

PAPER = ("gaussian_blur", "jpeg_compression", "snow", "zoom_blur", "pixelate", "defocus_blur", "motion_blur")
"""The types of the VBPC paper's table, in its order, which are also those that can be generated for any images."""
RELEASED = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "frost", "fog", "brightness", "contrast"),
    *("elastic_transform", "speckle_noise", "spatter", "saturate"),
)
"""The further types of CIFAR-10-C, for which its released files are needed."""
MEASURES = ("acc", "nll", "ece")
CLEAN, ALL, DROP = "clean", "corrupted", "corrupted/acc_drop"


@dataclass(frozen=True)
class CorruptionShift(Evaluator):
    """How accuracy and honesty fall when test images are corrupted (Hendrycks & Dietterich, 2019).

    Splits: the cell's own evaluation split and, for every type and severity, that of `cifar10c` if the cell's data set
    is CIFAR-10 and of `corrupted` if it is another one. Metrics, each as `/acc`, `/nll` and `/ece`: `clean`; `snow-3`,
    a type at a severity; `snow`, the mean over severities, which the paper's table shows; `corrupted`, the mean over
    types. `corrupted/acc_drop` is `clean/acc` - `corrupted/acc`: what is lost, whatever a method started with.
    Figures: every measure by severity, a curve per type.
    """

    name: ClassVar[str] = "corruption"

    types: list[str] = option(list(PAPER), "types of corruption; other ones than these need CIFAR-10-C's files")
    severities: list[int] = option([1, 2, 3, 4, 5], "severities that are averaged over")
    bins: int = option(15, "number of equally wide confidence bins of ECE")
    seed: int = option(0, "seed of generated corruptions")

    def __post_init__(self) -> None:
        known = (*PAPER, *RELEASED)
        for kind in self.types:
            if kind not in known:
                raise ValueError(unknown("type of corruption", kind, known))
        if not self.severities or not set(self.severities) <= {1, 2, 3, 4, 5}:
            raise ValueError(f"severities must be numbers from 1 to 5, got {self.severities}")
        for name, values in (("types", self.types), ("severities", self.severities)):
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} must be different ones and at least one, got {values}")

    def splits(self, facts: Facts) -> Sequence[SplitRef]:
        """Return the clean split and the corrupted ones; UserError for types that no one can generate."""
        if facts.name == "cifar10":
            shifted = Ref("cifar10c", {"seed": self.seed, "types": self.types})
        else:
            if wrong := [kind for kind in self.types if kind not in PAPER]:
                raise UserError(
                    f"evaluator {self.name}: {', '.join(wrong)} cannot be generated for {facts.name or 'any data set'} "
                    f"(allowed: {', '.join(PAPER)})"
                )
            shifted = Ref("corrupted", {"base": {"plugin": facts.name, **facts.options}, "seed": self.seed})
        return (SplitRef(), *(SplitRef(name, shifted) for name in self._names()))

    def score(self, predictions: Mapping[SplitRef, Predictions], inputs: EvaluatorInputs) -> Scores:
        """Return the metrics and a figure per measure."""
        shifted = {ref.split: found for ref, found in predictions.items() if ref.dataset is not None}
        clean = self._measure(predictions[SplitRef()])
        table = np.array([self._measure(shifted[name]) for name in self._names()])
        table = table.reshape(len(self.types), len(self.severities), len(MEASURES))
        values = {
            **_named(CLEAN, clean),
            **{
                name: value
                for kind, rows in zip(self.types, table, strict=True)
                for severity, row in zip(self.severities, rows, strict=True)
                for name, value in _named(f"{kind}-{severity}", row).items()
            },
            **{
                name: value
                for kind, rows in zip(self.types, table, strict=True)
                for name, value in _named(kind, rows.mean(0)).items()
            },
            **_named(ALL, table.mean((0, 1))),
        }
        values[DROP] = values[f"{CLEAN}/acc"] - values[f"{ALL}/acc"]
        return Scores(values, self._by_severity(clean, table))

    def metrics(self) -> tuple[Metric, ...]:
        names = (CLEAN, *self._names(), *self.types, ALL)
        each = (replace(metrics.METRICS[m], name=f"{name}/{m}") for name in names for m in MEASURES)
        return (*each, Metric(DROP, "lower", "percent", f"{CLEAN}/acc less {ALL}/acc"))

    def _by_severity(self, clean: Sequence[float], table: Array) -> dict[str, Curves]:
        """Return a figure per measure: a curve per type against the severity, which is 0 for the clean images."""
        order = np.argsort(self.severities)
        severities = (0, *np.sort(self.severities).tolist())
        drawn = {}
        for index, measure in enumerate(MEASURES):
            series = {
                kind: Series(severities, (clean[index], *rows[order, index].tolist()))
                for kind, rows in zip(self.types, table, strict=True)
            }
            drawn[f"{measure}_by_severity"] = Curves("", "severity (0: clean)", measure, series)
        return drawn

    def _names(self) -> list[str]:
        return [f"{kind}-{severity}" for kind in self.types for severity in self.severities]

    def _measure(self, found: Predictions) -> tuple[float, ...]:
        if found.labels is None:
            raise ValueError("corruption needs splits with labels")
        return (
            metrics.accuracy(found.log_probs, found.labels),
            metrics.nll(found.log_probs, found.labels),
            metrics.ece(found.log_probs, found.labels, self.bins),
        )


def _named(what: str, row: Sequence[float]) -> dict[str, float]:
    return {f"{what}/{measure}": float(value) for measure, value in zip(MEASURES, row, strict=True)}
