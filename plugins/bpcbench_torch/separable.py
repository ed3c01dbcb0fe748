"""A torch network whose features and last layer are separate."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bpcbench_torch.convnet import Init, initialise, laid_out


class SeparableNet(nn.Module):
    """A body of convolutions, and a linear head on its output, flattened or averaged over pixels.

    `body` makes the layers; their values are replaced. Weights depend on `generator` alone, in the order of
    `modules()`. Scales of normalisations are 1, their shifts 0.
    """

    def __init__(
        self,
        body: Callable[[], nn.Sequential],
        feature_size: int,
        classes: int,
        *,
        average: bool,
        init: Init,
        generator: torch.Generator,
        layout: torch.memory_format,
    ) -> None:
        super().__init__()
        self.feature_size, self.average, self.memory_format = feature_size, average, layout
        # The meta device: torch's and torchvision's own initialisation would draw from the global generator.
        with torch.device("meta"):
            self.body = body()
            self.head = nn.Linear(feature_size, classes)
        self.to_empty(device="cpu")
        self.init: Init = init
        self.draw(generator)
        self.to(memory_format=layout)  # type: ignore[call-overload]  # missing in torch's stubs

    def draw(self, generator: torch.Generator) -> None:
        """Draw new weights in place by a generator of their device; normalisations start anew."""
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                initialise(layer, self.init, generator)
            elif isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
                layer.reset_parameters()

    def features(self, x: Tensor) -> Tensor:
        """Return the input of the head, (n, feature_size)."""
        x = self.body(laid_out(x, self.memory_format))
        return x.mean((2, 3)) if self.average else x.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of the head, (n, classes)."""
        return self.head(self.features(x))
