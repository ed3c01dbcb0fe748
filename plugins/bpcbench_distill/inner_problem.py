"""The convex inner problem of RCIG: a linearised network fitted to a coreset, its last layer in closed form.

For tangents t of the body (`Linearisation`), weights W of the last layer and n rows (X, Y) of k targets, the inner loss
is that of ridge regression,

    L(t, W) = [0.5 ||Y - J t - Phi W||^2 + 0.5 l2 (||W||^2 + ||t||^2)] / (n k).

Its minimum over W is W = Phi^T a with dual weights a = A^-1 (Y - J t), A = Phi Phi^T + l2 I. Its value there is

    L(t) = 0.5 l2 [tr (Y - J t)^T A^-1 (Y - J t) + ||t||^2] / (n k),

a quadratic in t. Its gradient and Hessian-vector products need one J t and one J^T u each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bpcbench_distill.kernel import cholesky
from bpcbench_distill.linearisation import Linearisation
from bpcbench_distill.rcig import EXPLICIT

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
"""A function that returns its value and its gradient."""


def dual_weights(features: Tensor, residual: Tensor, l2: float) -> Tensor:
    """Return A^-1 r, (n, k), for features (n, h) and r (n, k); differentiable in both.

    It is computed in double precision where the device has it: l2 is absolute, and may lie below the rounding error of
    float32 relative to the largest eigenvalues.
    """
    return torch.cholesky_solve(_exact(residual), _factor(features, l2)).to(residual.dtype)


def _factor(features: Tensor, l2: float) -> Tensor:
    gram = _exact(features @ features.mT)
    return cholesky(gram + l2 * torch.eye(len(gram), dtype=gram.dtype, device=gram.device))


def _exact(values: Tensor) -> Tensor:
    return values if values.device.type == "mps" else values.double()


@dataclass(frozen=True)
class Descent:
    """Where an inner optimisation ends, and its objective before every step."""

    end: Tensor
    losses: Tensor


class InnerProblem:
    """The inner problem of one network and one coreset; images and targets are constants here."""

    def __init__(
        self, linear: Linearisation, images: Tensor, targets: Tensor, l2: float, *, explicit: int = EXPLICIT
    ) -> None:
        images, self.targets = images.detach(), targets.detach()
        self.linear, self.l2 = linear, l2
        self.scale = l2 / targets.numel()
        self.push: Callable[[Tensor], Tensor]
        """The function t -> J t, for the coreset's rows."""
        self.pull: Callable[[Tensor], Tensor]
        """The function u -> J^T u."""
        with torch.no_grad():
            _, features = linear.push(images, linear.zeros())
            self._lower = _factor(features, l2)
        if targets.numel() * linear.size <= explicit:
            matrix = linear.jacobian(images)
            self.push = lambda tangents: (matrix @ tangents).view_as(targets)
            self.pull = lambda cotangents: cotangents.flatten() @ matrix
        else:
            self.push = lambda tangents: linear.push(images, tangents)[0]
            self.pull = linear.pull(images)

    @torch.no_grad()
    def loss_and_gradient(self, tangents: Tensor) -> tuple[Tensor, Tensor]:
        """Return L(t) and its gradient."""
        residual = self.targets - self.push(tangents)
        weights = self._solve(residual)
        loss = 0.5 * self.scale * ((residual * weights).sum() + tangents.dot(tangents))
        return loss, self.scale * (tangents - self.pull(weights))

    @torch.no_grad()
    def product(self, direction: Tensor) -> Tensor:
        """Return H v for the Hessian H of L, which is constant."""
        return self.scale * (direction + self.pull(self._solve(self.push(direction))))

    def descend(self, steps: int, lr: float) -> Descent:
        """Return the tangents after Adam steps from 0 on L."""
        return _adam(self.linear.zeros(), self.loss_and_gradient, steps, lr)

    def invert(self, gradient: Tensor, steps: int, lr: float) -> Descent:
        """Return an approximation of H^-1 g after Adam steps from 0 on 0.5 v^T H v - v^T g.

        The objective that is recorded, v^T H v - 2 v^T g, is twice that.
        """

        def objective(direction: Tensor) -> tuple[Tensor, Tensor]:
            residual = self.product(direction) - gradient
            return direction.dot(residual - gradient), residual

        return _adam(self.linear.zeros(), objective, steps, lr)

    def _solve(self, residual: Tensor) -> Tensor:
        return torch.cholesky_solve(_exact(residual), self._lower).to(residual.dtype)


def implicit_term(
    linear: Linearisation, images: Tensor, targets: Tensor, tangents: Tensor, direction: Tensor, l2: float
) -> Tensor:
    """Return <v, dL/dt>, differentiable in images and targets; `tangents` t and `direction` v are constants.

    By the implicit function theorem the gradient of an outer loss F(t*(S)) is -d/dS <v, dL/dt> at v = H^-1 dF/dt.
    """
    outputs, features = linear.push(images, tangents)
    moved, _ = linear.push(images, direction)
    weights = dual_weights(features, targets - outputs, l2)
    return l2 / targets.numel() * (direction.dot(tangents) - (moved * weights).sum())


@torch.no_grad()
def _adam(values: Tensor, objective: Objective, steps: int, lr: float) -> Descent:
    optimizer = torch.optim.Adam([values], lr, fused=values.device.type in ("cpu", "cuda"))
    losses = []
    for _ in range(steps):
        loss, values.grad = objective(values)
        losses.append(loss)
        optimizer.step()
    values.grad = None
    return Descent(values, torch.stack(losses))
