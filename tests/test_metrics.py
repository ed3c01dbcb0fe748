"""Metrics against scikit-learn, torchmetrics, hand-computed cases, and what must hold for any input."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import sklearn.metrics as oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from bpcbench import metrics
from bpcbench.records import Array
from bpcbench_torch.torchvision_compat import import_torchvision

SCORED: list[Callable[[Array, Array], float]] = [metrics.accuracy, metrics.nll, metrics.brier, metrics.ece]
OTHERS: list[Callable[[Array, Array], float]] = [
    metrics.aurc,
    metrics.temperature,
    lambda log_probs, labels: metrics.accuracy_at_coverage(log_probs, labels, 80),
]
SEPARATED: list[Callable[[Array, Array], float]] = [metrics.auroc, metrics.aupr_in, metrics.aupr_out, metrics.fpr95]
HALF = np.log(np.array([[0.5, 0.5]]))


@pytest.fixture(scope="module")
def torchmetrics() -> ModuleType:
    """Return torchmetrics.functional.classification, which cannot be imported before torchvision can."""
    import_torchvision()
    return importlib.import_module("torchmetrics.functional.classification")


def predictions(seed: int, n: int = 400, k: int = 7, sharpness: float = 2.0, levels: int = 0) -> tuple[Array, Array]:
    """Return log-probabilities and labels that follow them loosely; with `levels`, few distinct logits."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * sharpness
    if levels:
        logits = np.round(logits * levels) / levels
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    labels = np.array([rng.choice(k, p=p / p.sum()) for p in np.exp(0.6 * log_probs)])
    return log_probs, labels


def scores(seed: int, ties: bool, n_in: int = 203, n_out: int = 101) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    inside, outside = rng.normal(1.0, 1.0, n_in), rng.normal(0.0, 1.5, n_out)
    return (np.round(inside), np.round(outside)) if ties else (inside, outside)


def binary(inside: Array, outside: Array) -> tuple[Array, Array]:
    """Return labels (in is 1) and scores as scikit-learn wants them."""
    return np.r_[np.ones(len(inside), dtype=int), np.zeros(len(outside), dtype=int)], np.r_[inside, outside]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sharpness", [0.1, 2.0, 8.0])
def test_classification_agrees_with_scikit_learn(seed: int, sharpness: float) -> None:
    log_probs, labels = predictions(seed, sharpness=sharpness)
    probs, classes = np.exp(log_probs), np.arange(log_probs.shape[1])
    assert metrics.accuracy(log_probs, labels) == oracle.accuracy_score(labels, probs.argmax(axis=1))
    assert metrics.nll(log_probs, labels) == pytest.approx(oracle.log_loss(labels, probs, labels=classes), rel=1e-12)
    expected = oracle.brier_score_loss(labels, probs, labels=classes, scale_by_half=False)
    assert metrics.brier(log_probs, labels) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("bins", "levels"), [(1, 0), (10, 0), (15, 0), (15, 1), (40, 2)])
def test_ece_agrees_with_torchmetrics(torchmetrics: ModuleType, seed: int, bins: int, levels: int) -> None:
    import torch

    log_probs, labels = predictions(seed, levels=levels)
    probs = torch.as_tensor(np.exp(log_probs))
    expected = torchmetrics.multiclass_calibration_error(
        probs, torch.as_tensor(labels), num_classes=log_probs.shape[1], n_bins=bins, norm="l1"
    )
    # torchmetrics computes in float32.
    assert metrics.ece(log_probs, labels, bins) == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n_in", [1, 19, 20, 203])
def test_detection_agrees_with_scikit_learn(seed: int, ties: bool, n_in: int) -> None:
    inside, outside = scores(seed, ties, n_in)
    truth, score = binary(inside, outside)
    assert metrics.auroc(inside, outside) == pytest.approx(oracle.roc_auc_score(truth, score), rel=1e-12)
    expected = oracle.average_precision_score(truth, score)
    assert metrics.aupr_in(inside, outside) == pytest.approx(expected, rel=1e-12)
    expected = oracle.average_precision_score(1 - truth, -score)
    assert metrics.aupr_out(inside, outside) == pytest.approx(expected, rel=1e-12)
    fpr, tpr, _ = oracle.roc_curve(truth, score, drop_intermediate=False)
    assert metrics.fpr95(inside, outside) == pytest.approx(fpr[tpr >= 0.95].min(), rel=1e-12)


@pytest.mark.parametrize("ties", [False, True])
def test_detection_agrees_with_torchmetrics(torchmetrics: ModuleType, ties: bool) -> None:
    import torch

    inside, outside = scores(11, ties)
    truth, score = binary(inside, outside)
    # torchmetrics reads scores outside [0, 1] as logits; a squashing that keeps the order changes no result.
    squashed, target = torch.sigmoid(torch.as_tensor(score)), torch.as_tensor(truth)
    assert metrics.auroc(inside, outside) == pytest.approx(float(torchmetrics.binary_auroc(squashed, target)), abs=1e-6)
    expected = float(torchmetrics.binary_average_precision(squashed, target))
    assert metrics.aupr_in(inside, outside) == pytest.approx(expected, abs=1e-6)


def test_hand_computed_classification() -> None:
    log_probs = np.log(np.array([[0.8, 0.2], [0.4, 0.6], [0.9, 0.1], [0.5, 0.5]]))
    labels = np.array([0, 0, 1, 1])
    assert metrics.accuracy(log_probs, labels) == 0.25  # the even row goes to class 0
    assert metrics.nll(log_probs, labels) == pytest.approx(-np.log(0.8 * 0.4 * 0.1 * 0.5) / 4)
    assert metrics.brier(log_probs, labels) == pytest.approx((2 * 0.04 + 2 * 0.36 + 2 * 0.81 + 2 * 0.25) / 4)
    # Two bins: 0.5 falls into (0, 0.5] with gap 0.5; 0.8, 0.6, 0.9 into (0.5, 1] with accuracy 1/3.
    assert metrics.ece(log_probs, labels, bins=2) == pytest.approx(0.25 * 0.5 + 0.75 * (2.3 / 3 - 1 / 3))
    bars = metrics.reliability(log_probs, labels, bins=4)
    np.testing.assert_array_equal(bars["edges"], [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_array_equal(bars["count"], [0, 1, 1, 2])
    np.testing.assert_allclose(bars["confidence"], [np.nan, 0.5, 0.6, 0.85])
    np.testing.assert_allclose(bars["accuracy"], [np.nan, 0.0, 0.0, 0.5])


def test_hand_computed_detection() -> None:
    inside, outside = np.array([3.0, 2.0, 2.0, 1.0]), np.array([2.0, 0.0])
    # Pairs: 3 beats both; each 2 ties one and beats one; 1 loses one and beats one.
    assert metrics.auroc(inside, outside) == (2 + 1.5 + 1.5 + 1) / 8
    # Thresholds 3, 2, 1: recall gains 1/4, 2/4, 1/4 at precisions 1, 3/4, 4/5.
    assert metrics.aupr_in(inside, outside) == pytest.approx(0.25 + 0.5 * 0.75 + 0.25 * 0.8)
    # Positive is out, from below: 0 at precision 1, then 2 with the in-distribution 1, 2, 2 at 2/5.
    assert metrics.aupr_out(inside, outside) == pytest.approx(0.5 + 0.5 * 0.4)
    assert metrics.fpr95(inside, outside) == 0.5


def test_certain_predictions() -> None:
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.eye(3, dtype=np.float32))
    labels = np.arange(3)
    assert [metric(log_probs, labels) for metric in SCORED] == [1.0, 0.0, 0.0, 0.0]
    wrong = np.roll(labels, 1)
    assert [metric(log_probs, wrong) for metric in SCORED] == [0.0, np.inf, 2.0, 1.0]
    assert str(metrics.nll(log_probs, labels)) == "0.0"  # not -0.0
    np.testing.assert_array_equal(metrics.entropy(log_probs), np.zeros(3))


@pytest.mark.parametrize("k", [1, 2, 10, 200])
def test_uniform_predictions(k: int) -> None:
    log_probs = np.full((5, k), -np.log(k), dtype=np.float32)
    labels = np.arange(5) % k
    assert metrics.nll(log_probs, labels) == pytest.approx(np.log(k), abs=1e-6)
    assert metrics.brier(log_probs, labels) == pytest.approx(1 - 1 / k, abs=1e-6)
    np.testing.assert_allclose(metrics.entropy(log_probs), np.log(k), atol=1e-6)


def test_rounding_above_zero_is_read_as_zero() -> None:
    log_probs = np.array([[1e-6, -40.0]], dtype=np.float32)
    assert metrics.nll(log_probs, np.array([0])) == 0.0
    assert metrics.reliability(log_probs, np.array([0]))["confidence"][-1] == 1.0


def test_float32_is_read_in_float64() -> None:
    log_probs, labels = predictions(0, n=2000)
    stored = log_probs.astype(np.float32)
    assert metrics.nll(stored, labels) == metrics.nll(stored.astype(np.float64), labels)
    assert metrics.nll(stored, labels) == pytest.approx(metrics.nll(log_probs, labels), abs=1e-7)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 60), st.integers(1, 12), st.floats(0.01, 30), st.integers(0, 3))
def test_invariances_and_ranges(seed: int, n: int, k: int, sharpness: float, levels: int) -> None:
    log_probs, labels = predictions(seed, n, k, sharpness, levels)
    order = np.random.default_rng(seed).permutation(n)
    classes = np.random.default_rng(seed).permutation(k)
    for metric, top in zip(SCORED, (1, np.inf, 2, 1), strict=True):
        value = metric(log_probs, labels)
        assert 0 <= value <= top + 1e-12
        assert metric(log_probs[order], labels[order]) == pytest.approx(value, rel=1e-9, abs=1e-12)
        if metric in (metrics.nll, metrics.brier):  # the others break ties by the class number
            assert metric(log_probs[:, classes], np.argsort(classes)[labels]) == pytest.approx(value, rel=1e-9)
    assert np.all((metrics.entropy(log_probs) >= 0) & (metrics.entropy(log_probs) <= np.log(k) + 1e-9))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 60), st.integers(1, 59))
def test_splitting_into_batches_changes_nothing(seed: int, n: int, cut: int) -> None:
    log_probs, labels = predictions(seed, n, levels=2)
    cut = min(cut, n - 1)
    parts = [(log_probs[:cut], labels[:cut]), (log_probs[cut:], labels[cut:])]
    for metric in (metrics.accuracy, metrics.nll, metrics.brier):
        joined = sum(len(part[1]) * metric(*part) for part in parts) / n
        assert metric(log_probs, labels) == pytest.approx(joined, rel=1e-9, abs=1e-12)
    bars, halves = metrics.reliability(log_probs, labels), [metrics.reliability(*part) for part in parts]
    np.testing.assert_array_equal(bars["count"], halves[0]["count"] + halves[1]["count"])
    for name in ("confidence", "accuracy"):
        sums = [np.nan_to_num(each[name]) * each["count"] for each in (bars, *halves)]
        np.testing.assert_allclose(sums[0], sums[1] + sums[2], atol=1e-9)
    np.testing.assert_array_equal(
        metrics.entropy(log_probs), np.concatenate([metrics.entropy(part[0]) for part in parts])
    )


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.integers(-4, 4), min_size=1, max_size=25),
    st.lists(st.integers(-4, 4), min_size=1, max_size=25),
)
def test_detection_invariants(inside: list[int], outside: list[int]) -> None:
    a, b = np.array(inside), np.array(outside)
    for metric in SEPARATED:
        value = metric(a, b)
        assert 0 <= value <= 1
        assert metric(a[::-1], b[::-1]) == value
        assert metric(np.exp(a / 3.0), np.exp(b / 3.0)) == pytest.approx(value)  # only the order counts
    assert metrics.auroc(a, b) + metrics.auroc(b, a) == pytest.approx(1)
    assert metrics.aupr_out(a, b) == pytest.approx(metrics.aupr_in(-b, -a))
    assert metrics.auroc(a, a) == 0.5
    assert [metric(a + 9, b) for metric in SEPARATED] == [1, 1, 1, 0]


def test_scores_of_minus_infinity_are_the_lowest() -> None:
    inside, outside = np.array([1.0, 2.0]), np.array([-np.inf, -np.inf])
    assert [metric(inside, outside) for metric in SEPARATED] == [1, 1, 1, 0]


def test_log_mean_exp_is_stable() -> None:
    logs = np.array([[-1000.0, 0.0, -np.inf, -np.inf], [-1001.0, -np.inf, -np.inf, np.log(0.5)]], dtype=np.float32)
    expected = [-1000 + np.log((1 + np.exp(-1)) / 2), np.log(0.5), -np.inf, np.log(0.25)]
    np.testing.assert_allclose(metrics.log_mean_exp(logs), expected, rtol=1e-7)
    np.testing.assert_array_equal(metrics.log_mean_exp(logs[:1]), logs[0])


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(0.01, 20))
def test_averaging_members(seed: int, members: int, sharpness: float) -> None:
    each = [predictions(seed + s, n=30, sharpness=sharpness)[0] for s in range(members)]
    stacked, labels = np.stack(each), predictions(seed, n=30)[1]
    averaged = metrics.log_mean_exp(stacked)
    np.testing.assert_allclose(np.exp(averaged), np.exp(stacked).mean(axis=0), rtol=1e-9)
    expected = np.mean([metrics.entropy(log_probs) for log_probs in each], axis=0)
    information = metrics.mutual_information(averaged, expected)
    kl = np.mean(np.sum(np.exp(stacked) * (stacked - averaged), axis=2), axis=0)
    np.testing.assert_allclose(information, kl, atol=1e-9)
    assert np.all(information >= 0)
    likelihood = stacked[:, np.arange(30), labels]
    single = metrics.member_nll(likelihood)
    assert single == pytest.approx(np.mean([metrics.nll(log_probs, labels) for log_probs in each]))
    assert single >= metrics.nll(averaged, labels) - 1e-9


def test_member_nll_of_an_impossible_label_is_infinite() -> None:
    assert metrics.member_nll(np.array([[-1.0, -np.inf], [-1.0, -1.0]])) == np.inf


@pytest.mark.parametrize("metric", [*SCORED, *OTHERS])
@pytest.mark.parametrize(
    ("log_probs", "labels", "message"),
    [
        (HALF[0], [0], "examples, classes"),
        (np.empty((0, 2)), [], "not be empty"),
        (np.empty((2, 0)), [0, 0], "not be empty"),
        (HALF, [0, 1], r"labels must have shape \(1,\)"),
        (HALF, [[0]], r"labels must have shape \(1,\)"),
        (HALF, [2], r"0 \.\.\. 1, got 2"),
        (HALF, [-1], r"0 \.\.\. 1, got -1"),
        (HALF, [0.0], "whole numbers"),
        ([[np.nan, 0.0]], [0], r"NaN or \+inf.*\(0, 0\)"),
        ([[0.0, np.inf]], [0], r"NaN or \+inf.*\(0, 1\)"),
        ([[2.0, -1.0]], [0], "normalised.*row 0"),
        ([[-np.inf, -np.inf]], [0], "normalised.*sum to 0"),
        ([[1e5, -1.0]], [0], "normalised"),
    ],
)
def test_what_is_not_a_prediction_is_refused(
    metric: Callable[[Array, Array], float], log_probs: Array, labels: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        metric(np.asarray(log_probs), np.asarray(labels, dtype=None if labels else int))


@pytest.mark.parametrize("metric", SEPARATED)
@pytest.mark.parametrize(
    ("inside", "outside", "message"),
    [
        ([], [1.0], "scores_in must have shape"),
        ([1.0], [], "scores_out must have shape"),
        ([[1.0]], [1.0], "scores_in must have shape"),
        ([1.0], [1.0, np.nan], r"scores_out must not hold NaN.*\(1,\)"),
        ([np.inf], [1.0], "scores_in must not hold NaN"),
    ],
)
def test_what_is_not_a_score_is_refused(
    metric: Callable[[Array, Array], float], inside: list[float], outside: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        metric(np.asarray(inside), np.asarray(outside))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.ece(HALF, np.array([0]), bins=0), "bins must be at least 1"),
        (lambda: metrics.accuracy_at_coverage(HALF, np.array([0]), 0), "percent must lie in 1 ... 100"),
        (lambda: metrics.accuracy_at_coverage(HALF, np.array([0]), 101), "percent must lie in 1 ... 100"),
        (lambda: metrics.risk_coverage(np.array([1.0]), np.array([True, False])), "one shape"),
        (lambda: metrics.risk_coverage(np.array([np.nan]), np.array([True])), "NaN"),
        (lambda: metrics.temper(HALF, 0.0), "above 0"),
        (lambda: metrics.temper(HALF, np.nan), "above 0"),
        (lambda: metrics.batch_nll(np.array([[-1.0]]), 0), "batch must be at least 1"),
        (lambda: metrics.batch_nll(np.array([-1.0])), "members, examples"),
        (lambda: metrics.log_mean_exp(np.empty((0, 3))), "members along axis 0"),
        (lambda: metrics.log_mean_exp(np.array(0.0)), "members along axis 0"),
        (lambda: metrics.log_mean_exp(np.array([np.nan])), "NaN"),
        (lambda: metrics.member_nll(np.array([-1.0])), "members, examples"),
        (lambda: metrics.member_nll(np.array([[np.nan]])), "NaN"),
        (lambda: metrics.entropy(np.array([[np.nan, 0.0]])), "NaN"),
        (lambda: metrics.mutual_information(HALF, np.array([0.1, 0.1])), r"shape \(1,\)"),
        (lambda: metrics.mutual_information(HALF, np.array([np.inf])), "finite"),
        (lambda: metrics.mutual_information(HALF, np.array([0.9])), "0.9 of row 0 exceeds"),
    ],
)
def test_other_wrong_arguments_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_rounding_does_not_make_information_negative() -> None:
    assert metrics.mutual_information(HALF, np.array([np.log(2) + 1e-7])).tolist() == [0.0]


def test_directions_point_from_worse_to_better() -> None:
    log_probs, labels = predictions(3, sharpness=4.0)
    uniform = np.full_like(log_probs, -np.log(log_probs.shape[1]))
    calibrated = np.log(0.1 + 0.3 * np.eye(7)[labels])
    for name, metric in zip(("acc", "nll", "brier"), SCORED, strict=False):
        better = metric(calibrated, labels) > metric(uniform, labels)
        assert metrics.METRICS[name].direction == ("higher" if better else "lower")
    inside, outside = scores(3, ties=False)
    for metric in SEPARATED:
        better = metric(inside + 2, outside) > metric(inside, outside)
        assert metrics.METRICS[metric.__name__].direction == ("higher" if better else "lower")
    assert {name for name, metric in metrics.METRICS.items() if metric.direction is not None} == {
        *("acc", "nll", "member_nll", "brier", "ece", "auroc", "aupr_in", "aupr_out", "fpr95"),
        *("aurc", "acc_at_80", "acc_at_90", "nll_ts"),
    }
