"""The ConvNet family as network plugins, one per normalisation. Torch is imported when a network is built."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Literal

from bpcbench.api import Network, option
from bpcbench.records import Activations, Facts

if TYPE_CHECKING:
    from bpcbench_torch.convnet import ConvNet

_GROUPS = 32
"""Flax's default for group norm, which FRePo and RCIG use."""
_SEEDS = 2**63


@dataclass(frozen=True)
class ConvNetwork(Network):
    """Convolution, normalisation, ReLU and average pooling, repeated `depth` times, then a linear layer.

    The network of FRePo (Zhou, Nezhadarya & Ba, 2022), RCIG (Loo et al., 2023) and VBPC (Lee, Lee & Lee, 2025). The
    default `order` is that of FRePo's code, which leaves the first block without normalisation. VBPC's paper describes
    `conv-first`, with normalisation in every block, which the suites under paper/ set. On digits VBPC's coresets are as
    good with either, if evaluated with the same (docs/results/ablations.md).
    """

    framework: ClassVar[str] = "torch"
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "torch.optim")
    norm: ClassVar[Literal["bn", "in", "gn", "nn"]]

    width: int = option(128, "filters of the first convolution")
    growth: Literal[1, 2] = option(2, "growth factor of the filters from block to block")
    init: Literal["lecun", "torch", "gaussian"] = option(
        "lecun", "initialisation: LeCun's truncated normal, torch's default, or the Gaussian prior of KIP and RFAD"
    )
    order: Literal["norm-first", "conv-first"] = option(
        "norm-first", "norm before convolutions 2, 3, ... (FRePo's code) or after every one (RCIG's, VBPC's paper)"
    )
    depth: int | None = option(None, "number of blocks; none: by resolution, 2 at 8 px, 3 at 32, 4 at 64")
    softplus: float = option(
        0.0, "b > 0: log(1 + exp(b x)) / b in place of ReLU; 60 is RCIG's while distilling", absent=0.0
    )

    def blocks(self, shape: tuple[int, int, int]) -> int:
        """Return the depth for images of this shape: the option, or as many blocks as leave about 4x4 pixels.

        The default is 3 at 28 and 32 px, 4 at 64, 5 at 128, and at least 2.
        """
        return self.depth if self.depth is not None else max(2, round(math.log2(min(shape[1:]))) - 2)

    def skip(self, facts: Facts) -> str | None:
        """Return a reason to skip if pooling would leave no pixel."""
        depth = self.blocks(facts.shape)
        if self.width < 1 or depth < 1:
            return f"{self.name} needs a width and a depth of at least 1, got {self.width} and {depth}"
        if self.softplus < 0:
            return f"{self.name} needs a softplus of 0 (ReLU) or above, got {self.softplus}"
        rows, columns = facts.shape[1:]
        padded = 32 if (rows, columns) == (28, 28) else min(rows, columns)
        if padded >> depth == 0:
            return f"{rows}x{columns} images are too small for the {depth} poolings of {self.name}"
        return None

    def parameters(self, shape: tuple[int, int, int], classes: int) -> int:
        """Count the convolutions, the head, and a scale and a shift per normalised channel."""
        depth, channels = self.blocks(shape), shape[0]
        filters = [self.width * self.growth**block for block in range(depth)]
        inputs = [channels, *filters[:-1]]
        normed = inputs[1:] if self.order == "norm-first" else filters
        sides = [(32 if shape[1:] == (28, 28) else side) >> depth for side in shape[1:]]
        return (
            sum((9 * before + 1) * after for before, after in zip(inputs, filters, strict=True))
            + (0 if self.norm == "nn" else 2 * sum(normed))
            + (filters[-1] * math.prod(sides) + 1) * classes
        )

    def operations(self, shape: tuple[int, int, int], classes: int) -> float | None:
        """Count two per weight and pixel of the convolutions, whose blocks halve the sides, and of the head."""
        depth = self.blocks(shape)
        filters = [self.width * self.growth**block for block in range(depth)]
        sides = [32, 32] if shape[1:] == (28, 28) else list(shape[1:])
        total = 0
        for before, after in zip([shape[0], *filters[:-1]], filters, strict=True):
            total += 9 * before * after * math.prod(sides)
            sides = [side // 2 for side in sides]
        return 2.0 * (total + filters[-1] * math.prod(sides) * classes)

    def activations(self, shape: tuple[int, int, int], classes: int) -> Activations | None:
        """Return the sum of the tensors alive at the peak of each kind of pass.

        Block i maps a_i numbers to b_i, its convolution's outputs, and pools them to a_(i+1). A pass keeps the inputs
        and outputs of ReLU, and those of the norm and of softplus where there are any; its backward holds two more
        gradients of a block's b_i. Those of derivatives of higher order, and of several parameter vectors together, are
        of the same form, with coefficients that follow from what torch keeps for each layer, where vmap takes norms
        apart; a test compares them with what it allocates.
        """
        depth, filters = self.blocks(shape), self.width
        sides = [32, 32] if shape[1:] == (28, 28) else list(shape[1:])
        image = shape[0] * math.prod(sides)
        outputs, inputs = [], [image]
        for _ in range(depth):
            outputs.append(filters * math.prod(sides))
            sides = [side // 2 for side in sides]
            inputs.append(filters * math.prod(sides))
            filters *= self.growth
        first, features = outputs[0], inputs.pop()
        normed, soft = self.norm != "nn", self.softplus > 0
        before, after = normed and self.order == "norm-first", normed and self.order == "conv-first"
        each = 1 + after + soft
        total, inner = sum(outputs), sum(inputs[1:])
        gradient, kept = 0.0, float(image)
        for index, (a, b) in enumerate(zip(inputs, outputs, strict=True)):
            own = each * b + before * (index > 0) * a
            gradient = max(gradient, kept + own + 2 * b)
            kept += own + (inputs[index + 1] if index + 1 < depth else features)
        kept += features
        grouped = after and self.norm in ("in", "gn")
        second_kept = 2 * (1 + after + soft) * total + (1 + 2 * before) * inner + image + features
        apart = (3.5 if grouped else 4.0) if after else 1.35 + 0.5 * soft
        backward = 8.6 if soft or (after and not grouped) else 2.6
        return Activations(
            features=features,
            forward=2.25 * first + image,
            kept=kept,
            gradient=max(gradient + features, kept),
            second_kept=second_kept,
            second=second_kept + (3.3 if grouped else backward) * first,
            tangent_forward=(8.2 if after else 4.5) * first + image,
            tangent=(
                8.8 * total + 2.5 * first
                if grouped
                else (8.2 if after else 5.2) * first + soft * 4 * total + inner * before + 2 * features
            ),
            jacobian=3.0 * first,
            together=max(gradient + features, kept) + apart * total + before * 2 * inner,
            pull=kept + (4.8 if grouped else 2.95 if after else 1.9) * first,
        )

    def build(self, shape: tuple[int, int, int], classes: int, seed: int) -> ConvNet:
        """Return a ConvNet on the CPU, in training mode; its weights are a function of `seed` and the options."""
        import torch

        from bpcbench_torch.convnet import ConvNet

        return ConvNet(
            shape,
            classes,
            norm=self.norm,
            width=self.width,
            growth=self.growth,
            depth=self.blocks(shape),
            order=self.order,
            init=self.init,
            generator=torch.Generator().manual_seed(seed % _SEEDS),
            groups=_GROUPS,
            eps=self.epsilon(),
            softplus=self.softplus,
        )

    def epsilon(self) -> float:
        """Return the constant added to variances: Flax's default."""
        return 1e-6


@dataclass(frozen=True)
class ConvBN(ConvNetwork):
    """ConvNet with BatchNorm; in the running statistics a new batch has weight 0.9, as in FRePo's code."""

    name: ClassVar[str] = "conv-bn"
    norm: ClassVar[Literal["bn"]] = "bn"

    def epsilon(self) -> float:
        """Return Flax's default for BatchNorm."""
        return 1e-5


@dataclass(frozen=True)
class ConvIN(ConvNetwork):
    """ConvNet with instance norm (group norm with one channel per group), with scale and shift."""

    name: ClassVar[str] = "conv-in"
    norm: ClassVar[Literal["in"]] = "in"

    eps: float = option(1e-6, "constant added to variances: 1e-6 is Flax's, 1e-5 torch's", absent=1e-6)

    def epsilon(self) -> float:
        """Return the option."""
        return self.eps


@dataclass(frozen=True)
class ConvGN(ConvNetwork):
    """ConvNet with group norm of 32 groups, or one group per channel if there are fewer channels."""

    name: ClassVar[str] = "conv-gn"
    norm: ClassVar[Literal["gn"]] = "gn"

    def skip(self, facts: Facts) -> str | None:
        """Return a reason to skip also if the channels of a layer cannot be grouped."""
        filters = [self.width * self.growth**block for block in range(self.blocks(facts.shape))]
        for channels in filters[:-1] if self.order == "norm-first" else filters:
            if channels > _GROUPS and channels % _GROUPS:
                return f"{channels} channels cannot be divided into the {_GROUPS} groups of {self.name}"
        return super().skip(facts)


@dataclass(frozen=True)
class ConvNN(ConvNetwork):
    """ConvNet without normalisation."""

    name: ClassVar[str] = "conv-nn"
    norm: ClassVar[Literal["nn"]] = "nn"


def batch_normalised(network: Network) -> bool:
    """Return whether an image's outputs depend on the other images of its batch, by the option or attribute `norm`."""
    return getattr(network, "norm", None) == "bn"


def without_batch_norm(network: Network) -> Network:
    """Return `conv-nn` with the options of a `conv-bn`; any other network is returned unchanged."""
    if not isinstance(network, ConvBN):
        return network
    return ConvNN(**{field.name: getattr(network, field.name) for field in fields(ConvNN)})
