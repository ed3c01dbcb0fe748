"""The evaluators `posterior` and `linear-posterior`: their formulas, and what they ask the harness for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from scipy.special import log_softmax
from torch.distributions import MultivariateNormal, kl_divergence

from bpcbench.errors import UserError
from bpcbench.planning.plan import Plan, make
from bpcbench.planning.stages import PredictStage
from bpcbench.records import (
    Coreset,
    Data,
    EvaluatorInputs,
    Facts,
    Predictions,
    PrerequisiteOutput,
    Ref,
    Split,
    SplitRef,
    Transform,
)
from bpcbench.registry.discovery import Registry
from bpcbench.suite.files import load
from bpcbench.testing import EvaluatorConformance, Scale, toy_coreset, toy_data, toy_inputs
from bpcbench_evaluators.linear_posterior import Gaussian, LinearMoments, LinearPosterior, Moments
from bpcbench_evaluators.posterior import Posterior, agreement, total_variation
from bpcbench_torch.samplers import HMCInference, SGHMCInference

FACTS = Facts(shape=(1, 8, 8), classes=3, sizes={"train": 90, "test": 90})


def predicted(seed: int, labels: Any = None, rows: int = 50) -> Predictions:
    logits = np.random.default_rng(seed).normal(0, 2, (rows, 3))
    return Predictions(log_softmax(logits, 1).astype(np.float32), labels)


def inputs(reference: Predictions) -> EvaluatorInputs:
    return EvaluatorInputs(Transform(Scale(), {}), reference={SplitRef(): reference})


def test_agreement_and_total_variation_by_hand() -> None:
    p = np.log([[0.7, 0.2, 0.1], [0.1, 0.5, 0.4]]).astype(np.float32)
    q = np.log([[0.5, 0.2, 0.3], [0.3, 0.3, 0.4]]).astype(np.float32)
    assert agreement(p, q) == 0.5
    assert total_variation(p, q) == pytest.approx((0.2 + 0.2) / 2)
    certain = np.array([[0.0, -np.inf], [-np.inf, 0.0]], np.float32)
    assert total_variation(certain, certain[::-1]) == 1.0
    assert agreement(certain, certain[::-1]) == 0.0


def test_total_variation_is_a_distance_of_probabilities() -> None:
    a, b, c = (predicted(seed).log_probs for seed in range(3))
    assert total_variation(a, a) == 0
    assert 0 < total_variation(a, b) == total_variation(b, a) < 1
    assert total_variation(a, c) <= total_variation(a, b) + total_variation(b, c)
    # The most that the probability of a set of classes differs, over all sets.
    p, q = np.exp(a), np.exp(b)
    sets = np.array([[i >> c & 1 for c in range(3)] for i in range(8)])
    assert total_variation(a, b) == pytest.approx(np.abs((p - q) @ sets.T).max(1).mean(), rel=1e-5)


def test_the_score_compares_with_the_reference() -> None:
    labels = np.arange(50) % 3
    cell, reference = predicted(0, labels), predicted(1, labels)
    found = Posterior().score({SplitRef(): cell}, inputs(reference)).metrics
    directions = {metric.name: metric.direction for metric in Posterior().metrics()}
    assert set(found) == set(directions)
    assert found["agreement"] == np.mean(cell.log_probs.argmax(1) == reference.log_probs.argmax(1))
    assert found["reference_acc"] == np.mean(reference.log_probs.argmax(1) == labels)
    same = Posterior().score({SplitRef(): cell}, inputs(cell)).metrics
    assert (same["agreement"], same["total_variation"]) == (1.0, 0.0)
    assert set(Posterior().score({SplitRef(): predicted(0)}, inputs(predicted(1))).metrics) == {
        "agreement", "total_variation"
    }  # fmt: skip
    assert directions == {
        "agreement": "higher", "total_variation": "lower", "reference_acc": None, "reference_nll": None
    }  # fmt: skip
    with pytest.raises(ValueError, match="not of the same images"):
        Posterior().score({SplitRef(): cell}, inputs(predicted(1, rows=49)))


def test_it_asks_for_all_data_under_its_inference_with_the_cells_network() -> None:
    wanted = Posterior(inference=HMCInference(leapfrog=7)).reference(FACTS)
    assert (wanted.method, wanted.inference, wanted.network) == (Ref("whole"), HMCInference(leapfrog=7), None)


def moments(data: Data) -> EvaluatorInputs:
    made = LinearMoments().make(data, toy_inputs(), None, "final")  # type: ignore[arg-type]
    return EvaluatorInputs(
        toy_inputs().transform, {"moments": PrerequisiteOutput(LinearMoments(), "", {"final": made})}
    )


def kl_of(evaluator: LinearPosterior, coreset: Coreset, had: EvaluatorInputs) -> dict[str, float]:
    return dict(evaluator.score({}, replace(had, coreset=coreset)).metrics)


class TestLinear(EvaluatorConformance):
    plugin = LinearPosterior(rho=2.0)

    def inputs(self) -> EvaluatorInputs:
        return replace(moments(toy_data()), coreset=toy_coreset())


def test_the_divergence_is_the_one_of_two_gaussians() -> None:
    rng = np.random.default_rng(0)
    images, targets = rng.normal(size=(12, 1, 2, 2)), rng.normal(size=(12, 3))
    pair = []
    for rows in (slice(0, 5), slice(0, 12)):
        inputs = np.hstack([images[rows].reshape(-1, 4), np.ones((len(images[rows]), 1))])
        covariance = np.linalg.inv(0.5 * np.eye(5) + 3 * inputs.T @ inputs)
        mean = 3 * covariance @ inputs.T @ targets[rows]
        pair.append((mean, covariance))
    whole = [
        MultivariateNormal(torch.tensor(mean.T.reshape(-1)), torch.tensor(np.kron(np.eye(3), covariance)))
        for mean, covariance in pair
    ]
    small, full = (Gaussian.posterior(Moments.of(images[:n], targets[:n]), 0.5, 3.0) for n in (5, 12))
    assert small.kl(full) == pytest.approx(float(kl_divergence(whole[0], whole[1])), rel=1e-8)
    assert full.kl(small) == pytest.approx(float(kl_divergence(whole[1], whole[0])), rel=1e-8)


def test_all_data_are_at_no_distance_from_themselves_and_repeats_count_as_weights() -> None:
    data = toy_data()
    had = moments(data)
    images = Scale().apply(data.train.images, {})
    everything = Coreset(images=images, targets=data.labels, class_ids=data.labels, classes=3)
    for value in kl_of(LinearPosterior(), everything, had).values():
        assert value == pytest.approx(0, abs=1e-6)
    third = toy_coreset(per_class=10)
    plain, weighed = (kl_of(LinearPosterior(reweigh=reweigh), third, had) for reweigh in (False, True))
    assert weighed["linear_rkl"] < plain["linear_rkl"]
    parts = Split(np.concatenate([data.train.images] * 3), np.concatenate([data.labels] * 3))
    tripled = kl_of(LinearPosterior(reweigh=True), everything, moments(Data(data.facts, parts)))
    assert tripled["linear_rkl"] == pytest.approx(0, abs=1e-6)


def test_real_targets_are_brought_to_the_scale_of_the_labels() -> None:
    had, plain = moments(toy_data()), toy_coreset()
    centred = (np.eye(3)[plain.targets] - 1 / 3) / np.sqrt(3 / 10)
    scaled = Coreset(
        images=plain.images,
        targets=(8 * centred).astype(np.float32),
        class_ids=plain.class_ids,
        classes=3,
        convention="centred",
    )
    one, other = kl_of(LinearPosterior(), plain, had), kl_of(LinearPosterior(label_scale=8.0), scaled, had)
    assert other == pytest.approx(one, rel=1e-5)
    assert kl_of(LinearPosterior(), scaled, had)["linear_rkl"] > one["linear_rkl"]


def test_wrong_options_and_a_missing_coreset_are_refused() -> None:
    with pytest.raises(ValueError, match="must be positive, got 0"):
        LinearPosterior(rho=0.0)
    with pytest.raises(ValueError, match="none is given"):
        LinearPosterior().score({}, moments(toy_data()))


SUITE: dict[str, Any] = {
    "protocol": 1,
    "datasets": ["digits"],
    "ipc": [1, 2],
    "methods": ["random", "whole"],
    "inferences": {"sghmc": {"chains": 1, "samples": 4, "burn": 1, "thin": 1}},
    "networks": {"a": {"plugin": "conv-nn", "width": 2}, "b": {"plugin": "conv-nn", "width": 3}},
    "evaluators": {
        "posterior": {"inference": {"plugin": "sghmc", "chains": 1, "samples": 4, "burn": 1, "thin": 1}},
        "linear-posterior": None,
    },
}


@pytest.fixture
def planned(registry: Registry, write_suite: Callable[..., str], tmp_path: Path) -> Callable[..., Plan]:
    def plan(**keys: Any) -> Plan:
        file = write_suite(yaml.safe_dump(SUITE | keys))
        return make(registry, load(registry, file), None, tmp_path)

    return plan


def test_references_are_shared_by_the_cells_of_a_network(planned: Callable[..., Plan]) -> None:
    plan = planned()
    predicts = [p.stage for p in plan.stages if isinstance(p.stage, PredictStage)]
    references = [stage for stage in predicts if stage.seed == "reference"]
    assert sorted(stage.network.options["width"] for stage in references) == [2, 3]
    assert len(predicts) == 2 * (2 + 1) + 2
    users = [p for p in plan.stages if references[0].id in p.stage.needs]
    assert {planned.plugin for planned in users} == {"posterior"}
    fixed = planned(evaluators={"posterior": {"network": {"plugin": "conv-nn", "width": 2}}})
    assert sum(getattr(p.stage, "seed", None) == "reference" for p in fixed.stages) == 1


def test_a_reference_that_is_not_possible_is_said(planned: Callable[..., Plan]) -> None:
    with pytest.raises(UserError, match=r"evaluators.posterior: its reference is not possible: .*width"):
        planned(evaluators={"posterior": {"network": {"plugin": "conv-nn", "width": 0}}})


def test_default_inference_is_the_papers() -> None:
    from bpcbench.registry.discovery import registry as found
    from bpcbench.registry.options import ready

    evaluator: Any = ready(found(), Posterior())
    assert isinstance(evaluator.inference, SGHMCInference)
