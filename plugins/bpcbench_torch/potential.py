"""The energy that samplers follow: minus the log of a prior times the likelihood of a coreset, in flat parameters."""

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
"""From parameters (chains, size) to energies (chains,) and their gradients (chains, size)."""

Batch = tuple[Tensor, Tensor]
PriorKind = Literal["l2", "norm", "gaussian"]

_STRENGTH = 1.5 / (0.1 * math.sqrt(320010))
"""The pull of BPC-D's prior per unit of theta where its chains start: wd 1.5, theta of std 0.1, 320,010 numbers."""


@dataclass(frozen=True)
class Prior:
    """The energy of the prior, for a coreset of n rows.

    `l2`: n w/2 ||theta||^2. `norm`: n w ||theta||, the one of BPC-D's code (Kim et al., 2022), whose pull does not
    fade near the origin. Both grow with the coreset, so that they weigh as much against a mean loss whatever n is.
    `gaussian`: w/2 ||theta||^2, a prior in the strict sense: N(0, T/w) whatever the coreset is.
    """

    kind: PriorKind
    weight: float

    @classmethod
    def of(cls, kind: PriorKind, weight: float | None, size: int) -> Prior:
        """Return the prior with a given weight or, for None, one that does not depend on the size of the network.

        That is BPC-D's own weight for its own network and, since ||theta|| grows with the root of the number of
        parameters, this root times less for a smaller one: its weight 1.5 drives a small network to zero.
        """
        if weight is None:
            weight = {"l2": _STRENGTH, "norm": _STRENGTH * 0.1 * math.sqrt(size), "gaussian": 1.0}[kind]
        return cls(kind, weight)

    def __call__(self, theta: Tensor, rows: int) -> Tensor:
        """Return the energy at theta (..., size)."""
        if self.kind == "norm":
            return rows * self.weight * torch.linalg.vector_norm(theta, dim=-1)
        return (rows if self.kind == "l2" else 1) * self.weight / 2 * theta.square().sum(-1)


class CoresetPotential:
    """E(theta) = n * mean loss of f(x; theta) over the coreset + prior; the loss follows the coreset's convention.

    A `Potential`. BatchNorm sees the rows at hand. `choose` says which rows a chain meets at a call: None, all of
    them as they are; else it is called for every chain at every call. With `batched` all chains go through the
    network together, else one after the other: the same numbers up to rounding.
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
    ) -> None:
        self.network, self.convention, self.prior = network, convention, prior
        self.images, self.targets, self.choose, self.batched = images, targets, choose, batched
        self.rows = len(images)

    def energy(self, theta: Tensor, images: Tensor, targets: Tensor) -> Tensor:
        """Return the energy of one chain's parameters (size,), with these rows standing for all."""
        outputs = self.network(theta, images, statistics="batch")
        return self.rows * loss_for(self.convention, outputs, targets) + self.prior(theta, self.rows)

    def __call__(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return energies (chains,) and gradients (chains, size)."""
        batches = [choose() for choose in self.choose] if self.choose else [(self.images, self.targets)] * len(theta)
        if self.batched:
            return self._together(theta, batches)
        found = [self._alone(one, *batch) for one, batch in zip(theta, batches, strict=True)]
        return torch.stack([energy for energy, _ in found]), torch.stack([gradient for _, gradient in found])

    def loss(self, theta: Tensor, energy: Tensor) -> Tensor:
        """Return the mean loss (chains,) that belongs to energies of parameters (chains, size)."""
        return (energy - self.prior(theta, self.rows)) / self.rows

    def _alone(self, theta: Tensor, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        theta = theta.detach().requires_grad_()
        energy = self.energy(theta, images, targets)
        (gradient,) = torch.autograd.grad(energy, theta)
        return energy.detach(), gradient

    def _together(self, theta: Tensor, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        both = torch.func.grad_and_value(self.energy)
        if self.choose is None:
            gradients, energies = torch.func.vmap(both, in_dims=(0, None, None))(theta, *batches[0])
        else:
            images, targets = (torch.stack(parts) for parts in zip(*batches, strict=True))
            gradients, energies = torch.func.vmap(both)(theta, images, targets)
        return energies, gradients
