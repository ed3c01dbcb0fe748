"""The energy that samplers target: the negative log of prior times coreset likelihood, in flat parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bpcbench.records import Convention
from bpcbench_torch.flat import FlatNetwork
from bpcbench_torch.training import loss_for

Potential = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Maps parameters (chains, size) to energies (chains,) and their gradients (chains, size)."""

Batch = tuple[Tensor, ...]
"""Images, targets and, if rows have weights, their relative weights."""
PriorKind = Literal["l2", "norm", "gaussian"]

_STRENGTH = 1.5 / (0.1 * math.sqrt(320010))
"""The force of BPC-D's prior per unit of theta at the start of its chains: weight 1.5, 320,010 entries of std 0.1."""


@dataclass(frozen=True)
class Prior:
    """The energy of the prior, for a coreset of n rows.

    `l2`: n w/2 ||theta||^2. `norm`: n w ||theta||, as in BPC-D's code (Kim et al., 2022), whose force does not vanish
    near the origin. Both scale with n, so their weight relative to the mean loss does not depend on it. `gaussian`:
    w/2 ||theta||^2, a proper prior N(0, T/w) that does not depend on the coreset.
    """

    kind: PriorKind
    weight: float

    @classmethod
    def of(cls, kind: PriorKind, weight: float | None, size: int) -> Prior:
        """Return the prior with the given weight or, for None, with BPC-D's weight adapted to the network's size.

        For BPC-D's own network this is its own weight. ||theta|| grows with the square root of the number of
        parameters, so the weight of `norm` is scaled by that root: unscaled, it drives a small network to zero.
        """
        if weight is None:
            weight = {"l2": _STRENGTH, "norm": _STRENGTH * 0.1 * math.sqrt(size), "gaussian": 1.0}[kind]
        return cls(kind, weight)

    def __call__(self, theta: Tensor, rows: float) -> Tensor:
        """Return the energy at theta (..., size)."""
        if self.kind == "norm":
            return rows * self.weight * torch.linalg.vector_norm(theta, dim=-1)
        return (rows if self.kind == "l2" else 1) * self.weight / 2 * theta.square().sum(-1)


class CoresetPotential:
    """E(theta) = n * mean loss of f(x; theta) over the coreset + prior; the loss follows the coreset's convention.

    With `weights`, relative to their mean, each loss counts times its weight, and n is the `total` of the weights.
    A `Potential`. BatchNorm uses the statistics of the current rows. `choose` has one function per chain that returns
    its rows at each call; None uses all rows unchanged. With `batched` all chains go through the network together,
    otherwise one at a time; the results are equal up to rounding. With `chunk` the loss of a chain is summed over so
    many rows at a time, and only their activations are in memory. The sum is the same up to rounding if the network's
    outputs of a row do not depend on the others; networks with BatchNorm are refused.
    """

    def __init__(
        self,
        network: FlatNetwork,
        images: Tensor,
        targets: Tensor,
        convention: Convention,
        prior: Prior,
        *,
        choose: Sequence[Callable[[], Batch]] | None = None,
        batched: bool = False,
        weights: Tensor | None = None,
        total: float | None = None,
        chunk: int | None = None,
    ) -> None:
        if chunk is not None and (batched or not network.row_wise):
            raise ValueError(
                "the loss is a sum over parts of the rows only without BatchNorm, and for a chain at a time"
            )
        self.chunk = chunk
        self.network, self.convention, self.prior = network, convention, prior
        self.batch: Batch = (images, targets) if weights is None else (images, targets, weights)
        self.choose, self.batched = choose, batched
        self.rows = len(images) if total is None else total

    def energy(self, theta: Tensor, images: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the energy of one chain's parameters (size,), estimated from these rows."""
        return self.rows * self._loss(theta, images, targets, weights) + self.prior(theta, self.rows)

    def __call__(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return energies (chains,) and gradients (chains, size)."""
        batches = [choose() for choose in self.choose] if self.choose else [self.batch] * len(theta)
        if self.batched:
            return self._together(theta, batches)
        pairs = [self._alone(one, *batch) for one, batch in zip(theta, batches, strict=True)]
        return torch.stack([energy for energy, _ in pairs]), torch.stack([gradient for _, gradient in pairs])

    def loss(self, theta: Tensor, energy: Tensor) -> Tensor:
        """Return the mean loss (chains,) given parameters (chains, size) and their energies (chains,)."""
        return (energy - self.prior(theta, self.rows)) / self.rows

    def _loss(self, theta: Tensor, images: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        outputs = self.network(theta, images, statistics="batch")
        return loss_for(self.convention, outputs, targets, weights)

    def _alone(self, theta: Tensor, *batch: Tensor) -> tuple[Tensor, Tensor]:
        theta = theta.detach().requires_grad_()
        if self.chunk is None or len(batch[0]) <= self.chunk:
            energy = self.energy(theta, *batch)
            (gradient,) = torch.autograd.grad(energy, theta)
            return energy.detach(), gradient
        prior = self.prior(theta, self.rows)
        total, (gradient,) = prior.detach(), torch.autograd.grad(prior, theta)
        for part in zip(*(tensor.split(self.chunk) for tensor in batch), strict=True):
            share = self.rows * len(part[0]) / len(batch[0])
            energy = share * self._loss(theta, *part)
            total, gradient = total + energy.detach(), gradient + torch.autograd.grad(energy, theta)[0]
        return total, gradient

    def _together(self, theta: Tensor, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        both = torch.func.grad_and_value(self.energy)
        if self.choose is None:
            shared = (None,) * len(batches[0])
            gradients, energies = torch.func.vmap(both, in_dims=(0, *shared))(theta, *batches[0])
        else:
            stacked = (torch.stack(parts) for parts in zip(*batches, strict=True))
            gradients, energies = torch.func.vmap(both)(theta, *stacked)
        return energies, gradients
