"""Accuracy, likelihood, calibration and selective prediction on the evaluation split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bpcbench import metrics
from bpcbench.api import Evaluator, option
from bpcbench.figures import Curves, Figure, Reliability, Series
from bpcbench.records import Array, EvaluatorInputs, Facts, Metric, Predictions, Scores, SplitRef

_HELD_OUT = SplitRef("validation", optional=True)
NOT_HELD_OUT = (
    "nll_ts is not held out: its temperature is fitted on the validation tenth of train, which coresets were distilled "
    "with"
)
_COVERAGES = (80, 90)
_POINTS = 100


@dataclass(frozen=True)
class Classification(Evaluator):
    """How right and how honest predictions of the cell's own evaluation split are.

    Metrics: `acc`, `nll`, `brier` and `ece` of the predictive; `aurc` and `acc_at_80`, `acc_at_90` of predicting only
    where it is surest; for inferences that sample `member_nll`, the mean NLL of a single member, which by Jensen's
    inequality is at least `nll`. Figures: the reliability diagram and the risk-coverage curve.

    With `temperature`, also `nll_ts`, the NLL after dividing all log-probabilities by one `temperature`, fitted on the
    validation part of the training data with a prior log T ~ N(0, 1), without which a part that is classified without
    an error would have T = 0. Final coresets were distilled with that part, as every table says. While settings are
    chosen there is no temperature, since that part is then what is evaluated.
    With `legacy`, for inferences that sample, also `nll_batch128`, as reference code computes it.
    """

    name: ClassVar[str] = "classification"
    default: ClassVar[bool] = True
    version: ClassVar[int] = 3

    bins: int = option(15, "number of equally wide confidence bins of ECE and of the reliability diagram")
    temperature: bool = option(False, "also the NLL at a temperature fitted on the validation part", absent=False)
    legacy: bool = option(False, "also the batch-wise NLL of the reference code", absent=False)

    def splits(self, facts: Facts) -> Sequence[SplitRef]:
        """Return the evaluation split, and the one to fit the temperature on."""
        return (SplitRef(), _HELD_OUT) if self.temperature else (SplitRef(),)

    def notes(self, split: str) -> tuple[str, ...]:
        """Mark a temperature that is fitted on data of the distillation: all but that for choosing settings."""
        return (NOT_HELD_OUT,) if self.temperature and split != _HELD_OUT.split else ()

    def score(self, predictions: Mapping[SplitRef, Predictions], inputs: EvaluatorInputs) -> Scores:
        """Return the metrics of the evaluation split."""
        predicted, held_out = predictions[SplitRef()], predictions.get(_HELD_OUT)
        log_probs, labels = predicted.log_probs, _labels(predicted)
        values = {
            "acc": metrics.accuracy(log_probs, labels),
            "nll": metrics.nll(log_probs, labels),
            "brier": metrics.brier(log_probs, labels),
            "ece": metrics.ece(log_probs, labels, self.bins),
            "aurc": metrics.aurc(log_probs, labels),
            **{f"acc_at_{c}": metrics.accuracy_at_coverage(log_probs, labels, c) for c in _COVERAGES},
        }
        if held_out is not None:
            values["temperature"] = metrics.temperature(held_out.log_probs, _labels(held_out), prior=1.0)
            values["nll_ts"] = metrics.nll(metrics.temper(log_probs, values["temperature"]), labels)
        if predicted.member_log_likelihood is not None:
            values["member_nll"] = metrics.member_nll(predicted.member_log_likelihood)
            if self.legacy:
                values["nll_batch128"] = metrics.batch_nll(predicted.member_log_likelihood)
        bars = metrics.reliability(log_probs, labels, self.bins)
        names = ("edges", "count", "accuracy", "confidence")
        figures: dict[str, Figure] = {
            "reliability": Reliability(*(bars[name].tolist() for name in names)),
            "risk_coverage": _risk_coverage(log_probs, labels),
        }
        return Scores(values, figures)

    def metrics(self) -> tuple[Metric, ...]:
        always = ("acc", "nll", "brier", "ece", "aurc", *(f"acc_at_{c}" for c in _COVERAGES), "member_nll")
        fitted = ("nll_ts", "temperature") if self.temperature else ()
        names = (*always, *fitted, *(("nll_batch128",) if self.legacy else ()))
        return tuple(metrics.METRICS[name] for name in names)


def _risk_coverage(log_probs: Array, labels: Array) -> Curves:
    coverage, risk = metrics.selective_risk(log_probs, labels)
    shown = np.unique(np.linspace(0, len(risk) - 1, min(len(risk), _POINTS)).astype(np.int64))
    ends = (float(coverage[0]), float(coverage[-1]))
    series = {
        "surest first": Series(coverage[shown].tolist(), risk[shown].tolist()),
        "in any order": Series(ends, (float(risk[-1]),) * 2),
    }
    return Curves("", "coverage", "error rate", series, markers=False)


def _labels(predictions: Predictions) -> Array:
    if predictions.labels is None:
        raise ValueError("classification needs a split with labels")
    return predictions.labels
