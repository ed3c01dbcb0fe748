"""Differentiable distortions of image batches, one parameter per image.

Plain functions take images (n, c, h, w) and parameters (n,) on the same device. The classes `FRePo` and `DSA` draw the
parameters in the ranges of their papers' code, only from the given generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Padding = Literal["border", "zeros"]


def warp(images: Tensor, matrices: Tensor, padding: Padding = "border") -> Tensor:
    """Return images whose pixel at u is the source's at A u + b, with bilinear interpolation.

    `matrices` (n, 2, 3) are [A | b] in pixels, (x, y), with the centre of the image as origin. Outside the source the
    value is that of the nearest edge pixel (`border`) or zero (`zeros`).
    """
    # affine_grid has the outermost pixel centres at ±1. Scalars, because a tensor would be copied to the device.
    height, width = ((max(side, 2) - 1) / 2 for side in images.shape[-2:])
    (xx, xy, x), (yx, yy, y) = (row.unbind(1) for row in matrices.unbind(1))
    entries = [xx, xy * (height / width), x / width, yx * (width / height), yy, y / height]
    grid = F.affine_grid(torch.stack(entries, 1).view(-1, 2, 3), list(images.shape), align_corners=True)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode=padding, align_corners=True)


def compose(first: Tensor, second: Tensor) -> Tensor:
    """Return the matrices of warping by `first`, then by `second`, with a single interpolation."""
    joined = first[:, :, :2] @ second
    return torch.cat([joined[:, :, :2], joined[:, :, 2:] + first[:, :, 2:]], 2)


def affine(scale: Tensor, shift: Tensor) -> Tensor:
    """Return [diag(scale) | shift] for scales and shifts (n, 2) in x and y: the source is scale * u + shift."""
    return torch.cat([torch.diag_embed(scale), shift[:, :, None]], 2)


def rotation(degrees: Tensor) -> Tensor:
    """Return rotations about the centre by angles (n,); positive angles turn the image counter-clockwise."""
    radians = degrees * (math.pi / 180)
    cos, sin, zero = radians.cos(), radians.sin(), torch.zeros_like(radians)
    return torch.stack([cos, -sin, zero, sin, cos, zero], 1).view(-1, 2, 3)


def flip(images: Tensor, chosen: Tensor) -> Tensor:
    """Return images with the chosen ones, bool (n,), mirrored left to right."""
    return torch.where(_each(chosen), images.flip(-1), images)


def erase(images: Tensor, top: Tensor, left: Tensor, size: int) -> Tensor:
    """Return images with a square of zeros whose top left pixel is (top, left), both (n,); it may exceed the image."""
    rows = torch.arange(images.shape[-2], device=images.device) - top[:, None]
    columns = torch.arange(images.shape[-1], device=images.device) - left[:, None]
    inside = ((rows >= 0) & (rows < size))[:, :, None] & ((columns >= 0) & (columns < size))[:, None, :]
    return images.masked_fill(inside[:, None], 0.0)


def brighten(images: Tensor, amount: Tensor) -> Tensor:
    """Return x + amount."""
    return images + _each(amount)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Return factor * (x - m) + m with m the mean of the image over channels and pixels."""
    return torch.lerp(images.mean((1, 2, 3), keepdim=True), images, _each(factor))


def saturate(images: Tensor, factor: Tensor) -> Tensor:
    """Return factor * (x - m) + m with m the mean over channels at each pixel; the identity for one channel."""
    return torch.lerp(images.mean(1, keepdim=True), images, _each(factor))


def _each(values: Tensor) -> Tensor:
    return values[:, None, None, None]


class Draws:
    """The operations of a family on one batch.

    Geometric operations return matrices for `warp`; the others map images to images. Numbers are drawn on the
    generator's device and copied asynchronously: a CPU generator gives the same numbers for images on any device.
    All of them are kept in `numbers`; with `given`, those of an earlier batch are used again in place of new ones.
    `again` draws new ones without any image.
    """

    padding: ClassVar[Padding]
    geometry: ClassVar[frozenset[str]]

    def __init__(
        self, generator: torch.Generator | None, images: Tensor, given: Sequence[Tensor] | None = None
    ) -> None:
        self.generator, self.numbers = generator, list(given or ())
        self._left = None if given is None else iter(self.numbers)
        # Functions of the draws, not closures: a cycle would keep the numbers alive until it is collected.
        self._asked: list[Callable[[Draws], Tensor]] = []
        self.device, self.dtype = images.device, images.dtype
        self.count = len(images)
        self.height, self.width = images.shape[-2:]

    def chain(self, images: Tensor, operations: Sequence[str]) -> Tensor:
        """Return images after all operations; adjacent geometric ones share one interpolation."""
        matrices: Tensor | None = None
        for operation in operations:
            if operation in self.geometry:
                drawn: Tensor = getattr(self, operation)()
                matrices = drawn if matrices is None else compose(matrices, drawn)
            else:
                if matrices is not None:
                    images, matrices = warp(images, matrices, self.padding), None
                images = getattr(self, operation)(images)
        return images if matrices is None else warp(images, matrices, self.padding)

    def uniform(self, low: float, high: float) -> Tensor:
        """Return numbers from U(low, high), (n,)."""
        return self._drawn(partial(_uniform, low=low, high=high))

    def below(self, limit: int) -> Tensor:
        """Return integers from 0 ... limit-1, (n,)."""
        return self._drawn(partial(_below, limit=limit))

    def normal(self, images: Tensor, std: float) -> Tensor:
        """Return numbers from N(0, std^2) in the shape of images."""
        return self._drawn(partial(_normal, shape=images.shape, std=std))

    def again(self) -> tuple[Tensor, ...]:
        """Return new numbers for what was asked for, in that order."""
        return tuple(draw(self).to(self.device, non_blocking=True) for draw in self._asked)

    @property
    def source(self) -> torch.device:
        """The generator's device."""
        assert self.generator is not None
        return self.generator.device

    def _drawn(self, draw: Callable[[Draws], Tensor]) -> Tensor:
        if self._left is not None:
            return next(self._left)
        self._asked.append(draw)
        self.numbers.append(draw(self).to(self.device, non_blocking=True))
        return self.numbers[-1]

    def shift(self, share: float) -> Tensor:
        """Return subpixel shifts of up to `share` of the width and height, (n, 2)."""
        return torch.stack([self.uniform(-share * side, share * side) for side in (self.width, self.height)], 1)

    def flip(self, images: Tensor) -> Tensor:
        """Mirror with probability 1/2."""
        return flip(images, self.uniform(0, 1) < 0.5)

    def rotate(self) -> Tensor:
        """Rotate by U(-15, 15) degrees."""
        return rotation(self.uniform(-15, 15))


def _uniform(draws: Draws, *, low: float, high: float) -> Tensor:
    drawn = torch.rand(draws.count, generator=draws.generator, device=draws.source, dtype=draws.dtype)
    return drawn * (high - low) + low


def _below(draws: Draws, *, limit: int) -> Tensor:
    return torch.randint(limit, (draws.count,), generator=draws.generator, device=draws.source)


def _normal(draws: Draws, *, shape: torch.Size, std: float) -> Tensor:
    return std * torch.randn(shape, generator=draws.generator, device=draws.source, dtype=draws.dtype)


class FRePo(Draws):
    """Operations of FRePo (Zhou, Nezhadarya & Ba, 2022); noise and brightness are VBPC's (Lee, Lee & Lee, 2025)."""

    padding: ClassVar[Padding] = "border"
    geometry: ClassVar[frozenset[str]] = frozenset({"crop", "rotate", "translate"})

    def noise(self, images: Tensor) -> Tensor:
        """Add N(0, 0.01), where 0.01 is taken as the variance."""
        return images + self.normal(images, 0.1)

    def brightness(self, images: Tensor) -> Tensor:
        """Add U(-0.25, 0.25): the additive part of `color`."""
        return brighten(images, self.uniform(-0.25, 0.25))

    def color(self, images: Tensor) -> Tensor:
        """Change brightness, then contrast, then saturation, the latter two by factors exp(U(-0.25, 0.25))."""
        images = self.brightness(images)
        images = contrast(images, self.uniform(-0.25, 0.25).exp())
        return saturate(images, self.uniform(-0.25, 0.25).exp())

    def crop(self) -> Tensor:
        """Zoom by z, log-uniform on [0.8, 1.25], off-centre by s = U(-1, 1) |Hz - H| / 2: the source is (u + s) / z."""
        zoom = self.uniform(math.log(0.8), math.log(1.25)).exp()[:, None]
        return affine((1 / zoom).expand(-1, 2), self.shift(0.5) * (zoom - 1).abs() / zoom)

    def translate(self) -> Tensor:
        """Shift by up to an eighth of each side, with subpixel precision."""
        shift = self.shift(0.125)
        return affine(torch.ones_like(shift), shift)

    def cutout(self, images: Tensor) -> Tensor:
        """Erase a square of a quarter of the shorter side, entirely inside the image."""
        size = min(self.height, self.width) // 4
        return erase(images, self.below(self.height - size + 1), self.below(self.width - size + 1), size)


class DSA(Draws):
    """Operations of differentiable Siamese augmentation (Zhao & Bilen, 2021), with the parameters of its code."""

    padding: ClassVar[Padding] = "zeros"
    geometry: ClassVar[frozenset[str]] = frozenset({"crop", "rotate", "scale"})

    def color(self, images: Tensor) -> Tensor:
        """Add U(-0.5, 0.5), change saturation by U(0, 2), then contrast by U(0.5, 1.5)."""
        images = brighten(images, self.uniform(-0.5, 0.5))
        images = saturate(images, self.uniform(0, 2))
        return contrast(images, self.uniform(0.5, 1.5))

    def crop(self) -> Tensor:
        """Shift by whole pixels, up to an eighth of each side."""
        limits = [int(side * 0.125 + 0.5) for side in (self.width, self.height)]
        shift = torch.stack([self.below(2 * limit + 1) - limit for limit in limits], 1).to(self.dtype)
        return affine(torch.ones_like(shift), shift)

    def cutout(self, images: Tensor) -> Tensor:
        """Erase a square of half the side, centred anywhere, so that it may exceed the image."""
        size = int(min(self.height, self.width) * 0.5 + 0.5)
        # The centre of an even square lies between pixels, so it has one more position.
        top, left = (self.below(side + 1 - size % 2) - size // 2 for side in (self.height, self.width))
        return erase(images, top, left, size)

    def scale(self) -> Tensor:
        """Scale each side by an independent factor from U(1/1.2, 1.2)."""
        scale = torch.stack([self.uniform(1 / 1.2, 1.2) for _ in range(2)], 1)
        return affine(scale, torch.zeros_like(scale))
