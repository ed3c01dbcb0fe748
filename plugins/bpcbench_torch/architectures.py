"""The base of the networks that FRePo and VBPC evaluate coresets with, beside the ConvNet. It needs no torch."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from bpcbench.api import Network, option
from bpcbench.records import Facts
from bpcbench_torch.operations import forward

if TYPE_CHECKING:
    from torch import nn

    from bpcbench_torch.convnet import Norm
    from bpcbench_torch.separable import SeparableNet

Shape = tuple[int, int, int]
"""Channels, rows and columns."""
NormOption = Literal["bn", "in", "gn", "none"]
Form = Literal["faithful", "proper"]

NORM_HELP = "normalisation: batch, instance or group norm (32 groups), or none"

_GROUPS = 32
"""Flax's default for group norm, which FRePo uses."""
_MOMENTUM = 0.1
"""The weight of a new batch in BatchNorm's running statistics: torch's default, and Flax's `momentum=0.9`."""
_SEEDS = 2**63


@dataclass(frozen=True)
class Architecture(Network):
    """Convolutions, then one linear layer; the input of the linear layer is what `features` returns.

    `form: faithful` is the network that FRePo's public code builds, `form: proper` the textbook's, as torchvision has
    it, for small images.
    """

    framework: ClassVar[str] = "torch"
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "torch.optim")

    width: int | None = option(
        None, "filters of the first convolution, which all others scale with; none: the architecture's own"
    )
    norm: NormOption = option("none", NORM_HELP)
    form: Form = option("faithful", "faithful: as FRePo's public code builds it; proper: the textbook architecture")
    init: Literal["lecun", "torch"] = option("lecun", "initialisation: LeCun's truncated normal, or torch's default")

    @abc.abstractmethod
    def base_width(self) -> int:
        """Return the filters of the first convolution of the unscaled architecture."""

    @abc.abstractmethod
    def normalised(self, shape: Shape) -> tuple[Shape, ...]:
        """Return the size of every normalised layer for images of this shape, whatever the option `norm`."""

    @abc.abstractmethod
    def last(self, shape: Shape) -> Shape:
        """Return the size of the output of the last convolution or pooling; a side of 0 means that none is left."""

    @abc.abstractmethod
    def convolution_parameters(self, channels: int) -> int:
        """Return the number of weights and biases of all convolutions for images with this many channels."""

    @abc.abstractmethod
    def body(self, shape: Shape) -> nn.Sequential:
        """Return the layers below the linear one; their values are discarded."""

    def scaled(self, filters: int) -> int:
        """Return the number of filters of a layer that has `filters` of them in the unscaled architecture."""
        base = self.base_width()
        return max(1, filters * (base if self.width is None else self.width) // base)

    def feature_size(self, shape: Shape) -> int:
        """Return the length of a feature vector: all values of the last layer, or their means per channel (proper)."""
        channels, rows, columns = self.last(shape)
        return channels if self.form == "proper" else channels * rows * columns

    def skip(self, facts: Facts) -> str | None:
        """Return a reason to skip if no pixel would be left, or if a layer cannot be normalised."""
        if self.width is not None and self.width < 1:
            return f"{self.name} needs a width of at least 1, got {self.width}"
        rows, columns = facts.shape[1:]
        if min(self.last(facts.shape)) < 1:
            return f"{rows}x{columns} images are too small for {self.name}, whose poolings would leave no pixel"
        if self.norm not in ("in", "gn"):
            return None
        for channels, height, width in self.normalised(facts.shape):
            if self.norm == "gn" and channels > _GROUPS and channels % _GROUPS:
                return f"{channels} channels cannot be divided into the {_GROUPS} groups of {self.name}"
            if height * width == 1 and (self.norm == "in" or channels <= _GROUPS):
                return (
                    f"{self.name} would normalise single values: with {rows}x{columns} images a layer of {channels} "
                    f"channels has one pixel; use a larger width or another norm than {self.norm!r}"
                )
        return None

    def parameters(self, shape: Shape, classes: int) -> int:
        """Count the convolutions, a scale and a shift per normalised channel, and the linear layer."""
        normed = () if self.norm == "none" else self.normalised(shape)
        return (
            self.convolution_parameters(shape[0])
            + 2 * sum(channels for channels, _, _ in normed)
            + (self.feature_size(shape) + 1) * classes
        )

    def operations(self, shape: tuple[int, int, int], classes: int) -> float | None:
        """Return the operations of the forward pass of one image, as torch counts them."""
        return forward(self, shape, classes)

    def build(self, shape: Shape, classes: int, seed: int) -> SeparableNet:
        """Return a network on the CPU, in training mode; its weights are a function of `seed` and the options."""
        import torch

        from bpcbench_torch.convnet import memory_format
        from bpcbench_torch.separable import SeparableNet

        return SeparableNet(
            lambda: self.body(shape),
            self.feature_size(shape),
            classes,
            average=self.form == "proper",
            init=self.init,
            generator=torch.Generator().manual_seed(seed % _SEEDS),
            layout=memory_format(self.norm_kind(), "conv-first"),
        )

    def norm_kind(self) -> Norm:
        """Return the name that the ConvNets' layers have for the norm."""
        return "nn" if self.norm == "none" else self.norm

    def norm_layer(self, channels: int) -> nn.Module:
        """Return a normalisation layer: with Flax's constants (faithful) or torch's (proper)."""
        from bpcbench_torch.convnet import norm_layer

        eps = 1e-6 if self.form == "faithful" and self.norm != "bn" else 1e-5
        return norm_layer(self.norm_kind(), channels, _GROUPS, eps, momentum=_MOMENTUM)
