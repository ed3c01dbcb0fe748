"""The losses of the pool methods stay on their device and never wait for it: computed on the `meta` device.

A tensor there has no values, so anything made elsewhere, and anything that asks for a value, fails.
"""

from __future__ import annotations

import pytest
import torch

from bpcbench_distill.inner_problem import InnerProblem
from bpcbench_distill.linearisation import Linearisation
from bpcbench_distill.method import FRePo
from bpcbench_distill.rates import course
from bpcbench_distill.rcig_distillation import Learned, Real, implicit_gradients, limited, outer_gradients
from bpcbench_torch.networks import ConvNN
from bpcbench_torch.pool_method import PoolMethod
from bpcbench_vbpc.method import VBPC


@pytest.mark.parametrize("rows", [8, 40], ids=["fewer images than features", "more"])
@pytest.mark.parametrize("method", [VBPC(), FRePo()], ids=lambda method: method.name)
def test_the_outer_loss_stays_on_its_device(method: PoolMethod, rows: int) -> None:
    with torch.device("meta"):
        features, targets = torch.empty(rows, 16, requires_grad=True), torch.empty(rows, 3, requires_grad=True)
        real, labels = torch.empty(20, 16), torch.zeros(20, dtype=torch.int64)
    found = method.outer(features, targets, real, labels, 100)
    gradients = torch.autograd.grad(found["loss"], (features, targets))
    assert [gradient.shape for gradient in gradients] == [features.shape, targets.shape]
    assert {value.device.type for value in (*found.values(), *gradients)} == {"meta"}


@pytest.mark.parametrize("explicit", [0, 10**9], ids=["through the network", "matrix"])
def test_a_step_of_rcig_stays_on_its_device(explicit: int) -> None:
    linear = Linearisation(ConvNN(width=2, softplus=60.0).build((1, 8, 8), 3, 0).eval().to("meta"))
    with torch.device("meta"):
        learned = Learned(*(torch.empty(shape, requires_grad=True) for shape in ((4, 1, 8, 8), (4, 3), ())))
        real = Real(torch.empty(20, 1, 8, 8), torch.zeros(20, dtype=torch.int64))
    problem = InnerProblem(linear, learned.images, learned.targets, 0.1, explicit=explicit)
    inner = problem.descend(2, 1e-3)
    direct = outer_gradients(problem, inner.end, learned, real, 0.1, mirror=False)
    inverse = problem.invert(direct.tangents, 2, 1.0)
    implicit = implicit_gradients(linear, inner.end, inverse.end, learned, 0.1, mirror=False)
    found = (course(inner.losses), course(inverse.losses), *vars(direct).values(), *implicit)
    assert {value.device.type for value in (*found, limited(implicit[0], direct.images))} == {"meta"}
    assert [value.shape for value in implicit] == [learned.images.shape, learned.targets.shape]
