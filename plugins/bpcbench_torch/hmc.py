"""Hamiltonian Monte Carlo with several chains in lockstep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bpcbench_torch.capture import Regions
from bpcbench_torch.potential import Potential
from bpcbench_torch.sghmc import normal

_JITTER = 0.2
"""Relative jitter of each trajectory's step size, which keeps chains from periodic orbits."""


def leapfrog(
    potential: Potential, theta: Tensor, momentum: Tensor, gradient: Tensor, step_size: Tensor, steps: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return position, momentum, energy and gradient after `steps` leapfrog steps; the arguments are not modified.

    Half a kick, a drift, half a kick: m -= eps/2 grad E; theta += eps m; m -= eps/2 grad E, inner kicks merged.
    The map is reversible under a change of sign of the momentum, and its error in E + |m|^2/2 is O(eps^2).
    """
    momentum = momentum - step_size / 2 * gradient
    for left in range(steps, 0, -1):
        theta = theta + step_size * momentum
        with torch.enable_grad():
            energy, gradient = potential(theta)
        momentum = momentum - (step_size if left > 1 else step_size / 2) * gradient
    return theta, momentum, energy, gradient


class HMC:
    """HMC (Duane et al., 1987; Neal, 2011) with target exp(-E / T) and momenta N(0, T I).

    With H = E + |m|^2/2, the end of a trajectory is accepted with probability min(1, exp((H_start - H_end) / T)); a
    divergent trajectory is rejected. With `capture` a trajectory is a region, for potentials that draw nothing. During
    burn-in, each chain's step size is adapted to the target `acceptance` by
    dual averaging (Hoffman & Gelman, 2014), then fixed; a target of 0 turns adaptation off.
    """

    def __init__(
        self,
        potential: Potential,
        theta: Tensor,
        generators: Sequence[torch.Generator],
        *,
        step_size: float,
        steps: int,
        temperature: float,
        acceptance: float = 0.8,
        capture: bool = False,
    ) -> None:
        self.potential, self.theta, self.generators = potential, theta.clone(), list(generators)
        self.steps, self.temperature, self.acceptance = steps, temperature, acceptance
        self.regions = Regions(theta.device, enabled=capture)
        with torch.enable_grad():
            self.energy, self.gradient = potential(self.theta)
        self.start = math.log(step_size)
        self.log_step = torch.full_like(self.energy, self.start, dtype=torch.float64)
        # State of dual averaging: the smoothed log step size, the mean shortfall of acceptance, the number of updates.
        self.average, self.shortfall = torch.zeros_like(self.log_step), torch.zeros_like(self.log_step)
        # On the CPU: the host branches on it.
        self.moves = torch.zeros((), dtype=torch.float64)

    def state(self) -> dict[str, Any]:
        """Return all mutable objects."""
        names = ("theta", "energy", "gradient", "log_step", "average", "shortfall", "moves")
        draws = {f"noise.{chain}": generator for chain, generator in enumerate(self.generators)}
        return {**{name: getattr(self, name) for name in names}, **draws}

    @torch.no_grad()
    def step(self, *, burning: bool) -> dict[str, Tensor]:
        """Run one trajectory of every chain; return `energy`, acceptance probability and step size, all (chains,)."""
        if not burning and self.acceptance and self.moves > 0:
            self.log_step.copy_(self.average)
        momentum = math.sqrt(self.temperature) * normal(self.generators, self.theta)
        draws = [torch.rand(2, generator=g, device=g.device, dtype=torch.float64) for g in self.generators]
        uniform = torch.stack(draws)
        sizes = self.log_step.exp() * (1 + _JITTER * (2 * uniform[:, 0] - 1))
        before = self._hamiltonian(self.energy, momentum)
        theta, end, energy, gradient = self.regions(
            "trajectory",
            partial(leapfrog, self.potential, steps=self.steps),
            [self.theta, momentum, self.gradient, sizes[:, None].to(self.theta.dtype)],
        )
        gain = (before - self._hamiltonian(energy, end)) / self.temperature
        probability = gain.clamp(max=0).exp().nan_to_num(nan=0.0)
        accepted = uniform[:, 1] < probability
        for kept, new in ((self.theta, theta), (self.energy, energy), (self.gradient, gradient)):
            rows = accepted if kept.dim() == 1 else accepted[:, None]
            kept.copy_(torch.where(rows, new, kept))
        if burning and self.acceptance:
            self._adapt(probability)
        return {"energy": self.energy, "acceptance": probability, "step_size": sizes}

    @staticmethod
    def _hamiltonian(energy: Tensor, momentum: Tensor) -> Tensor:
        # In double precision: acceptance depends on a small difference divided by a possibly small temperature.
        return energy.double() + 0.5 * momentum.double().square().sum(1)

    def _adapt(self, probability: Tensor) -> None:
        """Update log eps by dual averaging with the authors' constants: gamma 0.05, t0 10, kappa 0.75."""
        self.moves += 1
        self.shortfall += (self.acceptance - probability - self.shortfall) / (self.moves + 10)
        self.log_step.copy_(self.start + math.log(10) - self.moves.sqrt() / 0.05 * self.shortfall)
        self.average += self.moves**-0.75 * (self.log_step - self.average)
