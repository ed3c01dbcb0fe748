"""CPU seconds of a step of RCIG against the bare cost of its forward and backward passes.

    pytest tests/benchmarks/test_rcig_cost.py -s -m benchmark

One thread, float32, a ConvNet without normalisation, and a batch of 128. The bare cost counts a product with
the Jacobian as two forward passes (the network and its tangent), one with its transpose as a backward pass, and a
gradient through a product as two forward and two backward passes:

    2 * 20 inner products   (2 forward + 1 backward of the coreset)
    direct and implicit     (6 forward + 6 backward of the coreset)
    the real batch          (3 forward + 1 backward)
    8 pool updates          (1 forward + 1 backward of the coreset)

Passes are measured on plain networks in the same process. `matrix` computes the Jacobian once and multiplies with it,
`network` is what is done where that matrix would be too large. Ratios are to the bare cost; below 1 means that the
matrix saves passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bpcbench_distill.inner_problem import InnerProblem
from bpcbench_distill.linearisation import Linearisation
from bpcbench_distill.rcig import EXPLICIT
from bpcbench_distill.rcig_distillation import Learned, Real, implicit_gradients, outer_gradients
from bpcbench_torch.networks import ConvNN

CASES = ((8, 16, 10), (8, 16, 100), (28, 8, 10))
"""Side of the images, width, images."""
BATCH, INNER, UPDATES, CLASSES = 128, 20, 8, 10
L2 = 5e-3


def seconds(function: Callable[[], object], budget: float = 2.0) -> float:
    """Return the CPU seconds of the best call."""
    function()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < budget and len(times) < 20):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.benchmark
@pytest.mark.timeout(3600)
def test_step_against_its_passes() -> None:
    torch.set_num_threads(1)
    print("\n| pixels | width | n^ | bare s | matrix s | ratio | network s | ratio |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for side, width, rows in CASES:
        model = ConvNN(width=width, softplus=60.0).build((1, side, side), CLASSES, 0).eval()
        generator = torch.Generator().manual_seed(0)
        images = torch.randn((rows, 1, side, side), generator=generator)
        targets = torch.eye(CLASSES).repeat(rows // CLASSES, 1) - 1 / CLASSES
        real = Real(torch.randn((BATCH, 1, side, side), generator=generator), torch.arange(BATCH) % CLASSES)
        learned = Learned(*(x.requires_grad_() for x in (images, targets, torch.zeros(()))))
        optimizer = torch.optim.Adam(model.parameters(), 0.0, fused=True)

        def forward(x: Tensor) -> Tensor:
            with torch.no_grad():
                return model(x.detach())  # noqa: B023

        def both(x: Tensor) -> None:
            (model(x.detach()).square().mean()).backward()  # noqa: B023

        def update() -> None:
            optimizer.zero_grad(set_to_none=True)  # noqa: B023
            both(images)  # noqa: B023
            optimizer.step()  # noqa: B023

        def step(explicit: int) -> None:
            linear = Linearisation(model)  # noqa: B023
            problem = InnerProblem(linear, images, targets, L2, explicit=explicit)  # noqa: B023
            end = problem.descend(INNER, 1e-3).end
            direct = outer_gradients(problem, end, learned, real, L2, mirror=False)  # noqa: B023
            inverse = problem.invert(direct.tangents, INNER, 1.0).end
            implicit_gradients(linear, end, inverse, learned, L2, mirror=False)  # noqa: B023
            for _ in range(UPDATES):
                update()

        ahead, ahead_real = seconds(lambda: forward(images)), seconds(lambda: forward(real.images))  # noqa: B023
        back = seconds(lambda: both(images)) - ahead  # noqa: B023
        back_real = seconds(lambda: both(real.images)) - ahead_real  # noqa: B023
        bare = 2 * INNER * (2 * ahead + back) + 6 * (ahead + back) + 3 * ahead_real + back_real
        bare += UPDATES * (ahead + back)
        cells = [f"{bare:.3g}"]
        for explicit in (EXPLICIT, 0):
            taken = seconds(lambda explicit=explicit: step(explicit), 4.0)  # type: ignore[misc]
            cells += [f"{taken:.3g}", f"{taken / bare:.2f}"]
        print(f"| {side} | {width} | {rows} | " + " | ".join(cells) + " |", flush=True)
