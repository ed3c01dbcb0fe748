"""The input and the output of a gradient estimator in one outer iteration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bpcbench_torch.flat import FlatNetwork


@dataclass(frozen=True, eq=False)
class Problem:
    """The current coreset, one window of an expert's trajectory, and the sources of randomness.

    `images` and, if labels are learned, `logits` are leaves that require a gradient; `classes` are the int64 labels.
    `window(e)` is the expert e epochs after the window's start. `rate` is the step size of the inner SGD. `augment`
    draws a new augmentation at every call, `normal(*shape)` standard normal numbers, `real()` a batch of training
    images and labels; `examples` is their total number.
    """

    network: FlatNetwork
    window: Callable[[int], Tensor]
    images: Tensor
    classes: Tensor
    logits: Tensor | None
    rate: Tensor
    augment: Callable[[Tensor], Tensor]
    normal: Callable[..., Tensor]
    real: Callable[[], tuple[Tensor, Tensor]]
    examples: int

    @property
    def learned(self) -> list[Tensor]:
        """The learned leaves, whose gradients an estimator returns."""
        return [self.images] if self.logits is None else [self.images, self.logits]

    def targets(self) -> Tensor:
        """Return class labels (n,) or, as a function of the learned logits, probabilities (n, k)."""
        return self.classes if self.logits is None else torch.softmax(self.logits, 1)

    def around(self, theta: Tensor, sigma: float, count: int) -> Tensor:
        """Return draws (count, size) from N(theta, sigma^2 I)."""
        return theta + sigma * self.normal(count, self.network.size)

    def back(self, images: Tensor, targets: Tensor, slopes: tuple[Tensor, ...]) -> list[Tensor]:
        """Backpropagate gradients in augmented images (and targets) to the learned leaves."""
        outputs = [images] if self.logits is None else [images, targets]
        return list(torch.autograd.grad(outputs, self.learned, list(slopes)))


@dataclass(frozen=True, eq=False)
class Estimate:
    """Gradients in the order of `Problem.learned`, the gradient of the rate if it is learned, and values to log."""

    gradients: list[Tensor]
    rate: Tensor | None = None
    values: Mapping[str, Tensor] = field(default_factory=dict)


def add(total: list[Tensor] | None, more: list[Tensor]) -> list[Tensor]:
    """Return the elementwise sum of two lists of gradients; the first list is modified in place."""
    if total is None:
        return more
    return [one.add_(other) for one, other in zip(total, more, strict=True)]
