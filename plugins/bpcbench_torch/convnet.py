"""The convolutional network of the dataset-distillation literature, in torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

Norm = Literal["bn", "in", "gn", "nn"]
Order = Literal["norm-first", "conv-first"]
Init = Literal["lecun", "torch", "gaussian"]

_TRUNCATED_STD = 0.87962566103423978
"""Standard deviation of a unit normal truncated at two sigma, the divisor in LeCun's initialisation."""


def norm_layer(kind: Norm, channels: int, groups: int, eps: float, *, momentum: float = 0.9) -> nn.Module:
    """Return the normalisation layer; in BatchNorm's running statistics a new batch has the weight `momentum`."""
    if kind == "bn":
        return nn.BatchNorm2d(channels, eps=eps, momentum=momentum)
    if kind == "gn":
        return nn.GroupNorm(min(groups, channels), channels, eps=eps)
    if kind == "in":
        return nn.GroupNorm(channels, channels, eps=eps)
    return nn.Identity()


def memory_format(kind: Norm, order: Order, device: str = "cpu") -> torch.memory_format:
    """Return the memory layout of activations on a type of device.

    On a CPU it is the faster one (forward and backward, 1 thread): channels_last takes 2-30 % less time, except for
    group norms right after a convolution, where it takes up to 30 % more. On CUDA group norms copy their inputs unless
    they are contiguous.
    """
    if kind in ("in", "gn") and (device == "cuda" or order == "conv-first"):
        return torch.contiguous_format
    return torch.channels_last


def laid_out(images: Tensor, layout: torch.memory_format) -> Tensor:
    """Return images (n, c, h, w) in a memory layout."""
    if layout is torch.channels_last:
        # Equivalent to `contiguous(memory_format=...)`, which vmap does not support.
        return images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    return images.contiguous()


def initialise(layer: nn.Conv2d | nn.Linear, init: Init, generator: torch.Generator) -> None:
    """Fill a layer in place.

    `lecun`: weights are normal, truncated at two sigma, with variance 1/fan_in after truncation; biases are 0.
    `torch`: weights and biases are uniform on ±1/sqrt(fan_in), which is torch's default, drawn in torch's order.
    `gaussian`: weights are normal with variance 2/fan_in, biases with standard deviation 0.1: the prior of the kernels
    of KIP (Nguyen et al., 2021) and RFAD (Loo et al., 2022).
    """
    fan_in = layer.weight[0].numel()
    if init == "lecun":
        std = math.sqrt(1.0 / fan_in) / _TRUNCATED_STD
        if layer.weight.device.type == "cpu":
            nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std, generator=generator)
        else:
            _truncated_normal(layer.weight, std, generator)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    elif init == "gaussian":
        nn.init.normal_(layer.weight, std=math.sqrt(2.0 / fan_in), generator=generator)
        if layer.bias is not None:
            nn.init.normal_(layer.bias, std=0.1, generator=generator)
    else:
        nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
        if layer.bias is not None:
            bound = 1.0 / math.sqrt(fan_in)
            nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


@torch.no_grad()
def _truncated_normal(values: Tensor, std: float, generator: torch.Generator) -> None:
    """Fill a tensor with normal numbers, truncated at two sigma, by the inverse of their distribution function.

    Torch's own function rejects and draws again, and waits for the device to know whether it must.
    """
    share = math.erf(math.sqrt(2.0))
    values.uniform_(-share, share, generator=generator).erfinv_().mul_(math.sqrt(2.0) * std)
    values.clamp_(-2 * std, 2 * std)


class ConvNet(nn.Module):
    """Blocks of 3x3 convolution, normalisation, ReLU and 2x2 average pooling, then a linear head.

    With `norm-first` the normalisation precedes convolutions 2, 3, ..., so that the first block has none (FRePo's
    code); with `conv-first` it follows every convolution (RCIG's code, and the text of the VBPC paper). Block i has
    width * growth**i filters. The first convolution pads 28x28 images to 32x32. Weights depend on `generator` alone.
    Group norm has `groups` groups, or one per channel if there are fewer channels. A positive `softplus` b replaces
    ReLU by log(1 + exp(b x)) / b.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        *,
        norm: Norm,
        width: int,
        growth: int,
        depth: int,
        order: Order,
        init: Init,
        generator: torch.Generator,
        groups: int,
        eps: float,
        softplus: float = 0.0,
    ) -> None:
        super().__init__()
        self.softplus = softplus
        channels, rows, columns = shape
        padding = 2 if (rows, columns) == (28, 28) else 0
        filters = [width * growth**block for block in range(depth)]
        inputs = [channels, *filters[:-1]]
        self.norm_first = order == "norm-first"
        normed = [0, *inputs[1:]] if self.norm_first else filters
        self.norms = nn.ModuleList(norm_layer(norm, count, groups, eps) if count else nn.Identity() for count in normed)
        # skip_init: torch's own initialisation would draw from the global generator.
        self.convs = nn.ModuleList(
            nn.utils.skip_init(nn.Conv2d, before, after, 3, padding=1 if block else 1 + padding)
            for block, (before, after) in enumerate(zip(inputs, filters, strict=True))
        )
        self.feature_size = filters[-1] * ((rows + 2 * padding) >> depth) * ((columns + 2 * padding) >> depth)
        self.head: nn.Linear = nn.utils.skip_init(nn.Linear, self.feature_size, classes)
        self.init: Init = init
        self.draw(generator)
        self.norm: Norm = norm
        self.order: Order = order
        self.memory_format = memory_format(norm, order)
        self.to(memory_format=self.memory_format)  # type: ignore[call-overload]  # missing in torch's stubs

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ConvNet:
        """Do what `to` asks for; on a device of another type the layout is the one of that."""
        before = self.head.weight.device.type

        def laid(value: Tensor) -> Tensor:
            found = fn(value)
            if found.dim() == 4 and found.device.type != value.device.type:
                found = found.to(memory_format=memory_format(self.norm, self.order, found.device.type))
            return found

        super()._apply(laid, recurse)
        if self.head.weight.device.type != before:
            self.memory_format = memory_format(self.norm, self.order, self.head.weight.device.type)
        return self

    def draw(self, generator: torch.Generator) -> None:
        """Draw new weights in place by a generator of their device; normalisations start anew."""
        for layer in (*self.convs, self.head):
            assert isinstance(layer, nn.Conv2d | nn.Linear)
            initialise(layer, self.init, generator)
        for norm in self.norms:
            if isinstance(norm, nn.BatchNorm2d | nn.GroupNorm):
                norm.reset_parameters()

    def features(self, x: Tensor) -> Tensor:
        """Return the flattened output of the last pooling, (n, feature_size)."""
        x = laid_out(x, self.memory_format)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = conv(norm(x)) if self.norm_first else norm(conv(x))
            x = F.avg_pool2d(F.softplus(x, self.softplus) if self.softplus else F.relu(x), 2)
        return x.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of the head, (n, classes)."""
        return self.head(self.features(x))
