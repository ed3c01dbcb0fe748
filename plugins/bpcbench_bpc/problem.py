"""What an estimator is handed in one outer iteration, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bpcbench_torch.flat import FlatNetwork


@dataclass(frozen=True, eq=False)
class Problem:
    """The coreset as it stands, one window of an expert's trajectory, and the sources of randomness.

    `images` and, if labels are learned, `logits` are leaves that require a gradient; `classes` are the int64 labels.
    `window(e)` is the expert e epochs behind the window's start. `rate` is the step size of the inner SGD. `augment`
    draws a new augmentation at every call, `normal(*shape)` standard normal numbers, `real()` a batch of training
    images and labels, of which there are `examples` in all.
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
        """The leaves whose gradients are asked for."""
        return [self.images] if self.logits is None else [self.images, self.logits]

    def targets(self) -> Tensor:
        """Return class numbers (n,) or, as a function of the learned logits, probabilities (n, k)."""
        return self.classes if self.logits is None else torch.softmax(self.logits, 1)

    def around(self, theta: Tensor, sigma: float, count: int) -> Tensor:
        """Return draws (count, size) from N(theta, sigma^2 I)."""
        return theta + sigma * self.normal(count, self.network.size)

    def back(self, images: Tensor, targets: Tensor, slopes: tuple[Tensor, ...]) -> list[Tensor]:
        """Carry gradients with respect to augmented images (and targets) back to what is learned."""
        outputs = [images] if self.logits is None else [images, targets]
        return list(torch.autograd.grad(outputs, self.learned, list(slopes)))


@dataclass(frozen=True, eq=False)
class Estimate:
    """Gradients to descend along, in the order of `Problem.learned`, that of the rate if it is learned, and values."""

    gradients: list[Tensor]
    rate: Tensor | None = None
    values: Mapping[str, Tensor] = field(default_factory=dict)


def add(total: list[Tensor] | None, more: list[Tensor]) -> list[Tensor]:
    """Return the sums of two lists of gradients; the first is changed in place."""
    if total is None:
        return more
    return [one.add_(other) for one, other in zip(total, more, strict=True)]
