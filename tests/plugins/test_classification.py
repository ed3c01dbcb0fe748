"""The classification evaluator: the metrics it names, and what it does with members, labels and bins."""

from __future__ import annotations

import numpy as np
import pytest

from bpcbench import metrics
from bpcbench.figures import Curves, Reliability
from bpcbench.records import Facts, Inputs, Metric, Predictions, Scores, SplitRef, Transform
from bpcbench_evaluators.classification import Classification

MEMBERS = np.log(np.array([[[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]], [[0.5, 0.5], [0.1, 0.9], [0.4, 0.6]]]))
LABELS = np.array([0, 1, 0])
ALWAYS = {"acc", "nll", "brier", "ece", "aurc", "acc_at_80", "acc_at_90"}
FACTS = Facts(shape=(1, 8, 8), classes=2, sizes={"train": 10, "test": 3})


@pytest.fixture
def nothing_given() -> Inputs:
    """Return what an evaluator without prerequisites gets; it must not look at it."""
    return Inputs(Transform(plugin=None, arrays={}))  # type: ignore[arg-type]


def declared(evaluator: Classification) -> dict[str, Metric]:
    return {metric.name: metric for metric in evaluator.metrics()}


def scored(inputs: Inputs, sampled: bool = True, bins: int = 15, legacy: bool = False) -> Scores:
    evaluator = Classification(bins=bins, legacy=legacy)
    (split,) = evaluator.splits(FACTS)
    predictions = Predictions(
        log_probs=metrics.log_mean_exp(MEMBERS).astype(np.float32),
        labels=LABELS,
        member_log_likelihood=MEMBERS[:, np.arange(3), LABELS].astype(np.float32) if sampled else None,
    )
    return evaluator.score({split: predictions}, inputs)


def test_metrics_by_hand(nothing_given: Inputs) -> None:
    result = scored(nothing_given).metrics
    assert result["acc"] == pytest.approx(2 / 3)
    assert result["nll"] == pytest.approx(-np.log(0.7 * 0.7 * 0.3) / 3)
    assert result["brier"] == pytest.approx((2 * 0.09 + 2 * 0.09 + 2 * 0.49) / 3)
    assert result["ece"] == pytest.approx(0.7 - 2 / 3)
    assert result["member_nll"] == pytest.approx(-np.log(0.9 * 0.5 * 0.2 * 0.5 * 0.9 * 0.4) / 6)
    # Surest first, though all are equally sure: two of three are right, in any order.
    assert result["aurc"] == pytest.approx(1 / 3)
    assert result["acc_at_80"] == result["acc_at_90"] == pytest.approx(2 / 3)
    assert set(result) == {*ALWAYS, "member_nll"}


def test_an_inference_without_members_has_nothing_of_members(nothing_given: Inputs) -> None:
    assert set(scored(nothing_given, sampled=False, legacy=True).metrics) == ALWAYS


def test_the_legacy_nll_is_there_when_asked_for(nothing_given: Inputs) -> None:
    result = scored(nothing_given, legacy=True).metrics
    means = [np.log(0.9 * 0.5 * 0.2) / 3, np.log(0.5 * 0.9 * 0.4) / 3]
    assert result["nll_batch128"] == pytest.approx(-np.log(np.mean(np.exp(means))))
    assert result["nll"] < result["nll_batch128"] < result["member_nll"]
    assert "nll_batch128" not in declared(Classification())
    assert "nll_batch128" in declared(Classification(legacy=True))


def test_the_temperature_is_fitted_on_held_out_data(nothing_given: Inputs) -> None:
    rng = np.random.default_rng(0)

    def overconfident(n: int) -> Predictions:
        logits = rng.normal(0, 1, (n, 3))
        labels = np.array([rng.choice(3, p=np.exp(row) / np.exp(row).sum()) for row in logits])
        return Predictions(5 * logits - np.logaddexp.reduce(5 * logits, axis=1, keepdims=True), labels)

    evaluator = Classification(temperature=True)
    test, held_out = evaluator.splits(FACTS)
    assert (test, held_out) == (SplitRef(), SplitRef("validation"))
    assert held_out.optional
    predictions = {test: overconfident(300), held_out: overconfident(2000)}
    result = evaluator.score(predictions, nothing_given).metrics
    plain = Classification().score({test: predictions[test]}, nothing_given).metrics
    assert result["temperature"] == pytest.approx(5, rel=0.15)
    assert result["nll_ts"] < 0.7 * result["nll"]
    assert {name: result[name] for name in plain} == plain
    # It depends on the held-out labels and not on those of the evaluation split.
    other = Predictions(predictions[test].log_probs, (predictions[test].labels + 1) % 3)
    again = evaluator.score({**predictions, test: other}, nothing_given).metrics
    assert again["temperature"] == result["temperature"]
    assert (
        set(result) - set(plain)
        == {"temperature", "nll_ts"}
        == set(declared(evaluator)) - set(declared(Classification()))
    )


def test_without_held_out_predictions_there_is_no_temperature(nothing_given: Inputs) -> None:
    predictions = Predictions(log_probs=np.log(np.full((2, 2), 0.5)), labels=np.array([0, 1]))
    result = Classification(temperature=True).score({SplitRef(): predictions}, nothing_given).metrics
    assert set(result) == ALWAYS


def test_figures_follow_the_bins(nothing_given: Inputs) -> None:
    result = scored(nothing_given, bins=4)
    assert list(result.figures) == ["reliability", "risk_coverage"]
    bars, curves = result.figures.values()
    assert isinstance(bars, Reliability)
    assert (bars.edges, bars.count) == ((0, 0.25, 0.5, 0.75, 1), (0, 0, 3, 0))
    assert bars.ece == pytest.approx(result.metrics["ece"])
    assert isinstance(curves, Curves)
    assert curves.series["surest first"].x == pytest.approx((1 / 3, 2 / 3, 1))
    assert curves.series["in any order"].y == pytest.approx((1 / 3, 1 / 3))


def test_a_large_split_has_a_small_curve(nothing_given: Inputs) -> None:
    log_probs = np.log(np.random.default_rng(0).dirichlet(np.ones(3), 5000))
    predictions = {SplitRef(): Predictions(log_probs=log_probs, labels=np.arange(5000) % 3)}
    result = Classification().score(predictions, nothing_given)
    curves = result.figures["risk_coverage"]
    assert isinstance(curves, Curves)
    line = curves.series["surest first"]
    assert len(line.x) == 100
    assert (line.x[0], line.x[-1]) == (1 / 5000, 1)
    assert line.y[-1] == pytest.approx(1 - result.metrics["acc"])


def test_ece_uses_the_bins(nothing_given: Inputs) -> None:
    log_probs = np.log(np.array([[0.6, 0.4], [0.9, 0.1]]))
    predictions = {SplitRef(): Predictions(log_probs=log_probs, labels=np.array([1, 0]))}
    assert Classification(bins=1).score(predictions, nothing_given).metrics["ece"] == pytest.approx(0.25)
    assert Classification(bins=10).score(predictions, nothing_given).metrics["ece"] == pytest.approx(0.35)


def test_a_split_without_labels_is_refused(nothing_given: Inputs) -> None:
    unlabelled = Predictions(log_probs=np.zeros((2, 1)), labels=None)
    with pytest.raises(ValueError, match="with labels"):
        Classification().score({SplitRef(): unlabelled}, nothing_given)


def test_every_ranked_metric_has_a_direction(nothing_given: Inputs) -> None:
    metrics = declared(Classification(legacy=True, temperature=True))
    assert set(scored(nothing_given, legacy=True).metrics) == set(metrics) - {"nll_ts", "temperature"}
    higher = {name for name, metric in metrics.items() if metric.direction == "higher"}
    assert higher == {"acc", "acc_at_80", "acc_at_90"} == {n for n, m in metrics.items() if m.unit == "percent"}
    unranked = {name for name, metric in metrics.items() if metric.direction is None}
    assert unranked == {"nll_batch128", "temperature"}


def test_it_is_its_own_configuration() -> None:
    assert (Classification.name, Classification.version, Classification().bins) == ("classification", 3, 15)
    with pytest.raises(AttributeError):
        Classification().bins = 3  # type: ignore[misc]
