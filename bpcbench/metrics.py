"""Every metric that a table may print, defined once, on stored log-probabilities.

All functions are pure, compute in float64 per example over the whole split, and so do not depend on how predictions
were batched. `log_probs` are natural logarithms of shape (n, k), `labels` whole numbers below k of shape (n,). A
log-probability of -inf is legal, one that rounding left above 0 is read as 0. ValueError is
raised for other shapes, empty input, labels out of range, NaN, +inf, and rows that do not sum to one (logits).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from bpcbench.detection import aupr_in, aupr_out, auroc, fpr95, refuse_nan_and_inf, risk_coverage, roc
from bpcbench.records import Array, Metric

__all__ = [
    "METRICS",
    "VERSION",
    "accuracy",
    "accuracy_at_coverage",
    "aupr_in",
    "aupr_out",
    "aurc",
    "auroc",
    "batch_nll",
    "brier",
    "ece",
    "entropy",
    "fpr95",
    "log_mean_exp",
    "member_nll",
    "mutual_information",
    "nll",
    "reliability",
    "risk_coverage",
    "roc",
    "selective_risk",
    "temper",
    "temperature",
]

VERSION: int = 1
"""Bumped when a definition changes what it returns; part of the key of every score."""

METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            Metric("acc", "higher", "percent", "share of examples whose most probable class is the label"),
            Metric("nll", "lower", "", "mean negative log-likelihood, in nats"),
            Metric("brier", "lower", "", "squared errors summed over classes, 0 to 2"),
            Metric("ece", "lower", "", "expected calibration error"),
            Metric("aurc", "lower", "", "area under the risk-coverage curve"),
            Metric("acc_at_80", "higher", "percent", "accuracy of the surest 80 % of the predictions"),
            Metric("acc_at_90", "higher", "percent", "accuracy of the surest 90 % of the predictions"),
            Metric("member_nll", "lower", "", "mean NLL of a single member"),
            Metric("nll_ts", "lower", "", "NLL after temperature scaling"),
            Metric("temperature", None, "", "temperature fitted on the validation part"),
            Metric("nll_batch128", None, "", "batch-wise NLL of the reference code, never ranked"),
            Metric("auroc", "higher", "percent", "area under the ROC curve"),
            Metric("aupr_in", "higher", "percent", "average precision, own images as positives"),
            Metric("aupr_out", "higher", "percent", "average precision, other images as positives"),
            Metric("fpr95", "lower", "percent", "share of other images kept where 95 % of the own are kept"),
        )
    }
)
"""Direction, unit and meaning of each metric by the name it has in results."""

_Floats = npt.NDArray[np.float64]

# Far above the rounding of a float32 or even bfloat16 log-softmax, far below what logits passed by mistake give.
_TOLERANCE = 1e-2

_TEMPERATURES = (1e-2, 1e2)


def accuracy(log_probs: Array, labels: Array) -> float:
    """Return the share of examples whose most probable class is the label; of equally probable classes the first.

    mean_i [argmax_c p_ic = y_i], in [0, 1], higher is better.
    """
    logs, truth = _checked(log_probs, labels)
    return float(np.mean(logs.argmax(axis=1) == truth))


def nll(log_probs: Array, labels: Array) -> float:
    """Return the negative log-likelihood in nats: mean_i -log p_i(y_i), in [0, inf], lower is better.

    It is inf as soon as one label was given probability 0. A strictly proper score (Good, "Rational decisions",
    JRSS-B 1952).
    """
    logs, truth = _checked(log_probs, labels)
    return float(np.mean(-logs[np.arange(len(truth)), truth]))


def member_nll(member_log_likelihood: Array) -> float:
    """Return the mean NLL of a single member, mean_s mean_i -log p_s(y_i), from log-likelihoods of shape (members, n).

    In [0, inf], lower is better; by Jensen's inequality at least the `nll` of the averaged probabilities.
    """
    return float(np.mean(-_checked_members(member_log_likelihood)))


def batch_nll(member_log_likelihood: Array, batch: int = 128) -> float:
    """Return the NLL as reference code of Bayesian pseudo-coresets computes it, from (members, n) log-likelihoods.

    sum_b n_b/n (-log 1/S sum_s exp(mean_{i in b} log p_s(y_i))) over consecutive batches b: the members are averaged
    after the examples of a batch. In [0, inf], lower is better; at least `nll`, at most `member_nll`. It moves with
    the batch size and with the order of the split, and exists for comparison with published numbers only.
    """
    logs = _checked_members(member_log_likelihood)
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    parts = [logs[:, start : start + batch] for start in range(0, logs.shape[1], batch)]
    total = sum(part.shape[1] * log_mean_exp(part.mean(axis=1)) for part in parts)
    return 0.0 - float(total) / logs.shape[1]


def temperature(log_probs: Array, labels: Array, prior: float = 0.0) -> float:
    """Return the temperature T in [0.01, 100] at which `nll(temper(log_probs, T), labels)` is smallest.

    It is 1 where no other is better (uniform predictions, a label of probability 0), and near a bound where the NLL
    falls for ever (every label is the most probable class), unless there is a `prior`: with it, T is the most probable
    one under log T ~ N(0, 1/prior), which matters with few examples only. It has no direction. Guo et al., "On
    calibration of modern neural networks", ICML 2017.
    """
    from scipy.optimize import minimize_scalar

    logs, truth = _checked(log_probs, labels)

    def loss(log_temperature: float) -> float:
        scaled = temper(logs, float(np.exp(log_temperature)))
        return float(np.mean(-scaled[np.arange(len(truth)), truth])) + prior * log_temperature**2 / (2 * len(truth))

    if not np.isfinite(loss(0.0)):
        return 1.0
    low, high = np.log(_TEMPERATURES)
    # The NLL is convex in 1/T and has one minimum; with a prior there may be more, so a coarse grid comes first.
    grid = np.linspace(low, high, 93 if prior else 2)
    best = float(grid[np.argmin([loss(value) for value in grid])]) if prior else 0.0
    reach = float(grid[1] - grid[0])
    bounds = (max(low, best - reach), min(high, best + reach))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-7})
    # A gain within rounding does not count: for uniform predictions every temperature is as good as 1.
    return float(np.exp(found.x)) if found.fun < loss(0.0) - 1e-12 else 1.0


def temper(log_probs: Array, temperature: float) -> Array:
    """Return the predictive at a temperature T, log softmax(log p / T), in float64; 1 changes nothing."""
    logs = _checked_log_probs(log_probs)
    if not temperature > 0:
        raise ValueError(f"a temperature must be above 0, got {temperature}")
    scaled = logs / temperature
    return np.asarray(scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True))


def aurc(log_probs: Array, labels: Array) -> float:
    """Return the area under the risk-coverage curve: the mean over i of the error rate of the i surest predictions.

    In [0, 1], lower is better; confidence is the probability of the predicted class. Ties as in `risk_coverage`.
    Geifman, Uziel and El-Yaniv, "Bias-reduced uncertainty estimation for deep neural classifiers", ICLR 2019.
    """
    return float(np.mean(selective_risk(log_probs, labels)[1]))


def accuracy_at_coverage(log_probs: Array, labels: Array, percent: int) -> float:
    """Return the accuracy of the surest `percent` % of the predictions, rounded up to whole examples.

    In [0, 1], higher is better; at 100 it is `accuracy`. Ties as in `risk_coverage`. Geifman and El-Yaniv, 2017.
    """
    if not 0 < percent <= 100:
        raise ValueError(f"percent must lie in 1 ... 100, got {percent}")
    risk = selective_risk(log_probs, labels)[1]
    return float(1.0 - risk[-(-percent * len(risk) // 100) - 1])


def selective_risk(log_probs: Array, labels: Array) -> tuple[Array, Array]:
    """Return the `risk_coverage` of predictions, scored by the probability of the predicted class."""
    logs, truth = _checked(log_probs, labels)
    return risk_coverage(logs.max(axis=1), logs.argmax(axis=1) == truth)


def brier(log_probs: Array, labels: Array) -> float:
    """Return the Brier score: mean_i sum_c (p_ic - [y_i = c])^2, in [0, 2], lower is better.

    The sum over classes as in Brier, "Verification of forecasts expressed in terms of probability", 1950; for two
    classes this is twice what scikit-learn prints for a binary task.
    """
    logs, truth = _checked(log_probs, labels)
    errors = np.exp(logs)
    errors[np.arange(len(truth)), truth] -= 1.0
    return float(np.mean(np.sum(errors**2, axis=1)))


def ece(log_probs: Array, labels: Array, bins: int = 15) -> float:
    """Return the expected calibration error: sum_b n_b/n |acc_b - conf_b|, in [0, 1], lower is better.

    Bins as in `reliability`; L1, over the whole split. Naeini et al., AAAI 2015; Guo et al., ICML 2017.
    """
    bars = reliability(log_probs, labels, bins)
    filled = bars["count"] > 0
    gaps = np.abs(bars["accuracy"][filled] - bars["confidence"][filled])
    return float(np.sum(bars["count"][filled] * gaps) / np.sum(bars["count"]))


def reliability(log_probs: Array, labels: Array, bins: int = 15) -> Mapping[str, Array]:
    """Return the arrays of a reliability diagram over `bins` equally wide bins (l, u] of the confidence.

    The confidence is the probability of the predicted class. `edges` (bins + 1,); `confidence` and `accuracy` (bins,)
    are means over a bin's examples, NaN where it has none; `count` (bins,) int64. Guo et al., ICML 2017.
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    logs, truth = _checked(log_probs, labels)
    confidences = np.exp(logs.max(axis=1))
    correct = logs.argmax(axis=1) == truth
    edges = np.linspace(0.0, 1.0, bins + 1)
    bin_of = np.searchsorted(edges[1:-1], confidences, side="left")
    count = np.bincount(bin_of, minlength=bins)
    divisor = np.where(count > 0, count, np.nan)
    return {
        "edges": edges,
        "confidence": np.bincount(bin_of, weights=confidences, minlength=bins) / divisor,
        "accuracy": np.bincount(bin_of, weights=correct, minlength=bins) / divisor,
        "count": count.astype(np.int64),
    }


def entropy(log_probs: Array) -> Array:
    """Return the entropy of each prediction in nats, shape (n,): -sum_c p_c log p_c with 0 log 0 = 0.

    In [0, log k]; it has no direction. Shannon, "A mathematical theory of communication", 1948.
    """
    logs = _checked_log_probs(log_probs)
    probs = np.exp(logs)
    return np.asarray(0.0 - np.sum(probs * np.where(probs > 0, logs, 0.0), axis=1))


def mutual_information(predictive_log_probs: Array, expected_entropy: Array) -> Array:
    """Return the mutual information (epistemic uncertainty), shape (n,): H[mean_s p_s] - mean_s H[p_s] in nats.

    In [0, log k]; it has no direction. Rounding below 0 is read as 0; more than that means that the two arguments do
    not belong together and is an error. Depeweg et al., ICML 2018; BALD, Houlsby et al., 2011.
    """
    total = entropy(predictive_log_probs)
    expected = np.asarray(expected_entropy, dtype=np.float64)
    if expected.shape != total.shape:
        raise ValueError(f"expected_entropy must have shape {total.shape}, got {expected.shape}")
    if not np.isfinite(expected).all():
        raise ValueError("expected_entropy must be finite")
    information = total - expected
    if information.min() < -_TOLERANCE:
        row = int(information.argmin())
        raise ValueError(
            f"expected_entropy {expected[row]:.6g} of row {row} exceeds the entropy {total[row]:.6g} of its predictive"
        )
    return np.asarray(np.maximum(information, 0.0))


def log_mean_exp(member_log_probs: Array) -> Array:
    """Return the log of the average of probabilities over axis 0, log (1/S sum_s exp l_s), in float64.

    Computed relative to the largest term of each entry, so that it neither overflows nor underflows; -inf where every
    member is -inf.
    """
    logs = np.asarray(member_log_probs, dtype=np.float64)
    if logs.ndim < 1 or logs.size == 0:
        raise ValueError(f"member_log_probs must have members along axis 0, got shape {logs.shape}")
    refuse_nan_and_inf(logs, "member_log_probs")
    top = logs.max(axis=0)
    shift = np.where(np.isneginf(top), 0.0, top)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.mean(np.exp(logs - shift), axis=0)) + shift)


def _checked_members(member_log_likelihood: Array) -> _Floats:
    logs = np.asarray(member_log_likelihood, dtype=np.float64)
    if logs.ndim != 2 or logs.size == 0:
        raise ValueError(f"member_log_likelihood must have shape (members, examples), got {logs.shape}")
    refuse_nan_and_inf(logs, "member_log_likelihood")
    return np.minimum(logs, 0.0)


def _checked(log_probs: Array, labels: Array) -> tuple[_Floats, npt.NDArray[np.int64]]:
    logs = _checked_log_probs(log_probs)
    truth = np.asarray(labels)
    if truth.shape != (len(logs),):
        raise ValueError(f"labels must have shape {(len(logs),)} to fit log_probs {logs.shape}, got {truth.shape}")
    if not np.issubdtype(truth.dtype, np.integer):
        raise ValueError(f"labels must be whole numbers, got {truth.dtype}")
    if truth.min() < 0 or truth.max() >= logs.shape[1]:
        raise ValueError(f"labels must lie in 0 ... {logs.shape[1] - 1}, got {truth.min()} ... {truth.max()}")
    return logs, truth.astype(np.int64)


def _checked_log_probs(log_probs: Array) -> _Floats:
    logs = np.asarray(log_probs, dtype=np.float64)
    if logs.ndim != 2 or logs.size == 0:
        raise ValueError(f"log_probs must have shape (examples, classes) and not be empty, got {logs.shape}")
    refuse_nan_and_inf(logs, "log_probs")
    sums = np.exp(np.minimum(logs, 700.0)).sum(axis=1)
    wrong = np.abs(sums - 1.0) > _TOLERANCE
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"log_probs must be normalised, but the probabilities of row {row} sum to {sums[row]:.6g}")
    return np.minimum(logs, 0.0)
