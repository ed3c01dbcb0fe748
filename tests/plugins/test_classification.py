"""The classification evaluator: the metrics it names, and what it does with members, labels and bins."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from bpcbench import metrics
from bpcbench.records import Facts, Given, Predictions, Scores, SplitRef, Transform
from bpcbench_evaluators.classification import Classification

MEMBERS = np.log(np.array([[[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]], [[0.5, 0.5], [0.1, 0.9], [0.4, 0.6]]]))
LABELS = np.array([0, 1, 0])
FACTS = Facts(shape=(1, 8, 8), classes=2, sizes={"train": 10, "test": 3})


@pytest.fixture
def nothing_given() -> Given:
    """Return what an evaluator without prerequisites gets; it must not look at it."""
    return Given(Transform(plugin=None, arrays={}))  # type: ignore[arg-type]


def scored(given: Given, sampled: bool = True, bins: int = 15) -> Scores:
    evaluator = Classification(bins=bins)
    (split,) = evaluator.splits(FACTS)
    predictions = Predictions(
        log_probs=metrics.log_mean_exp(MEMBERS).astype(np.float32),
        labels=LABELS,
        member_log_likelihood=MEMBERS[:, np.arange(3), LABELS].astype(np.float32) if sampled else None,
    )
    return evaluator.score({split: predictions}, given)


def test_metrics_by_hand(nothing_given: Given) -> None:
    result = scored(nothing_given).metrics
    assert result["acc"] == pytest.approx(2 / 3)
    assert result["nll"] == pytest.approx(-np.log(0.7 * 0.7 * 0.3) / 3)
    assert result["brier"] == pytest.approx((2 * 0.09 + 2 * 0.09 + 2 * 0.49) / 3)
    assert result["ece"] == pytest.approx(0.7 - 2 / 3)
    assert result["member_nll"] == pytest.approx(-np.log(0.9 * 0.5 * 0.2 * 0.5 * 0.9 * 0.4) / 6)
    assert set(result) == {"acc", "nll", "brier", "ece", "member_nll"}


def test_an_inference_without_members_has_no_member_nll(nothing_given: Given) -> None:
    assert set(scored(nothing_given, sampled=False).metrics) == {"acc", "nll", "brier", "ece"}


def test_arrays_follow_the_bins_and_become_a_figure(nothing_given: Given) -> None:
    result = scored(nothing_given, bins=4)
    assert {name: array.shape for name, array in result.arrays.items()} == {
        "edges": (5,), "confidence": (4,), "accuracy": (4,), "count": (4,)
    }  # fmt: skip
    assert result.arrays["count"].tolist() == [0, 0, 3, 0]
    figures = Classification().figures(result.arrays)
    assert list(figures) == ["reliability"]
    assert Image.open(io.BytesIO(figures["reliability"])).format == "PNG"


def test_ece_uses_the_bins(nothing_given: Given) -> None:
    log_probs = np.log(np.array([[0.6, 0.4], [0.9, 0.1]]))
    predictions = {SplitRef(): Predictions(log_probs=log_probs, labels=np.array([1, 0]))}
    assert Classification(bins=1).score(predictions, nothing_given).metrics["ece"] == pytest.approx(0.25)
    assert Classification(bins=10).score(predictions, nothing_given).metrics["ece"] == pytest.approx(0.35)


def test_a_split_without_labels_is_refused(nothing_given: Given) -> None:
    unlabelled = Predictions(log_probs=np.zeros((2, 1)), labels=None)
    with pytest.raises(ValueError, match="with labels"):
        Classification().score({SplitRef(): unlabelled}, nothing_given)


def test_every_metric_has_a_direction(nothing_given: Given) -> None:
    directions = {name: Classification().higher_is_better(name) for name in scored(nothing_given).metrics}
    assert directions == {"acc": True, "nll": False, "brier": False, "ece": False, "member_nll": False}
    assert Classification().higher_is_better("edges") is None


def test_it_is_its_own_configuration() -> None:
    assert (Classification.name, Classification.version, Classification().bins) == ("classification", 1, 15)
    with pytest.raises(AttributeError):
        Classification().bins = 3  # type: ignore[misc]
