"""Architectures whose convolutions and poolings follow one another: described as records, which need no torch."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bpcbench_torch.architectures import Architecture, Shape

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Convolution:
    """A square convolution with bias, followed by the normalisation and a ReLU."""

    filters: int
    kernel: int = 3
    stride: int = 1
    padding: int = 1


@dataclass(frozen=True)
class Pooling:
    """A square pooling."""

    kind: Literal["average", "max"]
    size: int = 2
    stride: int = 2


Layer = Convolution | Pooling


@dataclass(frozen=True)
class SequentialArchitecture(Architecture):
    """An architecture given by a list of layers."""

    @abc.abstractmethod
    def layers(self, shape: Shape) -> tuple[Layer, ...]:
        """Return the layers for images of this shape."""

    def normalised(self, shape: Shape) -> tuple[Shape, ...]:
        """Return the outputs of all convolutions."""
        layers = self.layers(shape)
        return tuple(
            size for layer, size in zip(layers, sizes(layers, shape), strict=True) if isinstance(layer, Convolution)
        )

    def last(self, shape: Shape) -> Shape:
        """Return the size of the output of the last layer."""
        return sizes(self.layers(shape), shape)[-1]

    def convolution_parameters(self, channels: int) -> int:
        """Return the number of weights and biases; they do not depend on the resolution."""
        total = 0
        for layer in self.layers((channels, 32, 32)):
            if isinstance(layer, Convolution):
                total += (layer.kernel**2 * channels + 1) * layer.filters
                channels = layer.filters
        return total

    def body(self, shape: Shape) -> nn.Sequential:
        """Return convolution, normalisation and ReLU, or a pooling, for every layer."""
        from torch import nn

        parts: list[nn.Module] = []
        channels = shape[0]
        for layer in self.layers(shape):
            if isinstance(layer, Pooling):
                pool = nn.AvgPool2d if layer.kind == "average" else nn.MaxPool2d
                parts.append(pool(layer.size, layer.stride))
                continue
            parts.append(nn.Conv2d(channels, layer.filters, layer.kernel, layer.stride, layer.padding))
            if self.norm != "none":
                parts.append(self.norm_layer(layer.filters))
            parts.append(nn.ReLU())
            channels = layer.filters
        return nn.Sequential(*parts)


def sizes(layers: tuple[Layer, ...], shape: Shape) -> list[Shape]:
    """Return the size of the output of every layer; sides are 0 from the layer on that is larger than its input."""
    outputs = []
    channels, rows, columns = shape
    for layer in layers:
        window, padding = (layer.size, 0) if isinstance(layer, Pooling) else (layer.kernel, layer.padding)
        channels = channels if isinstance(layer, Pooling) else layer.filters
        rows, columns = (
            max(0, (side + 2 * padding - window) // layer.stride + 1) if side else 0 for side in (rows, columns)
        )
        outputs.append((channels, rows, columns))
    return outputs


def extra_padding(shape: Shape) -> int:
    """Return the pixels added on every side of images of 28 to 31 pixels, so that five halvings leave one pixel."""
    return 2 if 28 <= min(shape[1:]) < 32 else 0
