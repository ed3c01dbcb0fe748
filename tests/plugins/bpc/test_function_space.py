"""FBPC: its Gaussian outputs, its limits, and that it is not fKL under another name."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from bpcbench_bpc.forward_kl import ForwardKL
from bpcbench_bpc.function_space import FunctionSpace, draw_outputs
from bpcbench_bpc.trajectories import Trajectories

PLAN = Trajectories()


def fbpc(**options):
    return FunctionSpace(**{"trajectories": PLAN, "inner_steps": 6, **options})


def gradient(method, problem):
    return method.estimate(problem).gradients[0]


@pytest.mark.parametrize("covariance", ["low-rank", "diagonal"])
def test_draws_have_the_empirical_covariance(covariance):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    outputs, centre = normal(4, 3, 2) * torch.tensor([1.0, 3.0]), normal(3, 2)
    z = draw_outputs(centre, outputs, covariance, 0.1, 200_000, normal)
    wanted = np.cov(outputs.flatten(1).numpy().T)
    if covariance == "diagonal":
        wanted = np.diag(np.diag(wanted))
    wanted = wanted + 0.01 * np.eye(6)
    np.testing.assert_allclose(np.cov(z.flatten(1).numpy().T), wanted, atol=0.015 * wanted.max())
    np.testing.assert_allclose(z.mean(0), centre, atol=0.05)


@pytest.mark.parametrize("learned", [False, True])
def test_one_point_without_jitter_is_fkl_without_noise(make_problem, learned):
    ours = fbpc(points=1, delta=0.0, draws=3).estimate(make_problem(learned_labels=learned))
    fkl = ForwardKL(inner_steps=6, sigma=0.0, draws=1).estimate(make_problem(learned_labels=learned))
    for one, other in zip(ours.gradients, fkl.gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(ours.values["loss"], fkl.values["loss"])


def test_five_points_are_something_else(make_problem):
    norm = torch.linalg.vector_norm

    def problem(**changes):
        return make_problem(spread=1.0, **changes)

    fkl = gradient(ForwardKL(inner_steps=6, sigma=0.0, draws=1), problem())
    several = {points: gradient(fbpc(points=points, draws=20_000), problem()) for points in (1, 2, 3, 5)}
    assert norm(several[1] - fkl) < 1e-3 * norm(fkl)
    for points in (2, 3, 5):
        assert norm(several[points] - fkl) > 0.1 * norm(fkl)
    for one, other in itertools.combinations((2, 3, 5), 2):
        assert norm(several[one] - several[other]) > 0.05 * norm(fkl)
    # Not only because another mean is taken: the spread of the outputs matters, too.
    average = torch.stack([problem().window(e) for e in range(1, 6)]).mean(0)
    moved = problem(window=lambda e: problem().window(e) if e == 0 else average)
    mean_only = gradient(ForwardKL(inner_steps=6, sigma=0.0, draws=1), moved)
    assert norm(several[5] - mean_only) > 0.03 * norm(mean_only)


def kl_at_real(problem, images, delta, points, steps):
    """The variant's objective in NumPy, with the variances of the first call."""
    from bpcbench_bpc.inner import descend

    chain = descend(problem, problem.window(0), steps, keep=points)
    x = np.stack([problem.network(problem.window(1 + j), images).numpy() for j in range(points)])
    u = np.stack([problem.network(theta, images).numpy() for theta in chain])
    return x, u, u.var(0, ddof=1) + delta**2, x.var(0, ddof=1) + delta**2


def test_the_variant_at_real_images(make_problem, central_difference):
    real = torch.randn(5, 1, 4, 4, dtype=torch.float64)
    problem = make_problem(real=lambda: (real, torch.zeros(5)))
    estimate = fbpc(variant="real", points=3, delta=0.1).estimate(problem)
    x, _, v_u, v_x = kl_at_real(problem, real, 0.1, 3, 6)

    def loss():
        _, now, _, _ = kl_at_real(problem, real, 0.1, 3, 6)
        return 0.5 * ((v_x + (x.mean(0) - now[-1]) ** 2) / v_u + np.log(v_u / v_x) - 1).sum() / 5

    assert float(estimate.values["loss"]) == pytest.approx(loss())
    for index in ((0, 0, 1, 2), (3, 0, 0, 0)):
        wanted = central_difference(loss, problem.images, index)
        assert float(estimate.gradients[0][index]) == pytest.approx(wanted, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": 0}, "at least 1"),
        ({"points": 9}, "9 points need at least 8 inner_steps"),
        ({"delta": -1.0}, "negative"),
        ({"variant": "real", "delta": 0.0}, "above 0"),
        ({"max_start": 48, "points": 5}, "reach epoch 52 but the trajectories end at 50"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        fbpc(**options)
