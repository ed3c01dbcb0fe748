"""The input and the output of a gradient estimator in one outer iteration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from bpcbench_torch.augmentation import Augmentation
from bpcbench_torch.capture import Regions
from bpcbench_torch.flat import FlatNetwork
from bpcbench_torch.memory import Sizes


class Distortion(Protocol):
    """An augmentation of which only random numbers are left to be drawn; equal ones do the same, and it is hashable."""

    def __call__(self, images: Tensor, /) -> Tensor:
        """Return augmented images, with new random numbers."""

    def recorded(self, images: Tensor, /) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return augmented images and the random numbers from which `repeated` makes the same."""

    def repeated(self, images: Tensor, numbers: Sequence[Tensor], /) -> Tensor:
        """Return the images of `recorded`, with gradients where these have them; no number is drawn."""


@dataclass(frozen=True)
class Augmented:
    """An augmentation with its generator: by default, none. The operation of its mode `one` must have been drawn."""

    augmentation: Augmentation = field(default_factory=Augmentation)
    generator: torch.Generator | None = None

    def __call__(self, images: Tensor) -> Tensor:
        """Return augmented images."""
        return self.recorded(images)[0]

    def recorded(self, images: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return augmented images and their random numbers."""
        if self.generator is None:
            return images, ()
        return self.augmentation.recorded(images, self.generator)

    def repeated(self, images: Tensor, numbers: Sequence[Tensor]) -> Tensor:
        """Return the images of `recorded`."""
        return self.augmentation.repeated(images, numbers)


@dataclass(frozen=True, eq=False)
class Problem:
    """The current coreset, one window of an expert's trajectory, and the sources of randomness.

    `images` and, if labels are learned, `logits` are leaves that require a gradient; `classes` are the int64 labels.
    `window(e)` is the expert e epochs after the window's start. `rate` is the step size of the inner SGD. `choose`
    draws a new augmentation at every call, `normal(*shape)` standard normal numbers, `real()` a batch of training
    images and labels; `examples` is their total number. `regions` calls the parts of an estimate that a GPU can replay;
    leaves, classes and rate are the same tensors in all iterations. Memory depends on the `sizes`, if they are known.
    """

    network: FlatNetwork
    window: Callable[[int], Tensor]
    images: Tensor
    classes: Tensor
    logits: Tensor | None
    rate: Tensor
    choose: Callable[[], Distortion]
    normal: Callable[..., Tensor]
    real: Callable[[], tuple[Tensor, Tensor]]
    examples: int
    regions: Regions = field(default_factory=lambda: Regions("cpu"))
    sizes: Sizes | None = None

    def augment(self, images: Tensor) -> Tensor:
        """Return images under a new augmentation."""
        return self.choose()(images)

    @property
    def learned(self) -> list[Tensor]:
        """The learned leaves, whose gradients an estimator returns."""
        return [self.images] if self.logits is None else [self.images, self.logits]

    @property
    def fixed(self) -> list[Tensor]:
        """What a region reads beside its inputs: the same tensors in all iterations, with other values."""
        return [*self.learned, self.classes, self.rate]

    def targets(self) -> Tensor:
        """Return class labels (n,) or, as a function of the learned logits, probabilities (n, k)."""
        return self.classes if self.logits is None else torch.softmax(self.logits, 1)

    def around(self, theta: Tensor, sigma: float, count: int) -> Tensor:
        """Return draws (count, size) from N(theta, sigma^2 I)."""
        return theta + sigma * self.normal(count, self.network.size)

    def copies(self) -> tuple[list[Tensor], Tensor]:
        """Return leaves with the values of the learned ones, and the targets as a function of them.

        A region that differentiates in the learned tensors uses these.
        """
        leaves = [leaf.detach().requires_grad_() for leaf in self.learned]
        return leaves, self.classes if self.logits is None else torch.softmax(leaves[1], 1)


@dataclass(frozen=True, eq=False)
class Estimate:
    """Gradients in the order of `Problem.learned`, the gradient of the rate if it is learned, and values to log."""

    gradients: list[Tensor]
    rate: Tensor | None = None
    values: Mapping[str, Tensor] = field(default_factory=dict)


def pulled(images: Tensor, targets: Tensor, slopes: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    """Backpropagate gradients in augmented images, and in targets if there are as many leaves, to the leaves."""
    outputs = [images, targets][: len(leaves)]
    return list(torch.autograd.grad(outputs, leaves, list(slopes)))


def add(total: list[Tensor] | None, more: list[Tensor]) -> list[Tensor]:
    """Return the elementwise sum of two lists of gradients; the first list is modified in place."""
    if total is None:
        return more
    return [one.add_(other) for one, other in zip(total, more, strict=True)]
