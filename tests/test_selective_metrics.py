"""Selective prediction, temperature scaling and the batch-wise NLL: against loops, torch and closed forms."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import sklearn.metrics as oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from bpcbench import metrics
from bpcbench.records import Array


def predictions(seed: int, n: int = 500, k: int = 5, heat: float = 1.0, sharpness: float = 2.0) -> tuple[Array, Array]:
    """Return log-probabilities and labels drawn from them at a temperature: tempering by `heat` makes them honest."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, sharpness, (n, k))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    scaled = logits * heat
    return scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True), labels


def risks_by_loop(scores: Array, correct: Array) -> list[float]:
    """Return the risk at every coverage, without a thought for ties."""
    order = np.argsort(-scores)
    return [1 - correct[order[:i]].mean() for i in range(1, len(scores) + 1)]


@pytest.mark.parametrize("seed", range(3))
def test_risk_coverage_is_what_a_loop_finds(seed: int) -> None:
    log_probs, labels = predictions(seed)
    confidence, correct = np.exp(log_probs).max(1), log_probs.argmax(1) == labels
    expected = risks_by_loop(confidence, correct)
    coverage, risk = metrics.selective_risk(log_probs, labels)
    np.testing.assert_allclose(risk, expected, atol=1e-12)
    np.testing.assert_allclose(coverage, np.arange(1, 501) / 500)
    assert metrics.aurc(log_probs, labels) == pytest.approx(np.mean(expected))
    # The area under the curve by the trapezoidal rule, up to the first and last half steps.
    assert metrics.aurc(log_probs, labels) == pytest.approx(
        oracle.auc([0, *coverage], [risk[0], *risk]), abs=1.01 / 500
    )
    surest = np.argsort(-confidence)
    for percent, count in ((80, 400), (90, 450), (100, 500), (1, 5)):
        expected_accuracy = oracle.accuracy_score(labels[surest[:count]], log_probs.argmax(1)[surest[:count]])
        assert metrics.accuracy_at_coverage(log_probs, labels, percent) == pytest.approx(expected_accuracy)
    assert metrics.accuracy_at_coverage(log_probs, labels, 100) == pytest.approx(metrics.accuracy(log_probs, labels))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_ties_are_the_mean_over_all_their_orders(rows: list[tuple[int, bool]]) -> None:
    scores, correct = np.array([s for s, _ in rows], float), np.array([c for _, c in rows])
    orders = [
        [1 - np.mean([correct[i] for i in order[:taken]]) for taken in range(1, len(rows) + 1)]
        for order in itertools.permutations(range(len(rows)))
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order))
    ]
    _, risk = metrics.risk_coverage(scores, correct)
    np.testing.assert_allclose(risk, np.mean(orders, axis=0), atol=1e-12)


def test_selective_prediction_of_the_best_the_worst_and_the_constant() -> None:
    correct = np.array([True] * 60 + [False] * 40)
    best, worst, none = (metrics.risk_coverage(s, correct)[1] for s in (correct * 1.0, correct * -1.0, correct * 0.0))
    np.testing.assert_allclose(none, 0.4)
    assert best[:60].tolist() == [0.0] * 60
    assert worst[39] == 1.0
    assert best[-1] == worst[-1] == pytest.approx(0.4)
    assert best.mean() < none.mean() < worst.mean()


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 40))
def test_selective_invariants(seed: int, n: int) -> None:
    log_probs, labels = predictions(seed, n, sharpness=1.0)
    log_probs = np.log(np.round(np.exp(log_probs), 1) + 0.01)  # many ties
    log_probs -= np.logaddexp.reduce(log_probs, axis=1, keepdims=True)
    order = np.random.default_rng(seed).permutation(n)
    value = metrics.aurc(log_probs, labels)
    assert 0 <= value <= 1
    assert metrics.aurc(log_probs[order], labels[order]) == value
    for percent in (80, 90):
        found = metrics.accuracy_at_coverage(log_probs, labels, percent)
        assert -1e-12 <= found <= 1 + 1e-12
        assert metrics.accuracy_at_coverage(log_probs[order], labels[order], percent) == found


@pytest.mark.parametrize("heat", [0.3, 1.0, 4.0])
def test_the_temperature_that_was_put_in_comes_out(heat: float) -> None:
    log_probs, labels = predictions(0, n=20_000, heat=heat)
    assert metrics.temperature(log_probs, labels) == pytest.approx(heat, rel=0.03)


@pytest.mark.parametrize("heat", [0.2, 3.0])
def test_the_temperature_is_the_one_torch_finds(heat: float) -> None:
    import torch

    log_probs, labels = predictions(1, n=400, heat=heat)
    logits, truth = torch.tensor(log_probs), torch.tensor(labels)
    inverse = torch.ones((), dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([inverse], lr=1.0, max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-12)

    def closure() -> torch.Tensor:
        solver.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits * inverse, truth)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    solver.step(closure)  # type: ignore[no-untyped-call]
    found = metrics.temperature(log_probs, labels)
    assert found == pytest.approx(1 / inverse.item(), rel=1e-4)
    assert metrics.nll(metrics.temper(log_probs, found), labels) == pytest.approx(closure().item(), abs=1e-9)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.floats(0.05, 20), st.integers(2, 40))
def test_no_temperature_is_better(seed: int, heat: float, n: int) -> None:
    log_probs, labels = predictions(seed, n, heat=heat)
    found = metrics.temperature(log_probs, labels)
    assert 0.01 <= found <= 100
    best = metrics.nll(metrics.temper(log_probs, found), labels)
    for other in (*np.geomspace(0.011, 99, 30), 1.0):
        assert best <= metrics.nll(metrics.temper(log_probs, other), labels) + 1e-7


def test_tempering() -> None:
    log_probs, _ = predictions(2, 50)
    np.testing.assert_allclose(metrics.temper(log_probs, 1.0), log_probs, atol=1e-12)
    flat, sharp = (np.exp(metrics.temper(log_probs, t)) for t in (1e6, 1e-2))
    np.testing.assert_allclose(flat, 0.2, atol=1e-4)
    np.testing.assert_array_equal(sharp.argmax(1), log_probs.argmax(1))
    two = metrics.temper(np.log([[0.9, 0.1]]), 2.0)
    np.testing.assert_allclose(np.exp(two), [[0.75, 0.25]])  # square roots 3 to 1
    with np.errstate(divide="ignore"):
        certain = np.log(np.array([[1.0, 0.0]]))
    np.testing.assert_array_equal(metrics.temper(certain, 3.0), certain)


def test_a_prior_keeps_the_temperature_of_faultless_predictions_away_from_zero() -> None:
    log_probs, labels = _few_sure_predictions(40)
    found = metrics.temperature(log_probs, labels, prior=1.0)
    assert metrics.temperature(log_probs, labels) < 0.1 < found
    # n log(1 + exp(-m/T)) + (log T)^2 / 2, for log-odds m, has this derivative with respect to log T.
    margin, count = 2.0, len(labels)
    slope = count * (margin / found) / (1 + np.exp(margin / found)) + np.log(found)
    assert slope == pytest.approx(0, abs=1e-3)
    many, more_labels = _few_sure_predictions(40_000)
    assert metrics.temperature(many, more_labels, prior=1.0) < found


def test_a_prior_vanishes_behind_many_examples() -> None:
    log_probs, labels = predictions(0, n=20_000, heat=3.0)
    without, with_prior = (metrics.temperature(log_probs, labels, prior=prior) for prior in (0.0, 1.0))
    assert with_prior == pytest.approx(without, rel=1e-3)
    assert with_prior != without


def _few_sure_predictions(count: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 2
    logits = np.where(np.arange(2) == labels[:, None], 1.0, -1.0)
    return logits - np.logaddexp(1.0, -1.0), labels


def test_temperatures_at_the_edges() -> None:
    log_probs = np.log(np.array([[0.6, 0.4], [0.3, 0.7]]))
    sharpest = metrics.temperature(log_probs, np.array([0, 1]))
    assert 0.01 <= sharpest < 0.1
    assert metrics.nll(metrics.temper(log_probs, sharpest), np.array([0, 1])) < 1e-12
    assert metrics.temperature(log_probs, np.array([1, 0])) == pytest.approx(100, rel=1e-3)
    assert metrics.temperature(np.full((3, 4), np.log(0.25)), np.array([0, 1, 2])) == 1.0
    with np.errstate(divide="ignore"):
        assert metrics.temperature(np.log(np.array([[1.0, 0.0]])), np.array([1])) == 1.0


def batch_nll_by_loop(likelihood: Array, batch: int) -> float:
    """Return what the reference code prints: members are averaged after the examples of a batch."""
    total = 0.0
    for start in range(0, likelihood.shape[1], batch):
        part = likelihood[:, start : start + batch]
        losses = [-member.mean() for member in part]
        total += part.shape[1] * -np.log(np.mean([np.exp(-loss) for loss in losses]))
    return total / likelihood.shape[1]


@pytest.mark.parametrize(("n", "batch"), [(300, 128), (256, 128), (100, 128), (7, 1), (9, 4)])
def test_the_batch_wise_nll_is_the_reference_codes(n: int, batch: int) -> None:
    likelihood = -np.random.default_rng(n).gamma(1.0, 1.0, (6, n))
    assert metrics.batch_nll(likelihood, batch) == pytest.approx(batch_nll_by_loop(likelihood, batch))
    assert metrics.batch_nll(likelihood) == metrics.batch_nll(likelihood, 128)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 30), st.integers(1, 30))
def test_the_batch_wise_nll_lies_between_those_of_the_mixture_and_of_a_member(
    seed: int, members: int, n: int, batch: int
) -> None:
    likelihood = -np.random.default_rng(seed).gamma(1.0, 2.0, (members, n))
    found = metrics.batch_nll(likelihood, batch)
    per_example = -float(np.mean(metrics.log_mean_exp(likelihood)))
    assert per_example - 1e-9 <= found <= metrics.member_nll(likelihood) + 1e-9
    assert metrics.batch_nll(likelihood, 1) == pytest.approx(per_example)
    if members == 1:
        assert found == pytest.approx(metrics.member_nll(likelihood))
    assert metrics.batch_nll(np.zeros((members, n)), batch) == 0.0


def test_a_roc_curve_passes_through_what_scikit_learn_has() -> None:
    rng = np.random.default_rng(0)
    inside, outside = np.round(rng.normal(1, 1, 203), 1), np.round(rng.normal(0, 1, 150), 1)
    kept, taken = metrics.roc(inside, outside)
    truth, scores = np.r_[np.ones(203), np.zeros(150)], np.r_[inside, outside]
    fpr, tpr, _ = oracle.roc_curve(truth, scores, drop_intermediate=False)
    for share, rate in zip(kept, taken, strict=True):
        assert rate == pytest.approx(fpr[tpr >= share - 1e-12].min())
    assert taken[95] == metrics.fpr95(inside, outside)
    assert (kept[0], taken[0], kept[-1]) == (0, 0, 1)
