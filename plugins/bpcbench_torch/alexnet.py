"""AlexNet (Krizhevsky, Sutskever & Hinton, 2012) for small images. Torch is imported when a network is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bpcbench.api import option
from bpcbench_torch.architectures import NORM_HELP, NormOption, Shape
from bpcbench_torch.sequences import Convolution, Layer, Pooling, SequentialArchitecture, extra_padding

_LEAST = 63
"""The smallest image that leaves a pixel with torchvision's strides and poolings."""


@dataclass(frozen=True)
class AlexNet(SequentialArchitecture):
    """AlexNet: five convolutions and three poolings; `norm`, which the original lacks, follows every convolution.

    Faithful: filters 128, 192, 256, 192, 192 of 5, 5, 3, 3, 3 pixels, 2x2 average pooling after the first, second and
    last, features flattened (3072 at 32 px). Proper: torchvision's convolutions and max pooling, features averaged
    over pixels (256), without the two hidden fully connected layers and their dropout; below 63 px the first
    convolution pads 5 instead of 2 pixels and poolings are 2x2 instead of 3x3.
    """

    name: ClassVar[str] = "alexnet-nn"

    norm: NormOption = option("none", NORM_HELP)

    def base_width(self) -> int:
        """Return 128 (faithful) or 64 (proper)."""
        return 128 if self.form == "faithful" else 64

    def layers(self, shape: Shape) -> tuple[Layer, ...]:
        """Return five convolutions and three poolings."""
        large = min(shape[1:]) >= _LEAST
        if self.form == "faithful":
            filters, pool = (128, 192, 256, 192, 192), Pooling("average")
            first = Convolution(self.scaled(128), 5, 1, 2 + extra_padding(shape))
        else:
            filters, pool = (64, 192, 384, 256, 256), Pooling("max", 3 if large else 2)
            first = Convolution(self.scaled(64), 11, 4, 2 if large else 5 + extra_padding(shape))
        second, third, fourth, fifth = (self.scaled(count) for count in filters[1:])
        return (
            first,
            pool,
            Convolution(second, 5, 1, 2),
            pool,
            Convolution(third),
            Convolution(fourth),
            Convolution(fifth),
            pool,
        )
