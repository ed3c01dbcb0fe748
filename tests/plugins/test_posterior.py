"""The closed-form last-layer posterior: its paths against each other and against other people's code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bpcbench_vbpc import naive
from bpcbench_vbpc.likelihood import mean_field_log_probs, outer_loss
from bpcbench_vbpc.posterior import Dual, Posterior, Primal, fit

PRIORS = [(1.0, 100.0), (10.0, 100.0), (0.3, 7.0)]


def problem(rows: int = 12, width: int = 40, classes: int = 5, batch: int = 7, seed: int = 0) -> tuple[Tensor, ...]:
    """Return features, targets and features of a batch in float64."""
    generator = torch.Generator().manual_seed(seed)
    draw = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((rows, width), (batch, width))]
    targets = torch.randn((rows, classes), generator=generator, dtype=torch.float64)
    return draw[0].relu(), targets, draw[1].relu()


def same(one: Posterior, other: Posterior, phi: Tensor, rows: Tensor, tolerance: float) -> None:
    prior = phi.square().sum(1).max() / one.rho
    for got, wanted, scale in zip(one.predict(phi), other.predict(phi), (1.0, prior), strict=True):
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance * float(scale))
    for got, wanted in zip(one.predict(rows, own=True), other.predict(rows, own=True), strict=True):
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance * float(prior))
    torch.testing.assert_close(one.kl(), other.kl(), rtol=tolerance, atol=tolerance)
    for got, wanted in zip(one.full(), other.full(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("rho", "gamma"), PRIORS)
@pytest.mark.parametrize(("rows", "width"), [(12, 40), (40, 12)])
def test_both_paths_and_the_naive_one_agree(rho: float, gamma: float, rows: int, width: int) -> None:
    features, targets, phi = problem(rows, width)
    dual = fit(features, targets, rho, gamma, path="dual")
    same(dual, fit(features, targets, rho, gamma, path="primal"), phi, features, 1e-10)
    same(dual, naive.fit(features, targets, rho, gamma), phi, features, 1e-10)
    mean, variance = dual.predict(phi)
    assert torch.equal(mean, dual.mean(phi))
    assert torch.equal(variance, dual.variance(phi))


powers = st.floats(-2, 2).map(lambda power: 10.0**power)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 4), powers, powers, powers, st.integers(0, 2**31))
def test_paths_agree_for_any_sizes_and_prior(
    rows: int, width: int, classes: int, rho: float, gamma: float, beta: float, seed: int
) -> None:
    features, targets, phi = problem(rows, width, classes, seed=seed)
    condition = 1 + gamma / (rho * beta) * float(features.square().sum())
    dual = fit(features, targets, rho, gamma, beta, path="dual")
    same(dual, fit(features, targets, rho, gamma, beta, path="primal"), phi, features, 1e-10 + 1e-12 * condition)
    # The naive mean is a product of an inverse with a vector that is as large as the condition number.
    same(dual, naive.fit(features, targets, rho, gamma, beta), phi, features, 1e-10 + 1e-14 * condition**2)
    assert dual.kl() >= 0
    assert (dual.variance(phi) <= phi.square().sum(1) / rho * (1 + 1e-12)).all()  # data never add uncertainty


def test_the_smaller_matrix_is_chosen_and_beta_is_the_number_of_rows() -> None:
    features, targets, phi = problem()
    assert isinstance(fit(features, targets, 1.0, 100.0), Dual)
    assert isinstance(fit(features[:, :5], targets, 1.0, 100.0), Primal)
    assert torch.equal(
        fit(features, targets, 1, 100).mean(phi), fit(features, targets, 1, 100, len(features)).mean(phi)
    )


@pytest.mark.parametrize("arguments", [(0.0, 1.0), (1.0, -1.0), (1.0, 1.0, 0.0), (1.0, 1.0, 1.0, "both")])
def test_wrong_arguments_are_refused(arguments: tuple[Any, ...]) -> None:
    features, targets, _ = problem()
    with pytest.raises(ValueError, match=r"positive|path is"):
        fit(features, targets, *arguments)
    with pytest.raises(ValueError, match="needed"):
        fit(features, targets[:3], 1.0, 1.0)
    with pytest.raises(ValueError, match="own=True"):
        fit(features, targets, 1.0, 1.0).predict(features[:3], own=True)


@pytest.mark.parametrize(("rho", "gamma"), PRIORS)
@pytest.mark.parametrize("path", ["dual", "primal"])
def test_against_gaussian_process_regression_of_scikit_learn(
    rho: float, gamma: float, path: Literal["dual", "primal"]
) -> None:
    features, targets, phi = problem()
    kernel = ConstantKernel(1 / rho, "fixed") * DotProduct(sigma_0=0, sigma_0_bounds="fixed")
    model = GaussianProcessRegressor(kernel, alpha=len(features) / gamma, optimizer=None)
    mean, deviation = model.fit(features.numpy(), targets.numpy()).predict(phi.numpy(), return_std=True)
    got_mean, got_variance = fit(features, targets, rho, gamma, path=path).predict(phi)
    np.testing.assert_allclose(got_mean, mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(got_variance, deviation[:, 0] ** 2, rtol=1e-9)


@pytest.mark.parametrize("path", ["dual", "primal"])
def test_against_bayesian_linear_regression_one_row_at_a_time(path: Literal["dual", "primal"]) -> None:
    """A Kalman filter over the rows with noise beta_S/gamma; no matrix is inverted."""
    features, targets, phi = (tensor.numpy() for tensor in problem())
    rho, gamma, beta = 0.5, 20.0, 3.0
    mean, covariance = np.zeros((features.shape[1], targets.shape[1])), np.eye(features.shape[1]) / rho
    for x, y in zip(features, targets, strict=True):
        gain = covariance @ x / (x @ covariance @ x + beta / gamma)
        mean += np.outer(gain, y - x @ mean)
        covariance -= np.outer(gain, x @ covariance)
    posterior = fit(torch.tensor(features), torch.tensor(targets), rho, gamma, beta, path)
    for got, wanted in zip(posterior.full(), (mean, covariance), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(posterior.variance(torch.tensor(phi)), np.diag(phi @ covariance @ phi.T), rtol=1e-9)


@pytest.mark.parametrize(("rho", "gamma"), PRIORS)
@pytest.mark.parametrize("path", ["dual", "primal"])
def test_kl_against_torch_distributions(rho: float, gamma: float, path: Literal["dual", "primal"]) -> None:
    features, targets, _ = problem()
    posterior = fit(features, targets, rho, gamma, path=path)
    mean, covariance = posterior.full()
    width = len(mean)
    ours = torch.distributions.MultivariateNormal(mean.T, covariance)
    prior = torch.distributions.MultivariateNormal(torch.zeros_like(mean.T), torch.eye(width).double() / rho)
    exact = torch.distributions.kl_divergence(ours, prior).sum()
    torch.testing.assert_close(posterior.kl(), exact, rtol=1e-10, atol=1e-10)
    classes = mean.shape[1]
    printed = 0.5 * (classes * (rho * covariance.trace() - covariance.logdet()) + rho * mean.square().sum())
    left_out = classes * width / 2 * (1 + math.log(rho))  # by the paper's "up to a constant"
    assert float(printed - posterior.kl()) == pytest.approx(left_out, rel=1e-10)


@pytest.mark.parametrize("path", ["dual", "primal"])
@pytest.mark.parametrize("own", [False, True])
def test_gradients_against_central_differences(path: Literal["dual", "primal"], own: bool) -> None:
    features, targets, phi = problem(3, 5, 2, 4)
    inputs = [tensor.requires_grad_() for tensor in (features + 0.1, targets, phi + 0.1)]

    def outputs(features: Tensor, targets: Tensor, phi: Tensor) -> tuple[Tensor, ...]:
        posterior = fit(features, targets, 0.7, 5.0, path=path)
        return (*posterior.predict(features if own else phi, own=own), posterior.kl(), *posterior.full())

    assert torch.autograd.gradcheck(outputs, inputs)


def test_the_coreset_objective_is_stationary() -> None:
    """The gradient of eq. inner at (m*, V*), where V = R R^T with R lower triangular."""
    features, targets, _ = problem()
    for rho, gamma in PRIORS:
        mean, covariance = (tensor.detach() for tensor in fit(features, targets, rho, gamma).full())
        lower = torch.linalg.cholesky(covariance).requires_grad_()
        root = lower.tril()
        mean.requires_grad_()
        classes = targets.shape[1]
        spread = (features @ root).square().sum()
        misfit = 0.5 * gamma * ((targets - features @ mean).square().sum() + classes * spread)
        trace = rho * root.square().sum() - 2 * root.diagonal().log().sum()
        objective = misfit + len(features) * 0.5 * (rho * mean.square().sum() + classes * trace)
        for gradient in torch.autograd.grad(objective, [mean, lower]):
            assert gradient.abs().max() < 1e-9 * gamma * len(features)


class Watch(TorchDispatchMode):
    """Notes the size and the device of every tensor that goes into or comes out of an operator, backward too."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        self.devices: set[str] = set()
        self.operators: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operators.append(str(func))
        self.devices |= {leaf.device.type for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)}
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.largest = max([self.largest, *sizes])
        return result


def step(fitted: Callable[..., Posterior], device: str = "cpu") -> tuple[Watch, Watch]:
    """Return what was seen in the forward and in the backward pass of the outer loss: n^ 6, h 64, k 3, batch 5."""
    features, targets, phi = (tensor.float().to(device) for tensor in problem(6, 64, 3, 5))
    labels = torch.zeros(5, dtype=torch.long, device=device)
    learned = [features.requires_grad_(), targets.requires_grad_()]
    with Watch() as forward:
        posterior = fitted(features, targets, 1.0, 100.0)
        loss = outer_loss(mean_field_log_probs(*posterior.predict(phi)), labels, posterior.kl(), 1e-8)
        loss = loss + posterior.predict(features, own=True)[1].sum()
    with Watch() as backward:
        gradients = torch.autograd.grad(loss, learned)
    assert [gradient.shape for gradient in gradients] == [tensor.shape for tensor in learned]
    return forward, backward


def test_the_dual_path_never_makes_a_tensor_of_h_times_h() -> None:
    forward, backward = step(fit)
    assert forward.largest == backward.largest == 6 * 64  # the features
    assert "aten.mm.default" in backward.operators
    for seen in step(naive.fit):  # and the watch would have seen one
        assert seen.largest == 64 * 64


@pytest.mark.parametrize("path", ["dual", "primal"])
def test_nothing_leaves_the_device_and_nothing_waits_for_it(path: Literal["dual", "primal"]) -> None:
    """`meta` tensors have no values: reading one on the host, or mixing in a tensor of the CPU, is an error or seen."""
    for seen in step(lambda *arguments: fit(*arguments, path=path), device="meta"):
        assert seen.devices == {"meta"}


def test_an_indefinite_matrix_gives_nan_and_not_a_wrong_number() -> None:
    # Rounding makes such a matrix on some processors only; a negative ratio of precisions does on all.
    features = torch.ones(20, 3)
    posterior = Dual.fit(features, torch.ones(20, 2), rho=1.0, ratio=-1.0)
    assert posterior.mean(features).isnan().all()
    assert posterior.kl().isnan()
