"""The same posterior computed from V itself, the "naive" column of the VBPC paper, for tests and that ablation.

    P = rho I + (gamma/beta_S) Phi^T Phi,    V = P^{-1},    m = V (gamma/beta_S) Phi^T Y.

It takes h^2 memory and h^3 time for any number of rows, and is differentiable as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bpcbench_vbpc.posterior import Posterior


@dataclass(frozen=True, eq=False)
class Naive(Posterior):
    """The posterior in terms of its two moments."""

    weights: Tensor
    """m, (h, k)."""
    covariance: Tensor
    """V, (h, h)."""

    def predict(self, phi: Tensor, *, own: bool = False) -> tuple[Tensor, Tensor]:
        return self.mean(phi), self.variance(phi)

    def mean(self, phi: Tensor) -> Tensor:
        return phi @ self.weights

    def variance(self, phi: Tensor) -> Tensor:
        return torch.linalg.vecdot(phi @ self.covariance, phi).clamp(min=0.0)

    def kl(self) -> Tensor:
        """0.5 [k (-log det V - h log rho - h + rho tr V) + rho ||m||^2]."""
        width, classes = self.weights.shape
        trace = self.rho * self.covariance.diagonal().sum()
        spread = trace - self.covariance.logdet() - width * (1.0 + math.log(self.rho))
        return 0.5 * (classes * spread.clamp(min=0.0) + self.rho * self.weights.square().sum())

    def full(self) -> tuple[Tensor, Tensor]:
        return self.weights, self.covariance


def fit(features: Tensor, targets: Tensor, rho: float, gamma: float, beta_s: float | None = None) -> Naive:
    """Return the posterior given features (n^, h) and targets (n^, k); `beta_s` defaults to the number of rows."""
    scale = gamma / (len(features) if beta_s is None else beta_s)
    identity = torch.eye(features.shape[1], dtype=features.dtype, device=features.device)
    covariance = torch.linalg.inv(rho * identity + scale * (features.mT @ features))
    return Naive(rho, scale / rho, covariance @ (scale * (features.mT @ targets)), covariance)
