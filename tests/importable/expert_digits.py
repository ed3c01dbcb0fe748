"""The embedded digits, an expert's trajectory on them, and the angle of two gradients, for tests of estimators."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from sklearn.datasets import load_digits

from bpcbench_torch.flat import FlatNetwork


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load_digits(return_X_y=True)
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:1437]
    images = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)[chosen]
    return (images - images.mean()) / images.std(), torch.tensor(labels)[chosen]


def trajectory(network: FlatNetwork, images: torch.Tensor, labels: torch.Tensor, epochs: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    theta = network.initial()
    kept = [theta.clone()]
    for _ in range(epochs):
        for rows in torch.randperm(len(images), generator=generator).split(64):
            leaf = theta.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(F.cross_entropy(network(leaf, images[rows]), labels[rows]), leaf)
            theta = leaf.detach() - 0.1 * gradient
        kept.append(theta.clone())
    return kept


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(F.cosine_similarity(one.flatten(), other.flatten(), 0))
