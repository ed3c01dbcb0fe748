"""The losses of the pool methods stay on their device and never wait for it: computed on the `meta` device.

A tensor there has no values, so anything made elsewhere, and anything that asks for a value, fails.
"""

from __future__ import annotations

import pytest
import torch

from bpcbench_distill.method import FRePo
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
