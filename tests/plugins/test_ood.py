"""The evaluator `ood`: which sets it asks for, and every metric of every score against scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics as oracle
from hypothesis import given, settings
from hypothesis import strategies as st

import bpcbench
from bpcbench import Session, metrics
from bpcbench.errors import UserError
from bpcbench.figures import Curves
from bpcbench.planning.stages import ScoreStage
from bpcbench.records import Array, Facts, Inputs, Predictions, Ref, SplitRef, Transform
from bpcbench.registry.discovery import Registry
from bpcbench.running.predictions import read_predictions
from bpcbench.store.store import Store
from bpcbench.testing import EvaluatorConformance
from bpcbench_evaluators.ood import SCORES, SETS, OutOfDistribution

NOTHING = Inputs(Transform(plugin=None, arrays={}))  # type: ignore[arg-type]
OTHER = SplitRef("test", Ref("other"))


def facts(name: str) -> Facts:
    return Facts(shape=(1, 8, 8), classes=4, sizes={"train": 10, "test": 3}, name=name)


def predicted(n: int, seed: int, sharpness: float, distinct: int = 0, sampled: bool = True) -> Predictions:
    """Return predictions of three members, with a predictive variance; with `distinct`, every row is one of so many."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, sharpness, (3, n, 4))
    variance = rng.gamma(2.0, 1 / sharpness, n)
    if distinct:
        common, rows = np.random.default_rng(0), rng.integers(0, distinct, n)
        logits = common.normal(0, 2, (3, distinct, 4))[:, rows]
        variance = common.gamma(2.0, 1, distinct)[rows]
    members = logits - np.logaddexp.reduce(logits, axis=2, keepdims=True)
    return Predictions(
        log_probs=metrics.log_mean_exp(members).astype(np.float32),
        labels=None,
        expected_entropy=np.mean([metrics.entropy(m) for m in members], axis=0).astype(np.float32) if sampled else None,
        extras={"variance": variance.astype(np.float32)},
    )


def scored(own: Predictions, other: Predictions) -> dict[str, float]:
    return dict(OutOfDistribution(sets=["other"]).score({SplitRef(): own, OTHER: other}, NOTHING).metrics)


def uncertainties(p: Predictions) -> dict[str, Array]:
    """Return the scores once more, from probabilities: higher for what is less known."""
    probs = np.exp(p.log_probs.astype(np.float64))
    entropy = -np.sum(probs * np.log(probs), axis=1)
    assert p.expected_entropy is not None
    return {
        "max_probability": -probs.max(axis=1),
        "entropy": entropy,
        "mutual_information": np.maximum(entropy - p.expected_entropy, 0.0),
        "variance": p.extras["variance"].astype(np.float64),
    }


@pytest.mark.parametrize("distinct", [0, 5])
@pytest.mark.parametrize("sizes", [(300, 200), (1, 7), (40, 1)])
def test_every_metric_of_every_score_is_scikit_learns(sizes: tuple[int, int], distinct: int) -> None:
    own, other = predicted(sizes[0], 1, 3.0, distinct), predicted(sizes[1], 2, 1.0, distinct)
    found = scored(own, other)
    inside, outside = uncertainties(own), uncertainties(other)
    truth = np.r_[np.zeros(sizes[0], int), np.ones(sizes[1], int)]  # 1 is out
    for score in SCORES:
        prefix = "other/" if score == "max_probability" else f"other/{score}/"
        unknown = np.r_[inside[score], outside[score]]
        expected = {
            "auroc": oracle.roc_auc_score(truth, unknown),
            "aupr_in": oracle.average_precision_score(1 - truth, -unknown),
            "aupr_out": oracle.average_precision_score(truth, unknown),
        }
        fpr, tpr, _ = oracle.roc_curve(1 - truth, -unknown, drop_intermediate=False)
        expected["fpr95"] = fpr[tpr >= 0.95].min()
        for metric, value in expected.items():
            assert found[prefix + metric] == pytest.approx(value, abs=1e-9), (score, metric)
    assert len(found) == 4 * len(SCORES)
    assert set(found) == {metric.name for metric in OutOfDistribution(sets=["other"]).metrics()}


def test_constant_scores_are_chance() -> None:
    found = scored(predicted(30, 1, 1.0, distinct=1), predicted(10, 2, 1.0, distinct=1))
    for score in SCORES:
        prefix = "other/" if score == "max_probability" else f"other/{score}/"
        assert found[f"{prefix}auroc"] == 0.5
        assert found[f"{prefix}aupr_in"] == pytest.approx(0.75)
        assert found[f"{prefix}aupr_out"] == pytest.approx(0.25)
        assert found[f"{prefix}fpr95"] == 1.0


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 30), st.integers(0, 4))
def test_roles_and_order(seed: int, n: int, m: int, distinct: int) -> None:
    own, other = predicted(n, seed, 2.0, distinct), predicted(m, seed + 1, 1.0, distinct)
    there, back = scored(own, other), scored(other, own)
    for score in ("", "entropy/", "mutual_information/", "variance/"):
        assert there[f"other/{score}auroc"] + back[f"other/{score}auroc"] == pytest.approx(1)
    assert all(0 <= value <= 1 for value in there.values())
    order = np.random.default_rng(seed).permutation(n)
    assert own.expected_entropy is not None
    shuffled = Predictions(
        own.log_probs[order], None, None, own.expected_entropy[order], {"variance": own.extras["variance"][order]}
    )
    assert scored(shuffled, other) == there


def test_epistemic_scores_are_there_when_both_predictions_have_them() -> None:
    own, other = predicted(20, 1, 2.0), predicted(20, 2, 1.0)
    plain = Predictions(own.log_probs, own.labels)
    names = {"auroc", "aupr_in", "aupr_out", "fpr95"}
    assert set(scored(plain, other)) == {f"other/{prefix}{name}" for prefix in ("", "entropy/") for name in names}
    assert not any("mutual" in name for name in scored(own, predicted(20, 2, 1.0, sampled=False)))


def test_mutual_information_sees_what_the_mean_does_not() -> None:
    # The members agree on the known data and contradict each other on the other, with the same mean.
    agree = np.full((2, 50, 2), np.log(0.5))
    sure = np.log(np.array([[0.99, 0.01], [0.01, 0.99]]))
    contradict = np.repeat(sure[:, None], 50, axis=1)
    predictions = [
        Predictions(
            metrics.log_mean_exp(members).astype(np.float32),
            None,
            None,
            np.mean([metrics.entropy(member) for member in members], axis=0).astype(np.float32),
        )
        for members in (agree, contradict)
    ]
    found = scored(*predictions)
    assert found["other/mutual_information/auroc"] == 1.0
    assert found["other/mutual_information/fpr95"] == 0.0
    assert found["other/entropy/auroc"] == pytest.approx(0.5, abs=0.51)  # decided by rounding alone


def test_sets_follow_the_data_set_and_exclude_it() -> None:
    def names(evaluator: OutOfDistribution, name: str) -> list[str]:
        own, *others = evaluator.splits(facts(name))
        assert own == SplitRef()
        assert all(ref.split == "test" and ref.optional for ref in others)
        return [ref.dataset.plugin for ref in others if ref.dataset is not None]

    assert names(OutOfDistribution(), "cifar10") == ["svhn", "tiny_imagenet", "cifar100"]
    assert names(OutOfDistribution(), "mnist") == ["fashion_mnist"]
    assert names(OutOfDistribution(), "fashion_mnist") == ["mnist"]
    assert names(OutOfDistribution(sets=["mnist", "svhn", "mnist"]), "cifar10") == ["mnist", "svhn"]
    assert names(OutOfDistribution(sets=["mnist", "svhn"]), "mnist") == ["svhn"]
    assert not any(name in others for name, others in SETS.items())


def test_without_a_set_it_says_what_to_do() -> None:
    with pytest.raises(UserError, match=r"no data set is out of distribution for 'imagewoof'; name some, as in"):
        OutOfDistribution().splits(facts("imagewoof"))
    with pytest.raises(UserError, match="for 'mnist'"):
        OutOfDistribution(sets=["mnist"]).splits(facts("mnist"))


def test_directions_and_names() -> None:
    declared = {metric.name: metric for metric in OutOfDistribution().metrics()}
    assert declared["svhn/auroc"].direction == "higher"
    assert declared["svhn/variance/fpr95"].direction == "lower"
    assert {metric.unit for metric in declared.values()} == {"percent"}
    assert "cifar100/entropy/aupr_out" in declared
    assert "nowhere/auroc" not in declared


def test_a_picture_per_set_whose_curve_passes_through_fpr95() -> None:
    own, other = predicted(200, 1, 3.0), predicted(150, 2, 1.0)
    evaluator = OutOfDistribution(sets=["other", "another"])
    another = SplitRef("test", Ref("another"))
    found = evaluator.score({SplitRef(): own, OTHER: other, another: own}, NOTHING)
    assert set(found.figures) == {"roc_another", "roc_other"}
    curves = found.figures["roc_other"]
    assert isinstance(curves, Curves)
    assert list(curves.series) == [*SCORES, "chance"]
    for score in SCORES:
        prefix = "other/" if score == "max_probability" else f"other/{score}/"
        taken, kept = curves.series[score].x, curves.series[score].y
        assert kept[38] == pytest.approx(0.95)
        assert taken[38] == found.metrics[f"{prefix}fpr95"]
        area = np.sum(np.diff(taken) * (np.array(kept[1:]) + kept[:-1]) / 2)
        assert area == pytest.approx(found.metrics[f"{prefix}auroc"], abs=0.02)


class TestConformance(EvaluatorConformance):
    plugin = OutOfDistribution(sets=["noise"])


@dataclass(frozen=True)
class Noise(bpcbench.Dataset):
    """Colour noise of another size, with more classes than digits has."""

    name = "noise"

    def facts(self, root: Path) -> Facts:
        return Facts(shape=(3, 16, 16), classes=30, sizes={"test": 90}, notes=("generated",))

    def fingerprint(self, root: Path, split: str) -> str:
        return "1"

    def load(self, root: Path, split: str) -> bpcbench.Split:
        pixels = np.random.default_rng(0).integers(0, 256, (90, 3, 16, 16), dtype=np.uint8)
        return bpcbench.Split(pixels, np.arange(90) % 30)


def test_digits_against_noise(
    install: Callable[..., Registry], write_suite: Callable[..., str], tmp_path: Path
) -> None:
    install(Noise)
    suite = write_suite("""
protocol: 1
datasets: [digits]
ipc: [2]
methods: [random]
inferences: {vi: {steps: 5, augmentation: none}, ensemble: {steps: 5, members: 2}}
networks: {conv-bn: {width: 4}}
evaluators: {ood: {sets: [noise]}}
metrics: [noise/auroc, noise/variance/auroc, noise/mutual_information/auroc]
examples: 60
""")
    assert bpcbench.run(suite, out=tmp_path / "out", inline=True, track=False, quiet=True).exit_code == 0
    rows = Session(suite, out=tmp_path / "out").rows()
    by_inference = {row.inference: {r.metric: r.value for r in rows if r.inference == row.inference} for row in rows}
    assert set(by_inference["vi"]) ^ set(by_inference["ensemble"]) == {
        f"noise/{score}/{metric}"
        for score in ("variance", "mutual_information")
        for metric in ("auroc", "aupr_in", "aupr_out", "fpr95")
    }
    assert {row.notes for row in rows} == {
        (
            "60 of 360 test images",
            "noise: generated",
            "noise: colour made grey, resized to 8x8",
            "noise: 60 of 90 images",
        )
    }
    store = Store.open(tmp_path / "out")
    for cell in Session(suite, out=tmp_path / "out").plan().cells:
        predictions = {}
        stage = ScoreStage.from_json(store.meta(cell.scores["ood"])["stage"])
        for item in stage.predictions:
            other = item.wanted.dataset
            predictions[other and other.plugin] = read_predictions(store.read(item.address))
        assert predictions["noise"].labels is None
        inside, outside = (np.exp(predictions[name].log_probs).max(1) for name in (None, "noise"))
        expected = oracle.roc_auc_score(np.r_[np.ones(60), np.zeros(60)], np.r_[inside, outside])
        assert by_inference[cell.at.inference]["noise/auroc"] == pytest.approx(expected, abs=1e-3)  # float32 ties
