"""AdaBelief against the algorithm as optax has it, written with NumPy, and its state."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

from bpcbench_distill.adabelief import AdaBelief

STEPS = 30


def gradients(count: int = STEPS) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.normal(0.3, 1.0, (4, 3)) for _ in range(count)]


def follow(optimizer: AdaBelief, tensor: Tensor, given: list[np.ndarray]) -> None:
    for gradient in given:
        tensor.grad = torch.tensor(gradient)
        optimizer.step()


@pytest.mark.parametrize("b1", [0.9, 0.5])
@pytest.mark.parametrize("eps_root", [1e-16, 1e-3])
def test_against_the_algorithm_with_numpy(b1: float, eps_root: float) -> None:
    b2, eps, lr = 0.99, 1e-4, 0.05
    x = torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
    follow(AdaBelief([x], lr, (b1, b2), eps, eps_root), x, gradients())
    wanted, mean, variance = np.ones((4, 3)), np.zeros((4, 3)), np.zeros((4, 3))
    for count, gradient in enumerate(gradients(), 1):
        variance = b2 * variance + (1 - b2) * (gradient - mean) ** 2 + eps_root
        mean = b1 * mean + (1 - b1) * gradient
        wanted -= lr * (mean / (1 - b1**count)) / (np.sqrt(variance / (1 - b2**count)) + eps)
    np.testing.assert_allclose(x.detach(), wanted, rtol=1e-10)


def test_the_first_step_is_the_sign_and_a_steady_gradient_is_trusted() -> None:
    """After that the surprise fades, and steps grow beyond the learning rate, where Adam's stay at it."""
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = AdaBelief([x], 0.1)
    follow(optimizer, x, [np.array([5.0, -0.01])])
    np.testing.assert_allclose(x.detach(), [-0.1, 0.1], rtol=1e-6)
    before = x.detach().clone()
    follow(optimizer, x, [np.array([5.0, -0.01])] * 50)
    assert bool(((x.detach() - before).abs() > 50 * 0.1 * 1.2).all())


def test_a_restored_optimiser_goes_on_as_the_first() -> None:
    given = gradients()
    x = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    optimizer = AdaBelief([{"params": [x], "lr": 0.1}])
    follow(optimizer, x, given[:10])
    y = x.detach().clone().requires_grad_()
    other = AdaBelief([{"params": [y], "lr": 0.5}])
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    follow(optimizer, x, given[10:])
    follow(other, y, given[10:])
    assert torch.equal(x, y)
