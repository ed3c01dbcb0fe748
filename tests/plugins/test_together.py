"""Networks and chains of several evaluation seeds computed together: the numbers are those of each seed alone."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bpcbench
from bpcbench.api import Inference, Network
from bpcbench.data.splits import training_data
from bpcbench.errors import NotFinite
from bpcbench.planning.spec import Spec
from bpcbench.records import Coreset, Facts, Offer
from bpcbench.store.address import Address
from bpcbench.store.store import Store
from bpcbench.testing import InferenceConformance, context, toy_inputs
from bpcbench_data.digits import Digits
from bpcbench_torch.networks import ConvBN, ConvGN, ConvIN, ConvNN
from bpcbench_torch.samplers import SGHMCInference
from bpcbench_torch.stacked import StackedNetworks
from bpcbench_torch.training import loss_for
from bpcbench_vbpc.inference import VariationalInference

SEEDS = [3, 17, 2**32 - 5]
SHAPE = (1, 8, 8)
NETWORKS: list[Network] = [
    *(cls(width=8, order=order) for cls in (ConvBN, ConvIN, ConvGN, ConvNN) for order in ("norm-first", "conv-first")),
    ConvNN(width=8, softplus=60.0),
]


def named(network: Any) -> str:
    return f"{network.name} {network.order}"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def digits(ipc: int, *, weighted: bool = False) -> Coreset:
    """Real digits as a coreset."""
    data = training_data(Digits(), Path(), holdout=False)
    rows = np.concatenate([np.flatnonzero(data.labels == label)[:ipc] for label in range(10)])
    return Coreset(
        images=toy_inputs().transform.apply(np.asarray(data.train.images)[rows]),
        targets=data.labels[rows],
        classes=10,
        weights=np.linspace(0.5, 1.5, len(rows)).astype(np.float32) if weighted else None,
    )


def adam(model: nn.Module, images: torch.Tensor, losses: Any, steps: int = 30) -> None:
    # An epsilon above the noise of gradients that are zero: Adam makes steps of full size of it.
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, eps=1e-6)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        losses(model(images)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("network", NETWORKS, ids=named)
def test_stacked_networks_are_trained_as_each_alone(network: Network) -> None:
    """In float64, on digits: parameters, running statistics and counters of batches."""
    coreset = digits(2)
    images = torch.tensor(coreset.images).double()
    targets = torch.eye(10, dtype=torch.float64)[torch.tensor(coreset.targets)]
    models = [network.build(SHAPE, 10, seed).double() for seed in SEEDS]
    alone = [copy.deepcopy(model) for model in models]
    for model in alone:
        adam(model, images, lambda outputs: loss_for("centred", outputs, targets))
    stack = StackedNetworks(models)
    every = images.expand(len(SEEDS), *images.shape)
    adam(stack, every, lambda outputs: 0.5 * (outputs - targets).square().sum(2).mean(1))
    fresh = [network.build(SHAPE, 10, seed).double() for seed in SEEDS]
    assert all(torch.equal(a, b) for a, b in zip(models[1].parameters(), fresh[1].parameters(), strict=True))
    together = stack.eval().separated()
    assert not any(model.training for model in together)
    for wanted, found in zip(alone, together, strict=True):
        for name, value in wanted.state_dict().items():
            torch.testing.assert_close(found.state_dict()[name], value, rtol=1e-8, atol=1e-9, msg=name)
    with torch.no_grad():
        torch.testing.assert_close(together[2](images), alone[2].eval()(images), rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(stack(every)[2], alone[2](images), rtol=1e-8, atol=1e-9)


CASES: dict[str, tuple[Inference, Network, Coreset]] = {
    "vi": (VariationalInference(steps=40), ConvBN(width=8), digits(2)),
    "vi, rows and weights": (
        VariationalInference(steps=40, rows=12, statistics="settled", augmentation="paper-each"),
        ConvBN(width=8),
        digits(2, weighted=True),
    ),
    "vi, sampled": (VariationalInference(steps=40, samples=20, augmentation="none"), ConvIN(width=8), digits(1)),
    "sghmc": (SGHMCInference(burn=20, samples=4, thin=5), ConvBN(width=8), digits(2)),
    "sghmc, rows and weights": (
        SGHMCInference(chains=2, burn=20, samples=4, thin=5, batch_size=12, augmentation="dsa-grey", start="normal"),
        ConvNN(width=8),
        digits(2, weighted=True),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_seed_predicts_what_it_does_alone(tmp_path: Path, name: str) -> None:
    """In float32; seeds differ among each other by thousands of times the tolerance."""
    inference, network, coreset = CASES[name]
    inputs, images = toy_inputs(), digits(12).images
    alone = [
        inference.fit(coreset, network, inputs, context(tmp_path / f"{seed}", seed=seed)).predict(images)
        for seed in SEEDS
    ]
    ctx = context(tmp_path / "together", seed=SEEDS[0])
    fits = inference.fit_together(coreset, network, inputs, ctx, SEEDS)
    found = [fit.predict(images) for fit in fits]
    for one, other in zip(found, alone, strict=True):
        np.testing.assert_allclose(one.log_probs, other.log_probs, rtol=0, atol=1e-4)
        for extra, value in other.extras.items():
            np.testing.assert_allclose(one.extras[extra], value, rtol=1e-3)
    assert np.abs(alone[0].log_probs - alone[1].log_probs).max() > 0.1


def test_a_network_that_diverges_is_found(tmp_path: Path) -> None:
    """Whichever it is; the harness then fits each alone."""

    class Bad(ConvNN):
        def build(self, shape: tuple[int, int, int], classes: int, seed: int) -> Any:
            model = super().build(shape, classes, seed)
            if seed == SEEDS[1]:
                with torch.no_grad():
                    model.head.weight.fill_(1e30)
            return model

    inference = VariationalInference(steps=3, together=3)
    with pytest.raises(NotFinite):
        inference.fit_together(digits(1), Bad(width=4), toy_inputs(), context(tmp_path), SEEDS)


class TestVI(InferenceConformance):
    plugin = VariationalInference(steps=8, together=3)
    network = ConvBN(width=4)


class TestSGHMC(InferenceConformance):
    plugin = SGHMCInference(chains=2, burn=4, samples=4, thin=2, together=2)
    network = ConvIN(width=4)


@pytest.mark.parametrize("plugin", [VariationalInference, SGHMCInference])
def test_the_option_is_part_of_the_key_and_1_leaves_it_as_it_was(plugin: Any) -> None:
    assert "together" not in Spec.of(plugin(together=1)).options
    assert Spec.of(plugin(together=2)).options["together"] == 2
    with pytest.raises(ValueError, match="together must be at least 1"):
        plugin(together=0)


def test_samples_that_are_not_kept_cannot_be_handed_on() -> None:
    for options in ({"keep": False}, {"chunk": 4}):
        with pytest.raises(ValueError, match="together needs `keep`"):
            SGHMCInference(together=2, **options)


@pytest.mark.parametrize("plugin", [VariationalInference(), SGHMCInference(batched=True)], ids=lambda one: one.name)
def test_memory_of_several_seeds_is_predicted(plugin: Any) -> None:
    offer = Offer(Facts(shape=(3, 32, 32), classes=10, sizes={"train": 50_000}), 10, "m", "class", ConvBN(width=32))
    one, five = (plugin.peak_bytes(replace(offer, seeds=count)) for count in (1, 5))
    assert one < five < 10 * one


def test_a_suite_gives_the_same_report(tmp_path: Path) -> None:
    """From options of a suite to its table: digits, three seeds, through the runner."""
    suite = {
        "protocol": 1,
        "datasets": ["digits"],
        "ipc": [1],
        "methods": ["random"],
        "inferences": {
            "vi": {"steps": 30},
            "sghmc": {"burn": 10, "samples": 4, "thin": 3, "chains": 2},
        },
        "networks": {"conv-bn": {"width": 4}},
        "seeds": {"distil": 1, "evaluate": 3},
    }
    options: Any = {"inline": True, "track": False, "quiet": True}
    frames = []
    for count in (1, 3):
        overrides = {f"inferences.{name}.together": count for name in ("vi", "sghmc")}
        done = bpcbench.run(suite, overrides, out=tmp_path / str(count), **options)
        assert done.exit_code == 0
        frames.append(bpcbench.results(suite, overrides, out=tmp_path / str(count)))
    for count in (1, 3):
        fits = list((tmp_path / str(count)).glob("stages/predict/*/fit/stage.json"))
        assert [json.loads(fit.read_text()).get("together", 1) for fit in fits] == [count] * 6
    alone, together = frames
    assert list(alone.metric) == list(together.metric)
    # One of the 360 test images may change its class.
    np.testing.assert_allclose(together.value, alone.value, rtol=0, atol=5e-3)


@pytest.mark.parametrize("together", [1, 2])
def test_a_fit_that_another_process_stored_first_is_what_predicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """That of the other is of networks that are zero: all classes are as probable."""
    commit = Store.commit

    def late(store: Store, address: Address, meta: Any, arrays: Any, files: Any = None) -> bool:
        if address.member == "fit":
            commit(store, address, meta, {name: np.zeros_like(value) for name, value in arrays.items()}, files)
        return commit(store, address, meta, arrays, files)

    monkeypatch.setattr(Store, "commit", late)
    suite = {
        "protocol": 1,
        "datasets": ["digits"],
        "ipc": [1],
        "methods": ["random"],
        "inferences": {"sghmc": {"burn": 4, "samples": 2, "thin": 2, "chains": 1, "together": together}},
        "networks": {"conv-nn": {"width": 4}},
        "seeds": {"distil": 1, "evaluate": 2},
        "metrics": ["nll"],
    }
    assert bpcbench.run(suite, out=tmp_path, inline=True, track=False, quiet=True).exit_code == 0
    found = bpcbench.results(suite, out=tmp_path)
    np.testing.assert_allclose(found.value[found.metric == "nll"], math.log(10), rtol=1e-5)


class Eager(VariationalInference):
    """Fits seeds together unless it is told not to."""

    def seeds_together(self) -> int:
        return 2


def test_an_inference_that_fits_seeds_together_unasked_does_not_conform() -> None:
    class Conformance(InferenceConformance):
        plugin = Eager()
        network = ConvBN(width=4)

    with pytest.raises(AssertionError, match="without options"):
        Conformance().test_together_is_an_option()
