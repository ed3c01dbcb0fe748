"""How well numbers tell one sort of example from another: known from unknown data, right from wrong predictions.

All functions are pure and depend on the order of the numbers only, not on their scale. Plugins find them in
`bpcbench.metrics`, beside the metrics of log-probabilities.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bpcbench.records import Array

_Floats = npt.NDArray[np.float64]


def auroc(scores_in: Array, scores_out: Array) -> float:
    """Return the area under the ROC curve of telling in from out; the in-distribution examples are positive.

    P(s_in > s_out) + P(s_in = s_out) / 2, in [0, 1], 0.5 for chance, higher is better. The class taken as positive
    does not change it. Hanley and McNeil, 1982; for OOD, Hendrycks and Gimpel, ICLR 2017.
    """
    inside, outside = _checked_scores(scores_in, scores_out)
    below = np.searchsorted(outside, inside, side="left").sum()
    not_above = np.searchsorted(outside, inside, side="right").sum()
    return float(below + not_above) / (2.0 * len(inside) * len(outside))


def aupr_in(scores_in: Array, scores_out: Array) -> float:
    """Return the area under the precision-recall curve; the in-distribution examples are positive.

    Average precision sum_t (R_t - R_t-1) P_t over the distinct scores t as thresholds, without interpolation, as
    scikit-learn's `average_precision_score`. In (0, 1], n_in / (n_in + n_out) for chance, higher is better. Hendrycks
    and Gimpel, "A baseline for detecting misclassified and out-of-distribution examples", ICLR 2017.
    """
    inside, outside = _checked_scores(scores_in, scores_out)
    return _average_precision(inside, outside)


def aupr_out(scores_in: Array, scores_out: Array) -> float:
    """Return `aupr_in` with the roles changed: the out-of-distribution examples are positive, scores are negated.

    In (0, 1], n_out / (n_in + n_out) for chance, higher is better. Hendrycks and Gimpel, ICLR 2017.
    """
    inside, outside = _checked_scores(scores_in, scores_out)
    return _average_precision(-outside[::-1], -inside[::-1])


def fpr95(scores_in: Array, scores_out: Array) -> float:
    """Return the share of out-of-distribution examples taken for in at the highest threshold that keeps 95 % of in.

    The in-distribution examples are positive; an example at the threshold is taken for in. min FPR over thresholds
    with TPR >= 0.95, no interpolation; in [0, 1], lower is better. Liang et al., "ODIN", ICLR 2018.
    """
    inside, outside = _checked_scores(scores_in, scores_out)
    kept = -(-95 * len(inside) // 100)
    return float(np.mean(outside >= inside[-kept]))


def roc(scores_in: Array, scores_out: Array, points: int = 101) -> tuple[_Floats, _Floats]:
    """Return a ROC curve at evenly spaced true positive rates: these, and the false positive rates, both (points,).

    The in-distribution examples are positive; the smallest rate with which so many of them are kept, as in `fpr95`.
    """
    inside, outside = _checked_scores(scores_in, scores_out)
    kept = -(-np.arange(1, points) * len(inside) // (points - 1))
    alarms = len(outside) - np.searchsorted(outside, inside[len(inside) - kept], side="left")
    return np.linspace(0.0, 1.0, points), np.concatenate([[0.0], alarms / len(outside)])


def risk_coverage(scores: Array, correct: Array) -> tuple[_Floats, _Floats]:
    """Return the risk-coverage curve of predicting only the examples with the highest scores: coverage and risk, (n,).

    The i-th point has coverage i/n, and its risk is the share of wrong predictions among the i examples with the
    highest scores; where examples tie, the expectation over all their orders, so that the order of the split does not
    matter. `correct` (n,) says which predictions are right. Geifman and El-Yaniv, "Selective classification for deep
    neural networks", NeurIPS 2017.
    """
    right, wrong = np.asarray(scores, np.float64), ~np.asarray(correct, bool)
    if right.ndim != 1 or right.size == 0 or wrong.shape != right.shape:
        raise ValueError(f"scores and correct must have one shape (examples,), got {right.shape} and {wrong.shape}")
    refuse_nan_and_inf(right, "scores")
    order = np.argsort(-right, kind="stable")
    _, tie, sizes = np.unique(-right[order], return_inverse=True, return_counts=True)
    shared = np.bincount(tie, weights=wrong[order]) / sizes
    taken = np.arange(1, len(right) + 1)
    return taken / len(right), np.cumsum(shared[tie]) / taken


def _average_precision(positive: _Floats, negative: _Floats) -> float:
    """Return the average precision of sorted scores; only thresholds at a positive's score move the recall."""
    thresholds, gained = np.unique(positive, return_counts=True)
    hits = len(positive) - np.searchsorted(positive, thresholds, side="left")
    alarms = len(negative) - np.searchsorted(negative, thresholds, side="left")
    return float(np.sum(gained * (hits / (hits + alarms))) / len(positive))


def _checked_scores(scores_in: Array, scores_out: Array) -> tuple[_Floats, _Floats]:
    """Return both, sorted from low to high."""
    inside, outside = np.asarray(scores_in, dtype=np.float64), np.asarray(scores_out, dtype=np.float64)
    for name, scores in (("scores_in", inside), ("scores_out", outside)):
        if scores.ndim != 1 or scores.size == 0:
            raise ValueError(f"{name} must have shape (examples,) and not be empty, got {scores.shape}")
        refuse_nan_and_inf(scores, name)
    return np.sort(inside), np.sort(outside)


def refuse_nan_and_inf(values: _Floats, name: str) -> None:
    """Raise ValueError that says where the first one is."""
    wrong = np.isnan(values) | np.isposinf(values)
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(f"{name} must not hold NaN or +inf, but {int(wrong.sum())} values do, first at {where}")
