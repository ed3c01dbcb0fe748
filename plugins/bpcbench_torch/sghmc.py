"""Stochastic gradient Hamiltonian Monte Carlo with several chains in lockstep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bpcbench_torch.potential import Potential


def normal(generators: Sequence[torch.Generator], like: Tensor) -> Tensor:
    """Return standard normal numbers in the shape of `like` (chains, size), drawn by each chain's own generator."""
    size, dtype = like.shape[1], like.dtype
    return torch.stack([torch.randn(size, generator=g, device=g.device, dtype=dtype) for g in generators])


class SGHMC:
    """SGHMC (Chen, Fox & Guestrin, ICML 2014) as in BPC-D's code (Kim et al., NeurIPS 2022).

    theta <- theta + eps m, then m <- (1 - alpha) m - eps grad E(theta) + sqrt(2 alpha T) N(0, I), for a step size eps,
    a friction alpha and a temperature T. For small eps theta is distributed as exp(-E / T); for a quadratic energy of
    curvature c its variance is T/c (1 + c eps^2 / (4 - 2 alpha) + ...). There is no acceptance step, and the noise of
    a stochastic gradient raises the temperature.
    """

    def __init__(
        self,
        potential: Potential,
        theta: Tensor,
        generators: Sequence[torch.Generator],
        *,
        step_size: float,
        friction: float,
        temperature: float,
    ) -> None:
        self.potential, self.theta, self.generators = potential, theta.clone(), list(generators)
        self.step_size, self.friction, self.noise = step_size, friction, math.sqrt(2 * friction * temperature)
        self.momentum = math.sqrt(temperature) * normal(self.generators, self.theta)

    def state(self) -> dict[str, Any]:
        """Return all mutable objects."""
        draws = {f"noise.{chain}": generator for chain, generator in enumerate(self.generators)}
        return {"theta": self.theta, "momentum": self.momentum, **draws}

    @torch.no_grad()
    def step(self, *, burning: bool) -> dict[str, Tensor]:
        """Advance all chains by one step; return the `energy` (chains,) at the new parameters."""
        self.theta.add_(self.momentum, alpha=self.step_size)
        with torch.enable_grad():
            energy, gradient = self.potential(self.theta)
        self.momentum.mul_(1 - self.friction).sub_(gradient, alpha=self.step_size)
        self.momentum.add_(normal(self.generators, self.theta), alpha=self.noise)
        return {"energy": energy}
