"""The gradient through VBPC's closed form is the implicit one of the paper, and the closed form is its fixed point.

The coreset is S = (Phi, Y): features and targets. q(w_j) = N(m_j, V_j) has natural parameters
lambda_j = (V_j^{-1} m_j, -V_j^{-1} / 2) and mean parameters mu_j = (m_j, V_j + m_j m_j^T), flattened here into a
vector. Everything below is written in mu and lambda, in float64, without the code under test.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian

from bpcbench_vbpc.likelihood import mean_field_log_probs, outer_loss
from bpcbench_vbpc.posterior import fit

ROWS, WIDTH, CLASSES, BATCH = 4, 3, 2, 7
BETA_D = 0.3
SETTINGS = [(1.0, 100.0, 4.0), (10.0, 100.0, 4.0), (0.5, 2.0, 1.0), (2.0, 3.0, 9.0)]
"""rho, gamma and beta_S; the last two weight the prior more than the paper does."""


def drawn(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return features and targets of the coreset, and features and labels of a real batch."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((ROWS, WIDTH), (ROWS, CLASSES), (BATCH, WIDTH))
    phi, targets, real = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return phi, targets, real, torch.randint(CLASSES, (BATCH,), generator=generator)


def join(first: Tensor, second: Tensor) -> Tensor:
    """Return one vector of blocks (k, h) and (k, h, h)."""
    return torch.cat([first.flatten(), second.flatten()])


def split(vector: Tensor) -> tuple[Tensor, Tensor]:
    edge = CLASSES * WIDTH
    return vector[:edge].view(CLASSES, WIDTH), vector[edge:].view(CLASSES, WIDTH, WIDTH)


def moments(mu: Tensor) -> tuple[Tensor, Tensor]:
    """Return m (k, h) and V (k, h, h)."""
    mean, second = split(mu)
    return mean, second - mean[:, :, None] * mean[:, None, :]


def natural(mu: Tensor) -> Tensor:
    """Return lambda as a function of mu, written so that it is lambda_0 + grad_mu KL for matrices V of any symmetry."""
    mean, covariance = moments(mu)
    precision = torch.linalg.inv(covariance).mT
    return join(((precision + precision.mT) / 2 @ mean[:, :, None]).squeeze(2), -precision / 2)


def prior(rho: float) -> Tensor:
    eye = torch.eye(WIDTH, dtype=torch.float64).expand(CLASSES, WIDTH, WIDTH)
    return join(torch.zeros(CLASSES, WIDTH, dtype=torch.float64), -rho / 2 * eye)


def coreset_loss(phi: Tensor, targets: Tensor, mu: Tensor, gamma: float) -> Tensor:
    """Return -E_q[sum_i log N(y_i | W^T phi_i, I/gamma)] up to a constant: an affine function of mu."""
    mean, second = split(mu)
    squares = torch.einsum("nh,khg,ng->nk", phi, second, phi)
    return gamma / 2 * (targets.square() - 2 * targets * (phi @ mean.T) + squares).sum()


def divergence(mu: Tensor, rho: float) -> Tensor:
    """Return KL[q || prior]."""
    mean, covariance = moments(mu)
    traces = rho * covariance.diagonal(dim1=1, dim2=2).sum()
    return 0.5 * (traces + rho * mean.square().sum() - CLASSES * WIDTH - torch.logdet(rho * covariance).sum())


def data_loss(real: Tensor, labels: Tensor, mu: Tensor, rho: float) -> Tensor:
    """Return L_D as a function of mu, where each class has its own variance."""
    mean, covariance = moments(mu)
    variance = torch.einsum("nh,khg,ng->nk", real, covariance, real)
    logits = real @ mean.T / (1 + math.pi / 8 * variance).sqrt()
    return torch.nn.functional.cross_entropy(logits, labels) + BETA_D * divergence(mu, rho)


def solution(phi: Tensor, targets: Tensor, rho: float, gamma: float, beta: float) -> Tensor:
    """Return mu at the closed form of the code under test."""
    mean, covariance = fit(phi, targets, rho, gamma, beta).full()
    return join(mean.T, covariance + mean.T[:, :, None] * mean.T[:, None, :])


@pytest.mark.parametrize(("rho", "gamma", "beta"), SETTINGS)
def test_the_closed_form_is_the_natural_gradient_fixed_point(rho: float, gamma: float, beta: float) -> None:
    """lambda* = lambda_0 - grad_mu l_S / beta_S (eq. vi_fixed_point), reached in one step of size 1/beta_S."""
    phi, targets, _, _ = drawn()
    optimum = solution(phi, targets, rho, gamma, beta)

    def objective(mu: Tensor) -> Tensor:
        return coreset_loss(phi, targets, mu, gamma) + beta * divergence(mu, rho)

    slope = jacobian(lambda mu: coreset_loss(phi, targets, mu, gamma), optimum)
    torch.testing.assert_close(natural(optimum), prior(rho) - slope / beta, rtol=1e-9, atol=1e-9)
    # grad_mu KL = lambda - lambda_0, so a natural-gradient step is lambda - eta grad_mu L_S.
    wide = torch.eye(WIDTH, dtype=torch.float64).expand(CLASSES, WIDTH, WIDTH)
    for mu in (optimum, join(torch.ones(CLASSES, WIDTH, dtype=torch.float64), 5 * wide)):
        stepped = natural(mu) - jacobian(objective, mu) / beta
        torch.testing.assert_close(stepped, natural(optimum), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("rho", "gamma", "beta"), SETTINGS)
def test_autograd_through_the_closed_form_is_the_implicit_gradient(rho: float, gamma: float, beta: float) -> None:
    """grad_S L_D = -(grad_S grad_mu L_S) (grad_mu^2 L_S)^{-1} grad_mu L_D (eqs. hypergradient and bilevel_grad)."""
    phi, targets, real, labels = drawn(1)
    leaves = (phi.clone().requires_grad_(), targets.clone().requires_grad_())
    q = fit(*leaves, rho, gamma, beta)
    mean, variance = q.predict(real)
    loss = outer_loss(mean_field_log_probs(mean, variance), labels, q.kl(), BETA_D)
    explicit = torch.autograd.grad(loss, leaves)

    mu = solution(phi, targets, rho, gamma, beta)
    torch.testing.assert_close(data_loss(real, labels, mu, rho), loss.detach(), rtol=1e-10, atol=1e-10)

    curvature = hessian(lambda mu: coreset_loss(phi, targets, mu, gamma) + beta * divergence(mu, rho), mu)
    # The likelihood is affine in mu, so that only the KL is curved.
    torch.testing.assert_close(curvature, beta * jacobian(natural, mu), rtol=1e-8, atol=1e-8)
    influence = torch.linalg.solve(curvature, jacobian(lambda mu: data_loss(real, labels, mu, rho), mu))

    def slope(phi: Tensor, targets: Tensor) -> Tensor:
        # The derivative acts on S in grad_mu L_S alone; mu and the influence are held fixed.
        point = mu.clone().requires_grad_()
        value = coreset_loss(phi, targets, point, gamma)
        (gradient,) = torch.autograd.grad(value, point, create_graph=True)
        return -(gradient @ influence)

    again = (phi.clone().requires_grad_(), targets.clone().requires_grad_())
    implicit = torch.autograd.grad(slope(*again), again)
    assert all(float(gradient.abs().max()) > 1e-4 for gradient in explicit)
    for got, expected in zip(explicit, implicit, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-9)
