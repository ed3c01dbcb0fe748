"""A row of weight 2 counts like two rows, in every inference; BatchNorm's statistics alone do not know weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bpcbench.api import Inference
from bpcbench.records import Array, Coreset
from bpcbench.registry.discovery import registry
from bpcbench.testing import Scale, context, toy_coreset, toy_data, toy_inputs
from bpcbench_distill.inference import RegressionInference
from bpcbench_distill.rcig_inference import RCIGInference
from bpcbench_evaluators.linear_posterior import Moments
from bpcbench_torch.flat import FlatNetwork
from bpcbench_torch.inferences import Ensemble, NetworkInference
from bpcbench_torch.networks import ConvNN
from bpcbench_torch.potential import CoresetPotential, Prior
from bpcbench_torch.samplers import HMCInference, SGHMCInference
from bpcbench_torch.targets import centred_targets
from bpcbench_torch.training import relative_weights
from bpcbench_vbpc.inference import VariationalInference

COUNTS = np.array([2, 1, 1, 3, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 4])
INFERENCES: dict[str, Inference] = {
    "network": NetworkInference(steps=15),
    "ensemble": Ensemble(steps=10, members=2),
    "vi": VariationalInference(steps=10, augmentation="none"),
    "frepo": RegressionInference(steps=15, augmentation="none"),
    "rcig": RCIGInference(steps=15, augmentation="none", loops="nominal", lr=3e-3, warmup=1),
    "sghmc": SGHMCInference(chains=2, samples=2, burn=3, thin=2),
    "hmc": HMCInference(chains=1, samples=2, burn=2, thin=1, leapfrog=3),
}


def weighted(convention: str = "class") -> Coreset:
    coreset = toy_coreset()
    if convention == "centred":
        coreset = replace(coreset, targets=centred_targets(coreset), convention="centred")
    return replace(coreset, weights=COUNTS.astype(np.float32))


def repeated(coreset: Coreset) -> Coreset:
    rows = np.repeat(np.arange(len(coreset)), COUNTS)
    return replace(
        coreset,
        images=coreset.images[rows],
        targets=coreset.targets[rows],
        class_ids=coreset.class_ids[rows],
        weights=None,
    )


def predicted(inference: Inference, coreset: Coreset, folder: Path) -> Array:
    images = Scale().apply(toy_data(seed=1).train.images, {})
    return inference.fit(coreset, ConvNN(width=4), toy_inputs(), context(folder)).predict(images).log_probs


def test_every_inference_is_tested() -> None:
    untested = set(registry().names("inference")) - set(INFERENCES)
    assert not untested, "an inference uses the weights of a coreset, or refuses them: add it above"


@pytest.mark.parametrize("convention", ["class", "centred"])
@pytest.mark.parametrize("name", INFERENCES)
def test_a_weight_is_a_number_of_rows(name: str, convention: str, tmp_path: Path) -> None:
    coreset = weighted(convention)
    mine = predicted(INFERENCES[name], coreset, tmp_path / "a")
    theirs = predicted(INFERENCES[name], repeated(coreset), tmp_path / "b")
    plain = predicted(INFERENCES[name], replace(coreset, weights=None), tmp_path / "c")
    np.testing.assert_allclose(mine, theirs, atol=2e-3)
    assert np.abs(mine - plain).max() > 5e-3


@pytest.mark.parametrize("name", INFERENCES)
def test_equal_weights_change_at_most_the_number_of_rows(name: str, tmp_path: Path) -> None:
    coreset = replace(toy_coreset(), weights=np.ones(15, np.float32))
    mine = predicted(INFERENCES[name], coreset, tmp_path / "a")
    plain = predicted(INFERENCES[name], replace(coreset, weights=None), tmp_path / "b")
    np.testing.assert_allclose(mine, plain, atol=1e-3)


@pytest.mark.parametrize("batched", [False, True])
def test_energies_and_gradients(batched: bool) -> None:
    coreset = weighted()
    many = repeated(coreset)
    flat = FlatNetwork(ConvNN(width=4).build((1, 8, 8), 3, 0))
    theta = torch.stack([flat.initial(), 0.5 * flat.initial()])

    def potential(one: Coreset) -> Any:
        total = None if one.weights is None else float(one.weights.sum())
        images, targets = torch.tensor(one.images), torch.tensor(one.targets)
        weights = relative_weights(one, "cpu")
        return CoresetPotential(
            flat, images, targets, "class", Prior("l2", 0.1), batched=batched, weights=weights, total=total
        )(theta)

    for mine, theirs in zip(potential(coreset), potential(many), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_batches_are_unbiased_for_weights(tmp_path: Path) -> None:
    """Small batches draw rows and weights together: a row of weight 0 has no influence."""
    coreset = toy_coreset()
    odd = coreset.images.copy()
    odd[3] = 100.0
    weights = np.ones(15, np.float32)
    weights[3] = 0
    inference = NetworkInference(steps=6, batch_size=5)
    one = predicted(inference, replace(coreset, weights=weights), tmp_path / "a")
    other = predicted(inference, replace(coreset, images=odd, weights=weights), tmp_path / "b")
    np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("weights", [[-1.0] + [1.0] * 14, [np.nan] + [1.0] * 14, [0.0] * 15])
def test_impossible_weights_are_refused(weights: list[float], tmp_path: Path) -> None:
    coreset = replace(toy_coreset(), weights=np.array(weights, np.float32))
    with pytest.raises(ValueError, match="weights"):
        predicted(INFERENCES["network"], coreset, tmp_path)


def test_moments_of_the_linear_posterior() -> None:
    coreset = weighted("centred")
    many = repeated(coreset)
    mine = Moments.of(coreset.images, coreset.targets, coreset.weights)
    theirs = Moments.of(many.images, many.targets)
    np.testing.assert_allclose(mine.gram, theirs.gram, rtol=1e-6)
    np.testing.assert_allclose(mine.cross, theirs.cross, rtol=1e-6, atol=1e-6)
