"""Whether a method's gradient leads where training on the images gets better, on the embedded digits.

    pytest tests/benchmarks/test_estimator_direction.py -s -m benchmark

Real images as a coreset, an expert of width 16, windows that start at epochs 0, 2, 5 and 8, T 15, no augmentation, by
step size of the inner SGD; many draws, so that noise is out of the question. The measure is the cross-entropy of all
training data after the T inner steps. Printed are the cosine of a method's gradient with the exact gradient of that
measure, and by how much the measure changes, for each window, when the images move by 0.05 standard deviations per
pixel along the method's descent direction. Asserted is only that moving along the exact gradient helps, and
that the gradients of fKL, FBPC and W make an acute angle with it.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from expert_digits import cosine, digits, trajectory

from bpcbench_bpc.contrastive import Contrastive
from bpcbench_bpc.forward_kl import ForwardKL
from bpcbench_bpc.function_space import FunctionSpace
from bpcbench_bpc.inner import Unrolled, descend
from bpcbench_bpc.method import TrajectoryMethod
from bpcbench_bpc.problem import Augmented, Problem
from bpcbench_bpc.reverse_kl import ReverseKL
from bpcbench_bpc.trajectories import Trajectories
from bpcbench_bpc.wasserstein import Wasserstein
from bpcbench_torch.flat import FlatNetwork
from bpcbench_torch.networks import ConvIN

METHODS: dict[str, tuple[TrajectoryMethod, int]] = {
    "bpc-rkl": (ReverseKL(inner_steps=15, draws=300, sigma=0.003), 1),
    "bpc-fkl": (ForwardKL(inner_steps=15, draws=50, sigma=0.003), 1),
    "bpc-cd": (Contrastive(inner_steps=15, sigma=0.001), 20),
    "fbpc": (FunctionSpace(trajectories=Trajectories(), inner_steps=15, points=5, delta=0.1, draws=100), 1),
    "bpc-w": (Wasserstein(inner_steps=15, ahead=2), 1),
}
"""The method, and how many of its estimates are averaged."""
RATES = (0.02, 0.05, 0.1, 0.2)
STARTS = (0, 2, 5, 8)
STEP = 0.05


@pytest.mark.benchmark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("ipc", [1, 10])
def test_the_direction_of_a_gradient(ipc: int) -> None:
    torch.set_num_threads(1)
    images, labels = digits()
    network = FlatNetwork(
        ConvIN(width=16, growth=1, order="conv-first", init="torch", eps=1e-5).build((1, 8, 8), 10, 0)
    )
    expert = trajectory(network, images, labels, max(STARTS) + 6)
    rows = torch.cat([(labels == label).nonzero()[:ipc, 0] for label in range(10)])
    generator = torch.Generator().manual_seed(2)

    def problem(start: int, rate: float, coreset: torch.Tensor) -> Problem:
        return Problem(
            network=network,
            window=lambda ahead: expert[start + ahead].clone(),
            images=coreset.clone().requires_grad_(),
            classes=labels[rows],
            logits=None,
            rate=torch.tensor(rate),
            choose=Augmented,
            normal=lambda *shape: torch.randn(shape, generator=generator),
            real=lambda: (images, labels),
            examples=len(images),
        )

    def loss(theta: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(network(theta, images), labels)

    def exact(start: int, rate: float) -> torch.Tensor:
        unrolled = Unrolled(problem(start, rate, images[rows]), expert[start], 15)
        theta = unrolled.theta.clone().requires_grad_()
        return unrolled.pull(torch.autograd.grad(loss(theta), theta)[0])[0][0]

    @torch.no_grad()
    def change(start: int, rate: float, gradient: torch.Tensor) -> float:
        moved = images[rows] - gradient * (STEP * gradient.numel() ** 0.5 / gradient.norm())
        with torch.enable_grad():
            before, after = (
                descend(problem(start, rate, coreset), expert[start], 15)[0] for coreset in (images[rows], moved)
            )
        return float(loss(after) - loss(before))

    def cells(*values: float) -> str:
        return " | ".join(f"{value:+.4f}" for value in values)

    heads = " | ".join(f"from {start}" for start in STARTS)
    print(f"\nipc {ipc}\n| step size | along | cosine | {heads} |\n|---:|---|---:|{'---:|' * len(STARTS)}")
    for rate in RATES:
        right = [exact(start, rate) for start in STARTS]
        best = [change(start, rate, gradient) for start, gradient in zip(STARTS, right, strict=True)]
        print(f"| {rate} | exact gradient | +1.00 | {cells(*best)} |", flush=True)
        for name, (method, repeats) in METHODS.items():
            found = [
                torch.stack(
                    [method.estimate(problem(start, rate, images[rows])).gradients[0] for _ in range(repeats)]
                ).mean(0)
                for start in STARTS
            ]
            alike = float(np.mean([cosine(one, other) for one, other in zip(found, right, strict=True)]))
            changes = [change(start, rate, gradient) for start, gradient in zip(STARTS, found, strict=True)]
            print(f"| {rate} | {name} | {alike:+.2f} | {cells(*changes)} |", flush=True)
            assert alike > 0 or name in ("bpc-cd", "bpc-rkl")
        assert sum(best) < 0
