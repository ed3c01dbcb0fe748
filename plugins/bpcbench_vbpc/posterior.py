"""The Gaussian posterior of a last linear layer in closed form: the inner problem of VBPC (Lee, Lee & Lee, 2025).

Prior w_j ~ N(0, I/rho) for each of k classes, likelihood y ~ N(W^T phi(x), I/gamma), and the coreset VI problem

    min_q  -E_q[sum_i log N(y_i | W^T phi(x_i), I/gamma)] + beta_S KL[q || prior]

over n^ rows Phi (n^ x h), Y (n^ x k). With c = gamma/(rho beta_S) its solution is q(w_j) = N(m_j, V) for every class j:

    V = (I + c Phi^T Phi)^{-1} / rho,    m = rho c V Phi^T Y = c Phi^T (I + c Phi Phi^T)^{-1} Y.

This is Gaussian-process regression with kernel Phi Phi^T/rho and noise variance beta_S/gamma, which is not part of the
predicted variance. Both (I + c ...) have eigenvalues >= 1, so no jitter is added.

The paper contradicts itself in places. Here the prior's natural parameter is -(rho/2) I and that of q is -V^{-1}/2, not
-I/(2 rho) and -V/2; gamma, not its inverse, is the precision; Phi has one row per image throughout; the KL
divergence is exact, whereas the paper's "up to a constant" omits (k h / 2)(1 + log rho). Gradients come from automatic
differentiation of the closed form, which is exact; eq. bilevel_grad is not needed.

All functions take float32 or float64 tensors (convert half precision first, and leave autocast), compute on their
device without synchronising, and are differentiable in every tensor. A matrix made indefinite by rounding gives NaN.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from bpcbench_distill.kernel import cholesky

Path = Literal["dual", "primal"]
"""Which matrix is factorised: `dual` the n^ x n^ one, `primal` the h x h one."""


@dataclass(frozen=True, eq=False)
class Posterior(abc.ABC):
    """q(W) = prod_j N(w_j | m_j, V), and the resulting distribution of the logits phi^T w_j of new features."""

    rho: float
    ratio: float
    """c = gamma/(rho beta_S), the weight of the data relative to the prior."""

    @abc.abstractmethod
    def predict(self, phi: Tensor, *, own: bool = False) -> tuple[Tensor, Tensor]:
        """Return mean (B, k) and variance (B,) of the logits at features (B, h); the classes share the variance.

        `own=True` states that `phi` are the rows it was fitted to, for which `dual` has a formula without cancellation.
        """

    @abc.abstractmethod
    def mean(self, phi: Tensor) -> Tensor:
        """Return phi^T m_j, (B, k)."""

    @abc.abstractmethod
    def variance(self, phi: Tensor) -> Tensor:
        """Return phi^T V phi, (B,), not negative."""

    @abc.abstractmethod
    def kl(self) -> Tensor:
        """Return the exact KL[q || prior], a scalar, not negative."""

    @abc.abstractmethod
    def full(self) -> tuple[Tensor, Tensor]:
        """Return m (h, k) and V (h, h); nothing else here needs these h*h numbers."""


@dataclass(frozen=True, eq=False)
class Dual(Posterior):
    """The n^ x n^ path: with G = Phi Phi^T, A = I + cG = L L^T and a = c A^{-1} Y, m = Phi^T a. Stores n^ h + 2 n^^2.

    Only `full` creates a tensor of h*h elements, forward or backward. Precision in float32: see test_posterior.py.
    """

    features: Tensor
    gram: Tensor
    factor: Tensor
    weights: Tensor
    """a, (n^, k)."""

    @classmethod
    def fit(cls, features: Tensor, targets: Tensor, rho: float, ratio: float) -> Dual:
        """Return the posterior for arguments already validated."""
        gram = features @ features.mT
        factor = cholesky(_identity_like(gram) + ratio * gram)
        return cls(rho, ratio, features, gram, factor, ratio * torch.cholesky_solve(targets, factor))

    def predict(self, phi: Tensor, *, own: bool = False) -> tuple[Tensor, Tensor]:
        if own:
            return self.gram @ self.weights, self._own_variance(phi)
        cross = phi @ self.features.mT
        return cross @ self.weights, self._variance(phi, cross)

    def mean(self, phi: Tensor) -> Tensor:
        return (phi @ self.features.mT) @ self.weights

    def variance(self, phi: Tensor) -> Tensor:
        return self._variance(phi, phi @ self.features.mT)

    def kl(self) -> Tensor:
        """0.5 [k (log det A - n^ + tr A^{-1}) + rho sum(a * Ga)], where tr A^{-1} = ||L^{-1}||_F^2."""
        return _kl(self.factor, self.weights.shape[1], self.rho * (self.weights * (self.gram @ self.weights)).sum())

    def full(self) -> tuple[Tensor, Tensor]:
        half = torch.linalg.solve_triangular(self.factor, self.features, upper=False)
        shrunk = half.mT @ half
        return self.features.mT @ self.weights, (_identity_like(shrunk) - self.ratio * shrunk) / self.rho

    def _variance(self, phi: Tensor, cross: Tensor) -> Tensor:
        """(||phi||^2 - c ||L^{-1} Phi phi||^2) / rho; rounding may make it negative for phi near the coreset."""
        half = torch.linalg.solve_triangular(self.factor, cross.mT, upper=False)
        prior = torch.linalg.vecdot(phi, phi)
        return ((prior - self.ratio * torch.linalg.vecdot(half, half, dim=0)) / self.rho).clamp(min=0.0)

    def _own_variance(self, phi: Tensor) -> Tensor:
        """(1 - diag A^{-1}) beta_S/gamma, since Phi V Phi^T = (G - c G A^{-1} G)/rho = (I - A^{-1})/(rho c).

        This form loses digits if c ||phi||^2 << 1, that is if the data hardly matter relative to the prior.
        """
        if phi.shape != self.features.shape:
            raise ValueError(f"fitted to features {tuple(self.features.shape)}, but own=True with {tuple(phi.shape)}")
        inverse = torch.linalg.solve_triangular(self.factor, _identity_like(self.factor), upper=False)
        return ((1.0 - torch.linalg.vecdot(inverse, inverse, dim=0)) / (self.rho * self.ratio)).clamp(min=0.0)


@dataclass(frozen=True, eq=False)
class Primal(Posterior):
    """The h x h path, for narrow networks or whole data sets: with I + c Phi^T Phi = L L^T, V = L^{-T} L^{-1}/rho.

    It stores h^2 + h k numbers, not the rows. Its variance ||L^{-1} phi||^2/rho is a sum of squares: no cancellation.
    """

    factor: Tensor
    weights: Tensor
    """m, (h, k)."""

    @classmethod
    def fit(cls, features: Tensor, targets: Tensor, rho: float, ratio: float) -> Primal:
        """Return the posterior for arguments already validated."""
        second = features.mT @ features
        factor = cholesky(_identity_like(second) + ratio * second)
        return cls(rho, ratio, factor, ratio * torch.cholesky_solve(features.mT @ targets, factor))

    def predict(self, phi: Tensor, *, own: bool = False) -> tuple[Tensor, Tensor]:
        return self.mean(phi), self.variance(phi)

    def mean(self, phi: Tensor) -> Tensor:
        return phi @ self.weights

    def variance(self, phi: Tensor) -> Tensor:
        half = torch.linalg.solve_triangular(self.factor, phi.mT, upper=False)
        return torch.linalg.vecdot(half, half, dim=0) / self.rho

    def kl(self) -> Tensor:
        """0.5 [k (log det - h + rho tr V) + rho ||m||^2]."""
        return _kl(self.factor, self.weights.shape[1], self.rho * self.weights.square().sum())

    def full(self) -> tuple[Tensor, Tensor]:
        return self.weights, torch.cholesky_inverse(self.factor) / self.rho


def fit(
    features: Tensor,
    targets: Tensor,
    rho: float,
    gamma: float,
    beta_s: float | None = None,
    path: Path | None = None,
) -> Posterior:
    """Return the posterior given features (n^, h) and targets (n^, k).

    `beta_s` defaults to the number of rows of `features`, so mirrored copies count. `path` defaults to the one with the
    smaller matrix.
    """
    rows, width = features.shape
    if targets.ndim != 2 or len(targets) != rows or rows == 0:
        raise ValueError(f"features (n, h) and targets (n, k) needed, got {features.shape} and {targets.shape}")
    beta_s = float(rows) if beta_s is None else beta_s
    if min(rho, gamma, beta_s) <= 0:
        raise ValueError(f"rho, gamma and beta_s must be positive, got {rho}, {gamma} and {beta_s}")
    path = path or ("dual" if rows <= width else "primal")
    if path not in get_args(Path):
        raise ValueError(f"path is {' or '.join(get_args(Path))}, not {path!r}")
    ratio = gamma / (rho * beta_s)
    if path == "dual":
        return Dual.fit(features, targets, rho, ratio)
    return Primal.fit(features, targets, rho, ratio)


def _kl(factor: Tensor, classes: int, mean_term: Tensor) -> Tensor:
    """Return 0.5 [k (log det - n + tr of the inverse) + mean_term] for I + cG = L L^T of size n.

    Both terms are non-negative; the first is a difference that rounding may make negative if the data hardly matter.
    """
    inverse = torch.linalg.solve_triangular(factor, _identity_like(factor), upper=False)
    log_det = 2.0 * factor.diagonal().log().sum()
    spread = log_det - len(factor) + inverse.square().sum()
    return 0.5 * (classes * spread.clamp(min=0.0) + mean_term)


def _identity_like(matrix: Tensor) -> Tensor:
    return torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
