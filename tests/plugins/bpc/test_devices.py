"""Estimators and potentials stay on their device and never wait for it: one step of each on the `meta` device.

A tensor there has a shape and no values, so anything made on another device, and anything that asks for a value
(`item`, `if`, `torch.equal`), fails. On a GPU the latter would be a stop of the whole queue.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bpcbench import testing
from bpcbench.records import Inputs, PrerequisiteOutput
from bpcbench.testing import toy_inputs
from bpcbench_bpc.contrastive import Contrastive
from bpcbench_bpc.forward_kl import ForwardKL
from bpcbench_bpc.function_space import FunctionSpace
from bpcbench_bpc.method import TrajectoryMethod
from bpcbench_bpc.problem import Augmented, Problem
from bpcbench_bpc.reverse_kl import ReverseKL
from bpcbench_bpc.trajectories import Trajectories
from bpcbench_bpc.wasserstein import Wasserstein
from bpcbench_torch.flat import FlatNetwork
from bpcbench_torch.networks import ConvBN, ConvIN
from bpcbench_torch.potential import CoresetPotential, Prior
from bpcbench_torch.samplers import HMCInference, SGHMCInference

PLAN = Trajectories(network=ConvIN(width=4), epochs=4, batch=32)
ESTIMATORS: list[TrajectoryMethod] = [
    ReverseKL(inner_steps=2, draws=3, batch=6, trajectories=PLAN, max_start=1),
    ReverseKL(preset="official", inner_steps=2, draws=3, batch=6, chunk=2, trajectories=PLAN, max_start=1),
    ForwardKL(inner_steps=2, draws=3, trajectories=PLAN, max_start=1),
    ForwardKL(inner_steps=2, draws=3, chunk=2, trajectories=PLAN, max_start=1),
    Wasserstein(inner_steps=2, trajectories=PLAN, max_start=1),
    Wasserstein(inner_steps=2, graphs=0, trajectories=PLAN, max_start=1),
    Contrastive(inner_steps=2, chain_noise=0.1, trajectories=PLAN, max_start=1),
    Contrastive(preset="official", inner_steps=2, energy="logit", trajectories=PLAN, max_start=1),
    FunctionSpace(inner_steps=2, points=3, trajectories=PLAN, max_start=1),
    FunctionSpace(inner_steps=2, points=2, covariance="diagonal", trajectories=PLAN, max_start=1),
    FunctionSpace(inner_steps=2, points=2, variant="real", trajectories=PLAN, max_start=1),
]


def meta_problem(network: ConvIN | ConvBN, learned: bool) -> Problem:
    with torch.device("meta"):
        flat = FlatNetwork(network.build((1, 8, 8), 3, 0).to("meta"))
        return Problem(
            network=flat,
            window=lambda ahead: torch.empty(flat.size, device="meta"),
            images=torch.empty(6, 1, 8, 8, requires_grad=True),
            classes=torch.zeros(6, dtype=torch.int64),
            logits=torch.empty(6, 3, requires_grad=True) if learned else None,
            rate=torch.empty((), requires_grad=True),
            choose=Augmented,
            normal=lambda *shape: torch.empty(shape, device="meta"),
            real=lambda: (torch.empty(6, 1, 8, 8, device="meta"), torch.zeros(6, dtype=torch.int64, device="meta")),
            examples=100,
        )


@pytest.mark.parametrize("learned", [False, True], ids=["hard", "learned"])
@pytest.mark.parametrize("method", ESTIMATORS, ids=lambda method: f"{method.name}-{method.preset}")
def test_an_estimate_stays_on_its_device(method: TrajectoryMethod, learned: bool) -> None:
    problem = meta_problem(ConvIN(width=4), learned)
    estimate = method.estimate(problem)
    assert [gradient.shape for gradient in estimate.gradients] == [leaf.shape for leaf in problem.learned]
    found = [*estimate.gradients, *estimate.values.values(), *([] if estimate.rate is None else [estimate.rate])]
    assert {value.device.type for value in found} == {"meta"}


@pytest.mark.parametrize("batched", [False, True], ids=["one-by-one", "batched"])
@pytest.mark.parametrize("network", [ConvIN(width=4), ConvBN(width=4)], ids=lambda network: network.name)
def test_the_energy_of_chains_stays_on_its_device(network: ConvIN | ConvBN, batched: bool) -> None:
    flat = meta_problem(network, False).network
    images, targets = torch.empty(6, 1, 8, 8, device="meta"), torch.zeros(6, dtype=torch.int64, device="meta")
    prior = Prior.of("norm", None, flat.size)
    potential = CoresetPotential(flat, images, targets, "class", prior, batched=batched)
    theta = torch.empty(2, flat.size, device="meta")
    energy, gradient = potential(theta)
    assert (energy.shape, gradient.shape) == ((2,), theta.shape)
    assert (energy.device.type, gradient.device.type, potential.loss(theta, energy).device.type) == ("meta",) * 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("method", ESTIMATORS, ids=lambda method: f"{method.name}-{method.preset}")
def test_it_distils_on_a_gpu(method: TrajectoryMethod, tmp_path) -> None:
    data, inputs = testing.toy_data(), testing.toy_inputs()
    gpu = {"device": "cuda"}
    member = PLAN.make(data, inputs, testing.context(tmp_path / "expert", **gpu), "000")
    wanted = replace(method, steps=3, experts=1, lr=1.0)
    handed = Inputs(inputs.transform, {"experts": PrerequisiteOutput(PLAN, "", {"000": member})})
    coreset = wanted.distil(data, 2, handed, testing.context(tmp_path / "coreset", **gpu))
    for inference in (
        SGHMCInference(chains=2, samples=4, burn=2, thin=1, batched=True),
        HMCInference(chains=2, samples=4, burn=2, leapfrog=2),
    ):
        fitted = inference.fit(coreset, PLAN.network, toy_inputs(), testing.context(tmp_path / inference.name, **gpu))
        assert fitted.log_probs(coreset.images).shape == (8, len(coreset), data.facts.classes)
