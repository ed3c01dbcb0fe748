"""BPC-rKL against the closed form of a Bayesian linear model, and its accumulator against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from bpcbench_bpc.reverse_kl import Covariance, ReverseKL
from bpcbench_torch.flat import FlatNetwork

PIXELS = 3
"""Two inputs and an output of a linear regression."""


class LinearModel(nn.Module):
    """log p(class 0 | x) = -(y - w.phi)^2 / 2 - 60, where the pixels of x are phi and y: a Gaussian likelihood."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(PIXELS - 1, dtype=torch.float64))

    def forward(self, x):
        x = x.flatten(1)
        logit = -0.5 * (x[:, -1] - x[:, :-1] @ self.weight) ** 2 - 60.0
        return torch.stack([logit, torch.zeros_like(logit)], 1)


def posterior(points):
    """Mean and covariance under the prior N(0, I) and unit noise."""
    phi, y = points.flatten(1)[:, :-1], points.flatten(1)[:, -1]
    covariance = torch.linalg.inv(torch.eye(PIXELS - 1, dtype=torch.float64) + phi.T @ phi)
    return covariance @ phi.T @ y, covariance


def kl(pseudo, real):
    (mean, covariance), (other, wide) = posterior(pseudo), posterior(real)
    precision = torch.linalg.inv(wide)
    gap = other - mean
    return 0.5 * (
        torch.trace(precision @ covariance)
        + gap @ precision @ gap
        - len(mean)
        + torch.logdet(wide)
        - torch.logdet(covariance)
    )


@pytest.fixture
def linear(make_problem):
    generator = torch.Generator().manual_seed(0)
    real = torch.randn(6, 1, 1, PIXELS, generator=generator, dtype=torch.float64)
    # Orthogonal inputs of equal length make the posterior isotropic, as the method's draws are.
    pseudo = 1.5 * torch.tensor([[1.0, 0.0, 0.8], [0.0, 1.0, -0.5]], dtype=torch.float64).reshape(2, 1, 1, PIXELS)
    mean, covariance = posterior(pseudo)
    torch.testing.assert_close(covariance, covariance[0, 0] * torch.eye(2, dtype=torch.float64))
    problem = make_problem(
        network=FlatNetwork(LinearModel()),
        snapshots=mean[None],
        images=pseudo.requires_grad_(),
        classes=torch.zeros(2, dtype=torch.int64),
        real=lambda: (real, torch.zeros(6, dtype=torch.int64)),
        examples=6,
    )
    (exact,) = torch.autograd.grad(kl(problem.images, real), problem.images)
    return problem, float(covariance[0, 0]) ** 0.5, exact


@pytest.mark.parametrize("chunk", [500, 4000])
def test_the_estimator_converges_to_the_gradient_of_the_kl(linear, chunk):
    problem, sigma, exact = linear
    method = ReverseKL(inner_steps=0, sigma=sigma, draws=60_000, chunk=chunk, batch=6)
    ours = problem.examples * method.estimate(problem).gradients[0]
    assert torch.linalg.vector_norm(ours - exact) < 0.04 * torch.linalg.vector_norm(exact)
    # The public code's means instead of sums give another direction: the test can tell.
    official = ReverseKL(preset="official", inner_steps=0, sigma=sigma, draws=60_000, chunk=4000, batch=6)
    theirs = official.estimate(problem).gradients[0]
    assert torch.cosine_similarity(theirs.flatten(), exact.flatten(), 0) < 0.99


def test_one_draw_at_a_time_is_the_same_estimator(make_problem):
    noise = torch.randn(7, make_problem().network.size, dtype=torch.float64)

    def supply():
        rows = iter(noise)
        return lambda count, size: torch.stack([next(rows) for _ in range(count)])

    for learned in (False, True):
        whole, single, uneven = (
            ReverseKL(inner_steps=2, draws=7, chunk=chunk)
            .estimate(make_problem(learned_labels=learned, normal=supply()))
            .gradients
            for chunk in (7, 1, 3)
        )
        for parts in (single, uneven):
            for one, other in zip(whole, parts, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


def test_gradients_of_images_and_labels_are_covariances(make_problem):
    """The formula, with every draw kept."""
    problem = make_problem(learned_labels=True)
    draws = ReverseKL(inner_steps=0, sigma=0.5, draws=6, preset="official").estimate(problem).gradients
    again = make_problem(learned_labels=True)
    images, labels = again.real()
    slopes, scalars = [], []
    for _ in range(6):
        theta = again.window(0) + 0.5 * again.normal(again.network.size)
        own = (again.targets() * torch.log_softmax(again.network(theta, again.images), 1)).sum(1)
        real = torch.log_softmax(again.network(theta, images), 1)[torch.arange(len(labels)), labels]
        slopes.append(torch.autograd.grad(own.sum(), again.learned))
        scalars.append((own.mean() - real.mean()).detach())
    for leaf in range(2):
        stacked = torch.stack([slope[leaf] for slope in slopes]).flatten(1).numpy()
        wanted = np.cov(stacked.T, torch.stack(scalars).numpy(), bias=True)[-1, :-1]
        np.testing.assert_allclose(draws[leaf].flatten().numpy(), wanted, rtol=1e-9, atol=1e-12)


def test_the_accumulator_is_numpys_covariance_in_float32():
    rng = np.random.default_rng(0)
    values = (1000 + rng.normal(size=50)).astype(np.float32)
    arrays = (500 + values[:, None] * [1, -2, 0] + rng.normal(size=(50, 3))).astype(np.float32)
    covariance = Covariance()
    for first in (0, 1, 2, 20, 49):
        last = {0: 1, 1: 2, 2: 20, 20: 49, 49: 50}[first]
        covariance.add(torch.tensor(values[first:last]), [torch.tensor(arrays[first:last])])
    wanted = [np.cov(values.astype(float), column.astype(float))[0, 1] for column in arrays.T]
    np.testing.assert_allclose(covariance.total(49)[0].numpy(), wanted, rtol=1e-3, atol=2e-3)


def test_only_the_public_code_goes_without_momentum():
    assert ReverseKL().image_momentum() == 0.5
    assert ReverseKL(preset="official").image_momentum() == 0.0
