"""How close the predictive of a coreset is to that of all training data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bpcbench import metrics
from bpcbench.api import Evaluator, refers
from bpcbench.records import (
    Array,
    EvaluatorInputs,
    Facts,
    Metric,
    Predictions,
    Ref,
    Reference,
    Scores,
    SplitRef,
)


def agreement(log_probs: Array, reference: Array) -> float:
    """Return the share of examples for which both hold the same class to be the most probable.

    mean_i [argmax_c p_ic = argmax_c q_ic], in [0, 1], higher is better. Izmailov et al., "What are Bayesian neural
    network posteriors really like?", ICML 2021.
    """
    return float(np.mean(log_probs.argmax(1) == reference.argmax(1)))


def total_variation(log_probs: Array, reference: Array) -> float:
    """Return the mean total variation distance of predictions (n, k): mean_i sum_c |p_ic - q_ic| / 2.

    In [0, 1], lower is better; it is how far the probability of any set of classes may differ. Izmailov et al., 2021.
    """
    difference = np.exp(log_probs.astype(np.float64)) - np.exp(reference.astype(np.float64))
    return float(np.mean(np.abs(difference).sum(1)) / 2)


@dataclass(frozen=True)
class Posterior(Evaluator):
    """How close predictions are to those of the posterior given all training data, sampled by `inference`.

    Metrics: `agreement` of the most probable classes; `total_variation`; and `reference_acc` and `reference_nll`, how
    good the reference itself is. The reference is made once for every network and preprocessing and has a seed of its
    own: a cell with method `whole` and the same inference shows how far two runs of the reference are apart, which is
    the best that a coreset can be expected to reach.
    """

    name: ClassVar[str] = "posterior"

    inference: Any = refers("inference", "sghmc", "the inference that samples given all training data")
    network: Any = refers("network", None, "the network of the reference; none: that of the cell")

    def reference(self, facts: Facts) -> Reference:
        """Return all training data under the inference."""
        return Reference(Ref("whole"), self.inference, self.network)

    def score(self, predictions: Mapping[SplitRef, Predictions], inputs: EvaluatorInputs) -> Scores:
        """Return the metrics of the evaluation split."""
        predicted, reference = predictions[SplitRef()], inputs.reference[SplitRef()]
        if predicted.log_probs.shape != reference.log_probs.shape:
            raise ValueError(
                f"predictions {predicted.log_probs.shape} and those of the reference {reference.log_probs.shape} "
                "are not of the same images and classes"
            )
        values = {
            "agreement": agreement(predicted.log_probs, reference.log_probs),
            "total_variation": total_variation(predicted.log_probs, reference.log_probs),
        }
        if reference.labels is not None:
            values["reference_acc"] = metrics.accuracy(reference.log_probs, reference.labels)
            values["reference_nll"] = metrics.nll(reference.log_probs, reference.labels)
        return Scores(values)

    def metrics(self) -> tuple[Metric, ...]:
        # Those of the reference are the same for all cells, and so are not ranked.
        return (
            Metric("agreement", "higher", "", "share of examples to which both give the same class"),
            Metric("total_variation", "lower", "", "mean total variation distance"),
            Metric("reference_acc", None, "percent", "accuracy of the reference itself"),
            Metric("reference_nll", None, "", "NLL of the reference itself"),
        )
