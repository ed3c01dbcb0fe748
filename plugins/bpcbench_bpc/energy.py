"""The energy of parameters on a labelled set, and its gradient with respect to that set."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from bpcbench_torch.flat import FlatNetwork

Kind = Literal["ce", "logit"]


def energy(logits: Tensor, targets: Tensor, kind: Kind = "ce") -> Tensor:
    """Return the mean over rows of the cross-entropy, or of the negative logit of the true class."""
    if kind == "ce":
        return F.cross_entropy(logits, targets)
    if targets.is_floating_point():
        return -(logits * targets).sum(-1).mean()
    return -logits.gather(-1, targets[:, None]).mean()


def energies(logits: Tensor, targets: Tensor, kind: Kind = "ce") -> Tensor:
    """Return the energy of each draw, (draws,), for logits (draws, n, k) and targets shared or per draw."""
    draws, rows = logits.shape[:2]
    each = targets.dim() == (3 if targets.is_floating_point() else 2)
    flat = (targets if each else targets.expand(draws, *targets.shape)).flatten(0, 1)
    if kind == "ce":
        return F.cross_entropy(logits.flatten(0, 1), flat, reduction="none").view(draws, rows).mean(1)
    return torch.stack([energy(draw, target, kind) for draw, target in zip(logits, flat.chunk(draws), strict=True)])


def outputs(network: FlatNetwork, thetas: Tensor, images: Tensor) -> Tensor:
    """Return logits (draws, n, k) for parameters (draws, size) and images (draws, n, c, h, w) or (n, c, h, w)."""
    shared = images.dim() == 4
    if len(thetas) == 1:
        return network(thetas[0], images if shared else images[0])[None]
    return torch.func.vmap(network, in_dims=(0, None if shared else 0))(thetas, images)


def slopes(
    network: FlatNetwork, thetas: Tensor, images: Tensor, targets: Tensor, kind: Kind = "ce"
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the sum of energies over draws, and its gradients in the images and, if they are real, the targets.

    The parameters are constants, so no gradients of weights are computed.
    """
    x = images.detach().requires_grad_()
    y = targets.detach()
    inputs = [x]
    if y.is_floating_point():
        inputs.append(y.requires_grad_())
    logits = outputs(network, thetas, x)
    value = energies(logits, y, kind).sum()
    return value.detach(), torch.autograd.grad(value, inputs)
