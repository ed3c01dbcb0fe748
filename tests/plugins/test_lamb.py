"""LAMB against timm's, where it is installed, and against the algorithm of its paper written with NumPy."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bpcbench_torch.lamb import Lamb
from bpcbench_torch.torchvision_compat import import_torchvision

STEPS = 25


def start() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((5, 1, 4, 4), (5, 3), (2,))
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    tensors[2].zero_()  # a tensor without length has the trust ratio 1
    return [tensor.requires_grad_() for tensor in tensors]


def steps(optimizer: torch.optim.Optimizer, tensors: list[Tensor], count: int = STEPS, seed: int = 1) -> None:
    """Follow gradients of a changing objective, with a learning rate that falls as in a schedule."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(count):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + step)
        for tensor in tensors:
            tensor.grad = tensor.detach().sin() + torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        optimizer.step()


@pytest.mark.parametrize("weight_decay", [0.0, 0.03])
def test_against_timm(weight_decay: float) -> None:
    import_torchvision()
    optim = pytest.importorskip("timm.optim")
    ours, theirs = start(), start()
    steps(Lamb(ours, 0.1, weight_decay=weight_decay), ours)
    other = optim.Lamb(theirs, 0.1, weight_decay=weight_decay, always_adapt=True, max_grad_norm=None)
    steps(other, theirs)
    for got, wanted, initial in zip(ours, theirs, start(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)
        assert not torch.equal(got, initial)


@pytest.mark.parametrize("weight_decay", [0.0, 0.03])
def test_against_the_algorithm_with_numpy(weight_decay: float) -> None:
    ours = start()
    steps(Lamb(ours, 0.1, (0.8, 0.95), 1e-5, weight_decay), ours)
    arrays = [tensor.detach().numpy() for tensor in start()]
    moments: list[Any] = [(0.0, 0.0)] * len(arrays)
    generator = torch.Generator().manual_seed(1)
    for step in range(1, STEPS + 1):
        for index, x in enumerate(arrays):
            gradient = np.sin(x) + torch.randn(x.shape, generator=generator, dtype=torch.float64).numpy()
            first, second = moments[index]
            first, second = 0.8 * first + 0.2 * gradient, 0.95 * second + 0.05 * gradient**2
            moments[index] = (first, second)
            update = first / (1 - 0.8**step) / (np.sqrt(second / (1 - 0.95**step)) + 1e-5) + weight_decay * x
            length = np.linalg.norm(x)
            arrays[index] = x - 0.1 / step * (length / np.linalg.norm(update) if length else 1.0) * update
    for tensor, x in zip(ours, arrays, strict=True):
        np.testing.assert_allclose(tensor.detach(), x, rtol=1e-10, atol=1e-12)


def test_a_step_is_as_long_as_the_tensor_times_the_rate() -> None:
    tensors = start()
    lengths = [tensor.norm().item() for tensor in tensors[:2]]
    before = [tensor.detach().clone() for tensor in tensors]
    steps(Lamb(tensors), tensors, count=1)
    moved = [(tensor - old).norm().item() for tensor, old in zip(tensors, before, strict=True)]
    assert moved[:2] == pytest.approx([0.1 * length for length in lengths])


def test_nothing_moves_without_a_gradient_and_a_zero_gradient_gives_no_nan() -> None:
    idle, still = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    still.grad = torch.zeros(3)
    optimizer = Lamb([idle, still])
    optimizer.step()
    assert idle.tolist() == still.tolist() == [1.0, 1.0, 1.0]


def test_a_closure_is_called_with_gradients_enabled() -> None:
    x = torch.ones(2, requires_grad=True)
    optimizer = Lamb([x], lr=0.1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = x.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 2.0
    assert x[0].item() == pytest.approx(0.9)


def test_training_continues_exactly_from_a_state_dict() -> None:
    straight, halted = start(), start()
    optimizer = Lamb(straight)
    steps(optimizer, straight)
    steps(optimizer, straight, seed=2)
    first = Lamb(halted)
    steps(first, halted)
    saved = copy.deepcopy(first.state_dict())
    resumed = [tensor.detach().clone().requires_grad_() for tensor in halted]
    second = Lamb(resumed)
    second.load_state_dict(saved)
    steps(second, resumed, seed=2)
    assert all(torch.equal(one, other) for one, other in zip(straight, resumed, strict=True))


@pytest.mark.parametrize("wrong", [{"lr": -1.0}, {"eps": -1.0}, {"betas": (1.0, 0.9)}, {"weight_decay": -0.1}])
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="bad lr"):
        Lamb(start(), **wrong)
