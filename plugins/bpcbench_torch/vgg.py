"""VGG-11 (Simonyan & Zisserman, 2015) for small images. Torch is imported when a network is built."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from bpcbench.api import option
from bpcbench_torch.architectures import NORM_HELP, NormOption, Shape
from bpcbench_torch.sequences import Convolution, Layer, Pooling, SequentialArchitecture, extra_padding

_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""Filters of the convolutions before each of the five poolings, configuration A of the paper."""


@dataclass(frozen=True)
class VGG11(SequentialArchitecture):
    """VGG-11: eight 3x3 convolutions in five stages, each convolution followed by the norm, each stage by a pooling.

    Faithful: every convolution has 128 filters, because FRePo's code ignores the widths of its own table; 2x2 average
    pooling, features flattened (128 at 32 px). Proper: torchvision's convolutions (64 to 512 filters) and max pooling,
    features averaged over pixels (512), without the two hidden fully connected layers and their dropout.
    """

    name: ClassVar[str] = "vgg11-gn"

    norm: NormOption = option("gn", NORM_HELP)

    def base_width(self) -> int:
        """Return 128 (faithful) or 64 (proper)."""
        return 128 if self.form == "faithful" else 64

    def layers(self, shape: Shape) -> tuple[Layer, ...]:
        """Return eight convolutions and five poolings."""
        faithful = self.form == "faithful"
        pool = Pooling("average" if faithful else "max")
        layers: list[Layer] = []
        for stage in _STAGES:
            layers += [Convolution(self.scaled(128 if faithful else filters)) for filters in stage]
            layers.append(pool)
        first = layers[0]
        assert isinstance(first, Convolution)
        return (replace(first, padding=1 + extra_padding(shape)), *layers[1:])
