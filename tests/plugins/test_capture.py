"""Regions that are captured once and replayed give the results of calling them.

`Replayed` does to a region on a CPU what a CUDA graph does on a GPU. It calls the function that was recorded, never the
one that is passed later, on inputs at fixed addresses, and writes its results over those of the call before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bpcbench import testing
from bpcbench.api import Method
from bpcbench.records import Coreset, Inputs, PrerequisiteOutput
from bpcbench_bpc.contrastive import Contrastive
from bpcbench_bpc.forward_kl import ForwardKL
from bpcbench_bpc.function_space import FunctionSpace
from bpcbench_bpc.method import TrajectoryMethod
from bpcbench_bpc.reverse_kl import ReverseKL
from bpcbench_bpc.trajectories import Trajectories
from bpcbench_bpc.wasserstein import Wasserstein
from bpcbench_torch import capture
from bpcbench_torch.capture import Regions
from bpcbench_torch.networks import ConvBN, ConvIN
from bpcbench_torch.samplers import HMCInference

PLAN = Trajectories(network=ConvIN(width=4), epochs=4, batch=32)
METHODS: dict[str, TrajectoryMethod] = {
    "rkl": ReverseKL(inner_steps=4, draws=4, batch=6),
    "rkl official": ReverseKL(preset="official", inner_steps=4, draws=5, batch=6, chunk=2, labels="learned"),
    "rkl together": ReverseKL(inner_steps=4, draws=7, batch=6, chunk=2, together=4),
    "fkl": ForwardKL(inner_steps=4, draws=4),
    "fkl together": ForwardKL(inner_steps=4, draws=7, chunk=2, together=5, labels="learned"),
    "fkl learned": ForwardKL(inner_steps=4, draws=3, labels="learned", augmentation="paper-each"),
    "w": Wasserstein(inner_steps=5, graphs=0),
    "w some": Wasserstein(inner_steps=5, graphs=2, labels="learned", augmentation="paper-all"),
    "w plain": Wasserstein(inner_steps=5, graphs=0, augmentation="none"),
    "cd": Contrastive(inner_steps=4, chain_noise=0.1),
    "cd official": Contrastive(preset="official", inner_steps=4, energy="logit"),
    "fbpc": FunctionSpace(inner_steps=4, points=3),
    "fbpc diagonal": FunctionSpace(inner_steps=4, points=2, covariance="diagonal", labels="learned"),
    "fbpc real": FunctionSpace(inner_steps=4, points=2, variant="real", graphs=0),
}


class Replayed:
    """What a recording is on a GPU, on a CPU."""

    made = 0

    def __init__(
        self, region: Callable[..., Any], inputs: Sequence[Tensor], fixed: Sequence[Tensor], *others: Any
    ) -> None:
        type(self).made += 1
        self.region, self.fixed = region, tuple(fixed)
        self.inputs = tuple(inputs)
        self.outputs: tuple[Tensor, ...] | None = None

    def reads(self, fixed: Sequence[Tensor]) -> bool:
        return all(a is b for a, b in zip(fixed, self.fixed, strict=True))

    def replay(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        for static, given in zip(self.inputs, inputs, strict=True):
            static.copy_(given.detach())
        found = self.region(*self.inputs)
        if self.outputs is None:
            self.outputs = tuple(torch.empty_like(one) for one in found)
        for static, new in zip(self.outputs, found, strict=True):
            assert not new.requires_grad
            static.copy_(new)
        return self.outputs


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> type[Replayed]:
    """Let regions be recorded and replayed on the CPU."""
    Replayed.made = 0
    monkeypatch.setattr(capture, "capturable", lambda device: True)
    monkeypatch.setattr(capture, "Recording", Replayed)
    monkeypatch.setattr(capture, "Place", object)
    return Replayed


def distil(method: TrajectoryMethod, folder: Path, device: str = "cpu") -> Coreset:
    data, inputs = testing.toy_data(), testing.toy_inputs()
    member = PLAN.make(data, inputs, testing.context(folder / "expert"), "000")
    handed = Inputs(inputs.transform, {"experts": PrerequisiteOutput(PLAN, "", {"000": member})})
    wanted: Method = replace(method, steps=3, experts=1, lr=1.0, max_start=1, trajectories=PLAN)
    return wanted.distil(data, 2, handed, testing.context(folder / "coreset", device=device))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_the_same_bit_by_bit(name: str, tmp_path: Path, replayed: type[Replayed]) -> None:
    plain = distil(replace(METHODS[name], capture=False), tmp_path / "plain")
    assert replayed.made == 0
    captured = distil(METHODS[name], tmp_path / "captured")
    assert replayed.made > 0
    np.testing.assert_array_equal(captured.images, plain.images)
    np.testing.assert_array_equal(captured.targets, plain.targets)


@pytest.mark.parametrize("batched", [False, True], ids=["one by one", "batched"])
@pytest.mark.parametrize("network", [ConvIN(width=4), ConvBN(width=4)], ids=lambda network: network.name)
def test_hmc_is_the_same_bit_by_bit(
    network: ConvIN | ConvBN, batched: bool, tmp_path: Path, replayed: type[Replayed]
) -> None:
    inference = HMCInference(chains=2, samples=4, burn=3, leapfrog=3, batched=batched)
    coreset, inputs = testing.toy_coreset(), testing.toy_inputs()
    plain, captured = (
        replace(inference, capture=capture).fit(coreset, network, inputs, testing.context(tmp_path / str(capture)))
        for capture in (False, True)
    )
    assert replayed.made == 1
    np.testing.assert_array_equal(captured.log_probs(coreset.images), plain.log_probs(coreset.images))


def test_nothing_is_captured_on_a_cpu() -> None:
    regions = Regions("cpu")
    assert not regions.captured
    values = torch.ones(2)
    assert regions.hold("values", values) is values
    assert regions.own(values) is values


def test_a_region_is_recorded_once_per_key_shape_and_fixed_tensor(replayed: type[Replayed]) -> None:
    regions = Regions("cpu")
    weight = torch.tensor(2.0)

    def call(key: str, values: Tensor, factor: Tensor) -> Tensor:
        return regions(key, lambda x: (factor * x,), [values], [factor])[0]

    first = call("a", torch.ones(2), weight)
    assert first.tolist() == [2, 2]
    kept = regions.own(first)
    weight.fill_(3.0)
    assert call("a", torch.ones(2), weight) is first
    assert (first.tolist(), kept.tolist()) == ([3, 3], [2, 2])
    assert replayed.made == 1
    call("b", torch.ones(2), weight)
    call("a", torch.ones(3), weight)
    assert replayed.made == 3
    assert call("a", torch.ones(2), torch.tensor(5.0)).tolist() == [5, 5]
    assert replayed.made == 4


def test_what_is_held_keeps_its_address(replayed: type[Replayed]) -> None:
    regions = Regions("cpu")
    one = regions.hold("x", torch.ones(2))
    assert regions.hold("x", torch.zeros(2)) is one
    assert one.tolist() == [0, 0]
    assert regions.hold("x", torch.zeros(3)) is not one


def test_a_region_that_cannot_be_captured_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(capture, "capturable", lambda device: True)
    monkeypatch.setattr(capture, "Recording", refused)
    monkeypatch.setattr(capture, "Place", object)
    regions = Regions("cpu")
    with pytest.warns(UserWarning, match="not permitted"):
        assert regions("a", lambda x: (2 * x,), [torch.ones(2)])[0].tolist() == [2, 2]
    assert not regions.captured
    assert regions("a", lambda x: (2 * x,), [torch.ones(2)])[0].tolist() == [2, 2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", METHODS)
def test_a_method_on_a_gpu(name: str, tmp_path: Path) -> None:
    """The captured iteration draws the same random numbers and computes the same sums as the one that is called."""
    plain = distil(replace(METHODS[name], capture=False), tmp_path / "plain", "cuda")
    captured = distil(METHODS[name], tmp_path / "captured", "cuda")
    np.testing.assert_allclose(captured.images, plain.images, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_replays_advance_the_generator_on_a_gpu() -> None:
    """The numbers of replays are those of calls, and what is drawn afterwards as well."""

    def drawn(enabled: bool) -> list[float]:
        generator = torch.Generator("cuda").manual_seed(0)
        regions = Regions("cuda", generators=[generator], enabled=enabled)

        def region(x: Tensor) -> tuple[Tensor]:
            return (x + torch.randn(3, generator=generator, device="cuda"),)

        zeros = torch.zeros(3, device="cuda")
        found = [value for _ in range(4) for value in regions("draw", region, [zeros])[0].tolist()]
        assert regions.captured == enabled
        return [*found, *torch.randn(3, generator=generator, device="cuda").tolist()]

    assert drawn(True) == drawn(False)
