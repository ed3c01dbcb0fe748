"""Accuracy, likelihood and calibration on the evaluation split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from bpcbench import figures, metrics
from bpcbench.api import Evaluator, option
from bpcbench.records import Arrays, Given, Predictions, Scores, SplitRef


@dataclass(frozen=True)
class Classification(Evaluator):
    """How right and how honest predictions of the cell's own evaluation split are.

    Metrics: `acc`, `nll`, `brier` and `ece` of the predictive, and for inferences that sample `member_nll`, the mean
    NLL of a single member, which by Jensen's inequality is at least `nll`. Arrays: those of the reliability diagram.
    """

    name: ClassVar[str] = "classification"

    bins: int = option(15, "number of equally wide confidence bins of ECE and of the reliability diagram")

    def score(self, predictions: Mapping[SplitRef, Predictions], given: Given) -> Scores:
        """Return the metrics of the only split asked for."""
        predicted = predictions[SplitRef()]
        log_probs, labels = predicted.log_probs, predicted.labels
        if labels is None:
            raise ValueError("classification needs a split with labels")
        values = {
            "acc": metrics.accuracy(log_probs, labels),
            "nll": metrics.nll(log_probs, labels),
            "brier": metrics.brier(log_probs, labels),
            "ece": metrics.ece(log_probs, labels, self.bins),
        }
        if predicted.member_log_likelihood is not None:
            values["member_nll"] = metrics.member_nll(predicted.member_log_likelihood)
        return Scores(values, metrics.reliability(log_probs, labels, self.bins))

    def metrics(self) -> tuple[str, ...]:
        return ("acc", "nll", "brier", "ece", "member_nll")

    def higher_is_better(self, metric: str) -> bool | None:
        """Return the direction that `bpcbench.metrics` gives."""
        return metrics.HIGHER_IS_BETTER.get(metric)

    def figures(self, arrays: Arrays) -> Mapping[str, bytes]:
        """Return the reliability diagram."""
        return {"reliability": figures.reliability_diagram(arrays)}
