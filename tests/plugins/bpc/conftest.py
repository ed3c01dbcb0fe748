"""Small problems on which estimators can be checked."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bpcbench_bpc.problem import Augmented, Problem
from bpcbench_torch.flat import FlatNetwork


@pytest.fixture
def make_problem():
    """Return a maker of problems in float64: a tiny smooth network, four images, three snapshots, no augmentation."""

    def make(*, learned_labels=False, rate=0.3, seed=0, network=None, snapshots=None, spread=0.3, **changes):
        torch.manual_seed(seed)
        if network is None:
            # Softplus, for central differences want a smooth function.
            body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(2, 2), nn.Softplus(), nn.Flatten(), nn.Linear(8, 3))
            network = FlatNetwork(body.double())
        if snapshots is None:
            snapshots = network.initial() + spread * torch.randn(8, network.size, dtype=torch.float64)
        generator = torch.Generator().manual_seed(seed)
        problem = {
            "network": network,
            "window": lambda ahead: snapshots[ahead].clone(),
            "images": torch.randn(4, 1, 4, 4, dtype=torch.float64, requires_grad=True),
            "classes": torch.tensor([0, 1, 2, 0]),
            "logits": torch.randn(4, 3, dtype=torch.float64, requires_grad=True) if learned_labels else None,
            "rate": torch.tensor(rate, dtype=torch.float64, requires_grad=True),
            "choose": Augmented,
            "normal": lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64),
            "real": lambda: (torch.ones(1, 1, 4, 4, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)),
            "examples": 1,
        }
        return Problem(**{**problem, **changes})

    return make


@pytest.fixture
def central_difference():
    """Return a function that differentiates `loss()` in one entry of a leaf tensor."""

    def differentiate(loss, leaf, index, nudge=1e-5):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                leaf[index] += sign * nudge
            values.append(float(loss()))
            with torch.no_grad():
                leaf[index] -= sign * nudge
        return (values[0] - values[1]) / (2 * nudge)

    return differentiate
