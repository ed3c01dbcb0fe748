"""SGHMC and HMC against distributions that are known exactly, through the code that samples networks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov

from bpcbench_torch import diagnostics
from bpcbench_torch.chains import Samples, Schedule, run
from bpcbench_torch.hmc import HMC, leapfrog
from bpcbench_torch.sghmc import SGHMC

SIZE = 10
FRICTION = 0.2


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Bare:
    """A context without a harness."""

    seed, device, precision, scratch = 0, "cpu", "float32", Path("nowhere")

    def __init__(self) -> None:
        self.curves: dict[str, list[float]] = {}

    def steps(self, total: int, *, state: Any = None, snapshot: Any = None, what: str = "") -> Iterator[int]:
        yield from range(total)

    def log(self, **metrics: Any) -> None:
        for name, value in metrics.items():
            self.curves.setdefault(name, []).append(float(value))


class Gaussian:
    """E = (x - mean)' precision (x - mean) / 2 with curvatures from 0.5 to 2 along directions of no coordinate axis."""

    def __init__(self, size: int = SIZE) -> None:
        rng = np.random.default_rng(0)
        self.curvatures = np.linspace(0.5, 2, size)
        self.axes = np.linalg.qr(rng.normal(size=(size, size)))[0]
        self.mean = rng.normal(size=size)
        self.precision = self.axes @ np.diag(self.curvatures) @ self.axes.T
        self._precision, self._mean = torch.tensor(self.precision), torch.tensor(self.mean)

    def __call__(self, theta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        off = theta - self._mean
        gradient = off @ self._precision
        return (off * gradient).sum(1) / 2, gradient

    def whitened(self, draws: np.ndarray, temperature: float) -> np.ndarray:
        """Return draws (..., size) in the axes of the Gaussian, where they should be standard normal."""
        return (draws - self.mean) @ self.axes * np.sqrt(self.curvatures / temperature)


def sghmc(potential: Any, theta: torch.Tensor, generators: Any, temperature: float, step_size: float = 0.25) -> SGHMC:
    return SGHMC(potential, theta, generators, step_size=step_size, friction=FRICTION, temperature=temperature)


def hmc(potential: Any, theta: torch.Tensor, generators: Any, temperature: float, step_size: float = 0.8) -> HMC:
    # So coarse that many a trajectory is rejected: a wrong rule of acceptance would be seen.
    return HMC(potential, theta, generators, step_size=step_size, steps=2, temperature=temperature, acceptance=0)


SAMPLERS: dict[str, tuple[Callable[..., Any], Schedule]] = {
    "sghmc": (sghmc, Schedule(burn=150, samples=700, thin=5)),
    "hmc": (hmc, Schedule(burn=50, samples=1000)),
}
each_sampler = pytest.mark.parametrize("name", list(SAMPLERS))


def generators(chains: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(1000 * seed + chain) for chain in range(chains)]


def sampled(kernel: Any, schedule: Schedule, ctx: Any = None) -> np.ndarray:
    """Return draws (chains, draws, size)."""
    samples = Samples()
    run(kernel, schedule, samples, ctx or Bare())
    chains = range(len(kernel.theta))
    return np.stack([[samples.read(chain, draw).numpy() for draw in range(len(samples))] for chain in chains])


def law(curvature: float, step_size: float, temperature: float = 1.0) -> float:
    """Return the variance of theta that SGHMC's recursion has exactly, for a quadratic energy in one dimension."""
    move = np.array([[1, step_size], [-step_size * curvature, 1 - FRICTION - step_size**2 * curvature]])
    noise = np.diag([0, 2 * FRICTION * temperature])
    return float(solve_discrete_lyapunov(move, noise)[0, 0])


def off_by(draws: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return how many Monte Carlo standard errors the means of draws (chains, draws, quantities) are off."""
    error = draws.std((0, 1)) / np.sqrt(diagnostics.ess(draws))
    return np.abs(draws.mean((0, 1)) - expected) / error


def products(draws: np.ndarray) -> np.ndarray:
    """Return x_i x_j for i <= j."""
    rows, columns = np.triu_indices(draws.shape[-1])
    return draws[..., rows] * draws[..., columns]


@each_sampler
@pytest.mark.parametrize("temperature", [1.0, 0.01])
def test_a_correlated_gaussian_has_its_mean_and_covariance(name: str, temperature: float) -> None:
    make, schedule = SAMPLERS[name]
    target = Gaussian()
    start = torch.zeros(8, SIZE, dtype=torch.float64)
    kernel = make(target, start, generators(8), temperature)
    z = target.whitened(sampled(kernel, schedule), temperature)
    assert diagnostics.rhat(z).max() < 1.02
    assert off_by(z, np.zeros(SIZE)).max() < 4.5
    variances = np.ones(SIZE)
    if name == "sghmc":
        variances = np.array([c * law(c, kernel.step_size) for c in target.curvatures])
        assert np.abs(variances - 1).max() < 0.08  # what the step size costs, by the exact law of the recursion
    assert diagnostics.ess(products(z)).min() > 500
    assert off_by(products(z), np.diag(variances)[np.triu_indices(SIZE)]).max() < 4.5


def test_a_smaller_step_brings_sghmc_to_the_target() -> None:
    biases = [law(4.0, step) * 4 - 1 for step in (0.2, 0.1, 0.05)]
    assert biases[0] > 0
    np.testing.assert_allclose(np.array(biases[:-1]) / biases[1:], 4, rtol=0.05)
    assert biases[2] == pytest.approx(4 * 0.05**2 / (4 - 2 * FRICTION), rel=0.01)


@each_sampler
def test_a_chain_does_not_depend_on_the_others_and_only_on_its_seed(name: str) -> None:
    make, _ = SAMPLERS[name]
    target, schedule = Gaussian(), Schedule(5, 10, 2)
    start = torch.zeros(4, SIZE, dtype=torch.float64)
    four = sampled(make(target, start, generators(4), 1.0), schedule)
    two = sampled(make(target, start[:2], generators(2), 1.0), schedule)
    np.testing.assert_allclose(two, four[:2], rtol=1e-12)
    other = sampled(make(target, start, generators(4, seed=1), 1.0), schedule)
    assert np.abs(other - four).min() > 0
    assert start.abs().max() == 0  # where chains start is the caller's


@each_sampler
def test_what_is_logged_is_the_mean_over_chains(name: str) -> None:
    make, _ = SAMPLERS[name]
    target, ctx = Gaussian(), Bare()
    kernel = make(target, torch.zeros(4, SIZE, dtype=torch.float64), generators(4), 1.0)
    draws = sampled(kernel, Schedule(0, 20), ctx)
    energies = [float(target(torch.tensor(draws[:, draw]))[0].mean()) for draw in range(20)]
    np.testing.assert_allclose(ctx.curves["energy"], energies, rtol=1e-10)


def test_the_schedule_counts_steps() -> None:
    schedule = Schedule(burn=3, samples=2, thin=4)
    assert schedule.total == 11
    assert [step for step in range(schedule.total) if schedule.keeps(step)] == [6, 10]
    assert [step for step in range(3) if Schedule(0, 3).keeps(step)] == [0, 1, 2]


def test_leapfrog_is_reversible_and_conserves_energy_to_second_order() -> None:
    target = Gaussian()
    theta = torch.randn(3, SIZE, dtype=torch.float64, generator=generators(1)[0])
    momentum = torch.randn(3, SIZE, dtype=torch.float64, generator=generators(1, seed=1)[0])
    energy, gradient = target(theta)
    errors = []
    for steps in (20, 40, 80):
        step = torch.full((3, 1), 2.0 / steps, dtype=torch.float64)
        end, faster, higher, slope = leapfrog(target, theta, momentum, gradient, step, steps)
        back, turned, _, _ = leapfrog(target, end, -faster, slope, step, steps)
        torch.testing.assert_close(back, theta, rtol=0, atol=1e-12)
        torch.testing.assert_close(-turned, momentum, rtol=0, atol=1e-12)
        change = higher + faster.square().sum(1) / 2 - energy - momentum.square().sum(1) / 2
        errors.append(change.abs().numpy())
    np.testing.assert_allclose(errors[0] / errors[1], 4, rtol=0.1)
    np.testing.assert_allclose(errors[1] / errors[2], 4, rtol=0.03)


@pytest.mark.parametrize("temperature", [1.0, 0.01])
def test_acceptance_is_the_metropolis_rule(temperature: float) -> None:
    target = Gaussian()
    kernel = hmc(target, torch.zeros(80, SIZE, dtype=torch.float64), generators(80), temperature)
    for _ in range(20):
        kernel.step(burning=False)
    before, state = kernel.theta.clone(), [g.get_state() for g in kernel.generators]
    found = kernel.step(burning=False)
    moved = (kernel.theta != before).any(1).numpy()
    rates = []
    for chain in range(80):
        draw = torch.Generator()
        draw.set_state(state[chain])
        m = math.sqrt(temperature) * torch.randn(SIZE, generator=draw, dtype=torch.float64).numpy()
        jitter, uniform = torch.rand(2, generator=draw, dtype=torch.float64).numpy()
        step = 0.8 * (0.8 + 0.4 * jitter)
        x = before[chain].numpy() - target.mean
        start = x @ target.precision @ x / 2 + m @ m / 2
        for _ in range(2):
            m = m - step / 2 * target.precision @ x
            x = x + step * m
            m = m - step / 2 * target.precision @ x
        rate = min(1.0, math.exp((start - x @ target.precision @ x / 2 - m @ m / 2) / temperature))
        rates.append(rate)
        assert moved[chain] == (uniform < rate)
        if moved[chain]:
            np.testing.assert_allclose(kernel.theta[chain].numpy(), x + target.mean, rtol=1e-9)
    np.testing.assert_allclose(found["acceptance"].numpy(), rates, rtol=1e-6)
    assert 0.3 < np.mean(moved) < 0.95


def test_a_step_that_is_far_too_long_moves_nothing() -> None:
    def overflowing(theta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return theta.pow(4).sum(1), 4 * theta.pow(3)

    start = torch.ones(3, 5)
    kernel = HMC(overflowing, start, generators(3), step_size=100.0, steps=30, temperature=1.0, acceptance=0)
    ctx = Bare()
    draws = sampled(kernel, Schedule(0, 5), ctx)
    assert (draws == 1).all()
    assert ctx.curves["acceptance"] == [0.0] * 5
    assert np.isfinite(ctx.curves["energy"]).all()


@pytest.mark.parametrize("first", [1e-4, 50.0])
@pytest.mark.parametrize("wanted", [0.65, 0.9])
def test_the_step_size_is_adapted_while_burning_in_and_then_fixed(first: float, wanted: float) -> None:
    target, ctx = Gaussian(), Bare()
    start = torch.zeros(8, SIZE, dtype=torch.float64)
    kernel = HMC(target, start, generators(8), step_size=first, steps=4, temperature=0.01, acceptance=wanted)
    sampled(kernel, Schedule(400, 200), ctx)
    assert np.mean(ctx.curves["acceptance"][400:]) == pytest.approx(wanted, abs=0.12)
    fixed = kernel.log_step.clone()
    kernel.step(burning=False)
    assert torch.equal(fixed, kernel.log_step)


def test_sghmc_agrees_with_another_implementation() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posteriors = pytest.importorskip("posteriors", reason="posteriors is not installed")
    target, chains, temperature = Gaussian(4), 64, 0.5
    torch.manual_seed(0)
    # BAOA, the most accurate of its integrators of the same dynamics: both are close to the target at these steps.
    transform = posteriors.sgmcmc.baoa.build(
        lambda theta, batch: (-target(theta)[0].sum(), torch.tensor([])), lr=0.2, alpha=1.0, temperature=temperature
    )
    start = torch.zeros(chains, 4, dtype=torch.float64)
    state, kept = transform.init(start), []
    for index in range(600):
        state, _ = transform.update(state, None)
        if index >= 100 and index % 5 == 0:
            kept.append(state.params.numpy().copy())
    theirs = np.stack(kept, 1)
    ours = sampled(sghmc(target, start, generators(chains), temperature, 0.1), Schedule(100, 100, 10))
    for moments in (np.asarray, products):
        mine, other = moments(ours), moments(theirs)
        errors = [draws.std((0, 1)) / np.sqrt(diagnostics.ess(draws)) for draws in (mine, other)]
        assert (np.abs(mine.mean((0, 1)) - other.mean((0, 1))) < 4.5 * np.hypot(*errors)).all()
