"""ResNet-18 (He et al., 2016) for small images. Torch and torchvision are imported when a network is built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bpcbench.api import option
from bpcbench_torch.architectures import NORM_HELP, Architecture, NormOption, Shape

if TYPE_CHECKING:
    from torch import nn

_STAGES = (64, 128, 256, 512)
"""Filters of the four stages of two basic blocks each; all but the first stage halve the resolution."""


@dataclass(frozen=True)
class _Block:
    """A basic block: two 3x3 convolutions and, where the size changes, a 1x1 convolution of the shortcut."""

    inputs: int
    filters: int
    stride: int

    @property
    def shortcut(self) -> bool:
        """Whether the shortcut has a convolution."""
        return self.stride != 1 or self.inputs != self.filters


@dataclass(frozen=True)
class ResNet18(Architecture):
    """ResNet-18 with the stem for small images: one 3x3 convolution without stride or pooling, then eight basic blocks.

    Faithful: the norm follows the stem only, because FRePo's code does not hand it to the blocks, and features are
    flattened (8192 at 32 px). Proper: torchvision's blocks, with a norm after every convolution, and features averaged
    over pixels (512).
    """

    name: ClassVar[str] = "resnet18-bn"
    preload: ClassVar[tuple[str, ...]] = (*Architecture.preload, "bpcbench_torch.basic_block")

    norm: NormOption = option("bn", NORM_HELP)

    def base_width(self) -> int:
        """Return 64."""
        return _STAGES[0]

    def _blocks(self) -> Iterator[_Block]:
        inputs = self.scaled(_STAGES[0])
        for stage, filters in enumerate(self.scaled(count) for count in _STAGES):
            yield _Block(inputs, filters, 2 if stage else 1)
            yield _Block(filters, filters, 1)
            inputs = filters

    def normalised(self, shape: Shape) -> tuple[Shape, ...]:
        """Return the stem and, if proper, every convolution of the blocks."""
        _, rows, columns = shape
        outputs = [(self.scaled(_STAGES[0]), rows, columns)]
        if self.form == "faithful":
            return tuple(outputs)
        for block in self._blocks():
            rows, columns = -(-rows // block.stride), -(-columns // block.stride)
            outputs += [(block.filters, rows, columns)] * (3 if block.shortcut else 2)
        return tuple(outputs)

    def last(self, shape: Shape) -> Shape:
        """Return an eighth of the sides, rounded up: convolutions with stride 2 are padded."""
        return self.scaled(_STAGES[-1]), -(-shape[1] // 8), -(-shape[2] // 8)

    def convolution_parameters(self, channels: int) -> int:
        """Return the number of weights; these convolutions have no biases."""
        return 9 * channels * self.scaled(_STAGES[0]) + sum(
            (9 * (block.inputs + block.filters) + (block.inputs if block.shortcut else 0)) * block.filters
            for block in self._blocks()
        )

    def body(self, shape: Shape) -> nn.Sequential:
        """Return the stem and torchvision's basic blocks; without norms they are also those of FRePo's code."""
        from torch import nn

        from bpcbench_torch.basic_block import BasicBlock

        in_blocks = self.norm_layer if self.form == "proper" else nn.Identity
        filters = self.scaled(_STAGES[0])
        parts: list[nn.Module] = [
            nn.Conv2d(shape[0], filters, 3, 1, 1, bias=False),
            self.norm_layer(filters),
            nn.ReLU(),
        ]
        for block in self._blocks():
            shortcut = None
            if block.shortcut:
                # Every other pixel, then a convolution without stride: the gradient of oneDNN's strided 1x1 convolution
                # writes past its workspace if there are few channels, in channels_last (oneDNN 3.12, its issue 6035).
                subsampling = nn.AvgPool2d(1, block.stride)
                convolution = nn.Conv2d(block.inputs, block.filters, 1, bias=False)
                shortcut = nn.Sequential(subsampling, convolution, in_blocks(block.filters))
            parts.append(BasicBlock(block.inputs, block.filters, block.stride, shortcut, norm_layer=in_blocks))
        return nn.Sequential(*parts)
