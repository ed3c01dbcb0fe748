"""The first-order expansion of a network against finite differences, and RCIG's inner problem on it.

The inner problem is compared with what its docstring says in words: the loss with explicit weights, autograd through
it, and dense linear algebra.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from bpcbench.api import Network
from bpcbench_distill.inner_problem import InnerProblem, dual_weights, implicit_term
from bpcbench_distill.linearisation import Linearisation
from bpcbench_torch.alexnet import AlexNet
from bpcbench_torch.networks import ConvBN, ConvIN, ConvNN
from bpcbench_torch.resnet import ResNet18

SHAPE, CLASSES, L2 = (1, 8, 8), 3, 0.05
SMOOTH = ConvNN(width=2, softplus=5.0)
INSTANCE = ConvIN(width=4, softplus=5.0, order="conv-first")


def built(network: Network = SMOOTH, seed: int = 0) -> nn.Module:
    model: nn.Module = network.build(SHAPE, CLASSES, seed).double().eval()
    generator = torch.Generator().manual_seed(seed)
    for value in model.parameters():
        value.data += 0.1 * torch.randn(value.shape, generator=generator, dtype=torch.float64)
    return model


def rows(count: int = 4, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn((count, *SHAPE), generator=generator, dtype=torch.float64)
    targets = torch.randn((count, CLASSES), generator=generator, dtype=torch.float64)
    return images, targets


def direction(linear: Linearisation, seed: int = 2) -> Tensor:
    return torch.randn(linear.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def displaced(model: nn.Module, linear: Linearisation, tangents: Tensor, images: Tensor) -> Tensor:
    """Return f(x; theta + t), computed by the network itself."""
    moved = {name.removeprefix("model."): value for name, value in linear.split(tangents).items()}
    named = dict(model.named_parameters())
    outputs: Tensor = functional_call(model, {name: named[name] + value for name, value in moved.items()}, (images,))
    return outputs


@pytest.mark.parametrize(
    "network",
    [SMOOTH, ConvBN(width=2, softplus=5.0), ConvIN(width=4, softplus=5.0, order="conv-first")],
    ids=lambda n: n.name,
)
def test_the_expansion_is_the_derivative_by_central_differences(network: Network) -> None:
    model = built(network)
    linear, (images, _) = Linearisation(model), rows()
    t = direction(linear)
    outputs, features = linear.push(images, t)
    step = 1e-5
    numeric = (
        displaced(model, linear, step * t, images) - displaced(model, linear, -step * t, images)
    ) / (2 * step)  # fmt: skip
    torch.testing.assert_close(outputs, numeric, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(features, model.features(images))  # type: ignore[operator]


def test_the_remainder_of_the_expansion_is_of_second_order() -> None:
    """f(theta + t) - f(theta) - J t shrinks by 100 when t shrinks by 10, f(theta + t) - f(theta) by 10."""
    model = built()
    linear, (images, _) = Linearisation(model), rows()
    t = direction(linear)

    def remainder(scale: float) -> float:
        moved = displaced(model, linear, scale * t, images) - model(images)
        return float((moved - linear.push(images, scale * t)[0]).detach().norm())

    assert remainder(1e-3) / remainder(1e-4) == pytest.approx(100, rel=0.1)
    assert remainder(1e-4) < 1e-2 * float(linear.push(images, 1e-4 * t)[0].norm())


def test_all_parameters_but_the_last_layers_weights_are_linearised() -> None:
    model = built()
    linear = Linearisation(model)
    count = sum(value.numel() for value in model.parameters())
    assert linear.size == count - model.head.weight.numel()
    bias = torch.zeros(linear.size, dtype=torch.float64)
    bias[-CLASSES:] = torch.arange(1.0, CLASSES + 1)
    outputs, _ = linear.push(rows()[0], bias)
    torch.testing.assert_close(outputs, bias[-CLASSES:].expand(4, CLASSES))


@pytest.mark.parametrize(
    "network",
    [
        SMOOTH,
        ConvBN(width=2),
        ConvIN(width=4, order="conv-first"),
        replace(ConvNN(width=2), order="conv-first", depth=1),
    ],
    ids=["nn", "bn", "in", "shallow"],
)
def test_push_pull_and_the_matrix_are_the_same_operator(network: Network) -> None:
    linear, (images, targets) = Linearisation(built(network)), rows()
    t = direction(linear)
    outputs, _ = linear.push(images, t)
    pulled, matrix = linear.pull(images)(targets), linear.jacobian(images)
    torch.testing.assert_close((matrix @ t).view(4, CLASSES), outputs)
    torch.testing.assert_close(targets.flatten() @ matrix, pulled)
    torch.testing.assert_close((outputs * targets).sum(), pulled.dot(t))


@pytest.mark.parametrize("network", [AlexNet(width=4), ResNet18(width=4)], ids=lambda network: network.name)
def test_other_architectures_can_be_linearised(network: Network) -> None:
    linear = Linearisation(network.build((3, 32, 32), CLASSES, 0).eval())
    images = torch.randn((2, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    t = torch.randn(linear.size, generator=torch.Generator().manual_seed(1))
    outputs, _ = linear.push(images, t)
    cotangents = torch.ones_like(outputs)
    torch.testing.assert_close(linear.pull(images)(cotangents).dot(t), outputs.sum(), rtol=1e-3, atol=1e-2)
    torch.testing.assert_close((linear.jacobian(images) @ t).view_as(outputs), outputs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("explicit", [0, 10**9], ids=["through-the-network", "matrix"])
def test_the_inner_loss_is_ridge_regression_minimised_over_the_last_layer(explicit: int) -> None:
    linear, (images, targets) = Linearisation(built()), rows()
    problem = InnerProblem(linear, images, targets, L2, explicit=explicit)
    t = 0.3 * direction(linear)
    loss, gradient = problem.loss_and_gradient(t)

    def stated(t: Tensor, w: Tensor) -> Tensor:
        outputs, phi = linear.push(images, t)
        error = targets - outputs - phi @ w
        return 0.5 * (error.square().sum() + L2 * (w.square().sum() + t.square().sum())) / targets.numel()

    outputs, phi = linear.push(images, t)
    best = torch.linalg.solve(phi.T @ phi + L2 * torch.eye(phi.shape[1], dtype=phi.dtype), phi.T @ (targets - outputs))
    torch.testing.assert_close(loss, stated(t, best))
    assert float(stated(t, best + 0.01)) > float(loss)
    free = t.clone().requires_grad_()
    torch.testing.assert_close(gradient, torch.autograd.grad(stated(free, best), free)[0])


@pytest.mark.parametrize("explicit", [0, 10**9], ids=["through-the-network", "matrix"])
def test_the_hessian_is_constant_and_its_product_a_difference_of_gradients(explicit: int) -> None:
    linear, (images, targets) = Linearisation(built()), rows()
    problem = InnerProblem(linear, images, targets, L2, explicit=explicit)
    t, v = direction(linear, 4), direction(linear, 5)
    difference = problem.loss_and_gradient(t + v)[1] - problem.loss_and_gradient(t)[1]
    torch.testing.assert_close(problem.product(v), difference)


def test_the_descents_reach_the_exact_solutions() -> None:
    """With many small steps: the minimiser of L, and H^-1 g."""
    linear, (images, targets) = Linearisation(built()), rows()
    problem = InnerProblem(linear, images, targets, L2)
    hessian = torch.stack([problem.product(row) for row in torch.eye(linear.size, dtype=torch.float64)])
    torch.testing.assert_close(hessian, hessian.T)
    gradient = problem.loss_and_gradient(linear.zeros())[1]
    descent = problem.descend(2000, 2e-3)
    exact = torch.linalg.solve(hessian, -gradient)
    assert float((descent.end - exact).norm() / exact.norm()) < 1e-2
    assert float(descent.losses[0]) == pytest.approx(float(problem.loss_and_gradient(linear.zeros())[0]))
    g = 1e-3 * direction(linear, 6)
    inverse = problem.invert(g, 2000, 2e-2)
    exact = torch.linalg.solve(hessian, g)
    assert float((inverse.end - exact).norm() / exact.norm()) < 1e-2
    assert float(inverse.losses[-1]) == pytest.approx(-float(g.dot(exact)), rel=1e-3)


def test_the_implicit_term_is_the_inner_product_with_the_gradient() -> None:
    linear, (images, targets) = Linearisation(built()), rows()
    t, v = 0.3 * direction(linear), direction(linear, 7)
    problem = InnerProblem(linear, images, targets, L2)
    expected = problem.loss_and_gradient(t)[1].dot(v)
    torch.testing.assert_close(implicit_term(linear, images, targets, t, v, L2), expected)


def test_gradients_of_the_implicit_term_by_central_differences() -> None:
    linear, (images, targets) = Linearisation(built(replace(SMOOTH, depth=1))), rows(2)
    t, v = 0.3 * direction(linear), direction(linear, 7)
    inputs = (images.requires_grad_(), targets.requires_grad_())
    assert torch.autograd.gradcheck(lambda x, y: implicit_term(linear, x, y, t, v, L2), inputs)


def test_dual_weights_keep_a_ridge_that_float32_would_lose() -> None:
    """Twenty rows of norm 100 that are nearly equal; the ridge is 1e-8 of the largest eigenvalue."""
    generator = torch.Generator().manual_seed(0)
    features = 100 * torch.nn.functional.normalize(1 + 1e-3 * torch.randn((20, 64), generator=generator))
    weights = dual_weights(features, torch.eye(20)[:, :3], 5e-3)
    gram = (features @ features.T).double() + 5e-3 * torch.eye(20, dtype=torch.float64)
    torch.testing.assert_close(weights.double(), torch.linalg.inv(gram)[:, :3], rtol=1e-4, atol=1e-4)
