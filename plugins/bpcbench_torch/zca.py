"""ZCA whitening in NumPy: its syrk takes half the time of torch's matrix product, its eigh the same time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from bpcbench.api import Context, Preprocessing, option
from bpcbench.records import Array, Arrays, Data, Facts
from bpcbench_torch.preprocessing import Standardize, check_constants

_CHUNK = 2048
"""Images per chunk that are converted to floating point."""
LARGEST_BLOCK = 64
"""The side of the largest blocks that are chosen: the matrices of 64x64 colour images have 12,288 rows."""
_SMALLEST_BLOCK = 16
"""The side of the smallest ones: below, neighbouring pixels of a block are far apart in the image."""


@dataclass(frozen=True)
class ZCA(Preprocessing):
    """Channel standardisation, then x' = W (x - mu) on flattened images (Bell & Sejnowski, 1997; FRePo's settings).

    mu and C = (1/N) sum (x - mu)(x - mu)^T are those of the standardised training images, r = regularisation *
    trace(C) / d, C + r I = U diag(s) U^T, and W = U diag(s^-1/2) U^T, whose inverse is U diag(s^1/2) U^T. With fewer
    images than pixels, N < d, the scale of all but the N largest eigenvalues is 1 instead of s^-1/2. Fitted in float64,
    applied in float32. Images of one channel are only standardised, as the protocol requires, unless `grey` is set.
    `mean` and `std` are those of `standardize`.

    The other options are for images that were distilled elsewhere: `centred: false` is the recipe of KIP and RFAD,
    `absolute: true` with `mean: [0, 0, 0]` and `std: [1, 1, 1]` that of code which whitens plain pixels with kornia, as
    MTT and DATM do.

    Images of more than 64 pixels a side are whitened in blocks: the matrices of 128x128 colour images would have 49,152
    rows. They are divided into the `strides` images of `block` pixels that a checkerboard of every second (third, ...)
    row and column gives. All share one W, from the mean of their covariances, as in FRePo's code for ImageWoof; mu is
    still that of the whole image. `block: 0` takes the largest block of at most 64 pixels a side that divides the
    image; a block as large as the image whitens it whole. What was taken is stored, as `block`.
    """

    name: ClassVar[str] = "zca"

    regularisation: float = option(0.1, "constant added to the eigenvalues of the covariance, relative to their mean")
    grey: bool = option(False, "also whiten images of one channel, instead of only standardising them")
    mean: list[float] = option([], "given means per channel, of pixels in [0, 1]; empty: computed", absent=[])
    std: list[float] = option([], "given standard deviations per channel; empty: computed", absent=[])
    centred: bool = option(True, "subtract the mean image; false: mu is 0, also in C", absent=True)
    absolute: bool = option(False, "add the regularisation itself, not relative to the mean eigenvalue", absent=False)
    spread: Literal["pixels", "images"] = option(
        "pixels", "standard deviation of the channels, as in standardize", absent="pixels"
    )
    block: int = option(
        0,
        "whiten larger images in checkerboard blocks of this many pixels a side; 0: of at most 64, by the image's size",
        absent=0,
    )

    def __post_init__(self) -> None:
        if not 0.0 < self.regularisation < math.inf:
            raise ValueError(f"regularisation must be positive, got {self.regularisation}")
        check_constants(self.mean, self.std)
        if self.block < 0:
            raise ValueError(f"block must not be negative, got {self.block}")

    def strides(self, shape: Sequence[int]) -> tuple[int, int]:
        """Return every how many rows and columns a block has one; (1, 1) if images (..., h, w) are whitened whole."""
        rows, columns = shape[-2:]
        block = self.block or LARGEST_BLOCK
        if max(rows, columns) <= block:
            return 1, 1
        if not self.block:
            block = _chosen_block(rows, columns)
        if rows % block or columns % block:
            raise ValueError(f"images of {rows}x{columns} pixels cannot be divided into blocks of {block} a side")
        return rows // block, columns // block

    def operations(self, facts: Facts) -> float | None:
        """Return 2 n d^2 for the covariance and 9 d^3 for its eigenvectors, d being the numbers of a block."""
        blocks = math.prod(self.strides(facts.shape))
        size = float(math.prod(facts.shape)) / blocks
        return 2 * facts.sizes["train"] * blocks * size**2 + 9 * size**3

    def fit(self, data: Data, ctx: Context) -> Arrays:
        """Return `mean` and `std` per channel and, if there is whitening, `centre`, `whiten` and `colour`.

        `centre` are the d numbers of an image, the matrices (e, e) for the e numbers of a block, whose rows and columns
        are `block`, where there is more than one.
        """
        images = data.train.images
        moments = Standardize(self.spread, mean=self.mean, std=self.std).fit(data, ctx)
        if images.shape[1] == 1 and not self.grey:
            return moments
        strides = self.strides(images.shape)
        centre, covariance = _covariance(images, moments, strides, centred=self.centred)
        width = len(covariance)
        ridge = self.regularisation * (1.0 if self.absolute else covariance.trace() / width)
        values, vectors = np.linalg.eigh(covariance)
        del covariance  # at 64 pixels a side each of these matrices has 1.2 GB
        # Rounding can make small eigenvalues negative. Without any variance there is nothing to whiten: scale 1.
        scales = np.sqrt(np.maximum(values, 0) + ridge) if ridge > 0 else np.ones_like(values)
        scales[: max(0, width - len(images))] = 1.0  # eigh sorts in ascending order
        sides = [side // stride for side, stride in zip(images.shape[2:], strides, strict=True)]
        return {
            **moments,
            **({"block": np.array(sides)} if strides != (1, 1) else {}),
            "centre": centre.astype(np.float32),
            "whiten": _square(vectors / np.sqrt(scales)).astype(np.float32),
            "colour": _square(vectors * np.sqrt(scales)).astype(np.float32),
        }

    def apply(self, images: Array, arrays: Arrays) -> Array:
        """Return whitened images, chunk by chunk."""
        if "whiten" not in arrays:
            return Standardize().apply(images, arrays)
        centre, whiten = arrays["centre"], arrays["whiten"]
        result = np.empty(images.shape, np.float32)
        strides = _strides(images.shape, len(whiten))
        for rows, chunk in _standardised(images, arrays):
            result[rows] = _whole(_blocks(chunk - centre, images.shape, strides) @ whiten, images.shape, strides)
        return result

    def invert(self, images: Array, arrays: Arrays) -> Array:
        """Return the pixels of whitened images."""
        if "colour" in arrays:
            strides = _strides(images.shape, len(arrays["colour"]))
            blocks = _blocks(images.astype(np.float32, copy=False), images.shape, strides) @ arrays["colour"]
            images = _whole(blocks, images.shape, strides) + arrays["centre"].reshape(images.shape[1:])
        return Standardize().invert(images, arrays)

    def apply_float(self, pixels: Array, arrays: Arrays) -> Array:
        """Return the whitened images of float pixels."""
        standardised = Standardize().apply_float(pixels, arrays)
        if "whiten" not in arrays:
            return standardised
        strides = _strides(pixels.shape, len(arrays["whiten"]))
        blocks = _blocks(standardised.reshape(len(pixels), -1) - arrays["centre"], pixels.shape, strides)
        return _whole(blocks @ arrays["whiten"], pixels.shape, strides).astype(np.float32, copy=False)


def _chosen_block(rows: int, columns: int) -> int:
    """Return the side of the largest square blocks that divide an image and are not too large."""
    common = math.gcd(rows, columns)
    for side in range(LARGEST_BLOCK, _SMALLEST_BLOCK - 1, -1):
        if common % side == 0:
            return side
    raise ValueError(
        f"images of {rows}x{columns} pixels have no checkerboard blocks of {_SMALLEST_BLOCK} to {LARGEST_BLOCK} pixels "
        f"a side; `block: {max(rows, columns)}` whitens them whole"
    )


def _strides(shape: Sequence[int], size: int) -> tuple[int, int]:
    """Return the strides of blocks of `size` numbers; blocks are square, or the image is one block."""
    _, channels, rows, columns = shape
    if size == channels * rows * columns:
        return 1, 1
    side = math.isqrt(size // channels)
    return rows // side, columns // side


def _blocks(images: Array, shape: Sequence[int], strides: tuple[int, int]) -> Array:
    """Return the flattened blocks of images, one after the other, of every image in turn."""
    count, (_, channels, rows, columns), (down, across) = len(images), shape, strides
    parts = images.reshape(count, channels, rows // down, down, columns // across, across)
    return parts.transpose(0, 3, 5, 1, 2, 4).reshape(count * down * across, -1)


def _whole(blocks: Array, shape: Sequence[int], strides: tuple[int, int]) -> Array:
    """Return the images (n, c, h, w) of flattened blocks."""
    (_, channels, rows, columns), (down, across) = shape, strides
    parts = blocks.reshape(-1, down, across, channels, rows // down, columns // across)
    return parts.transpose(0, 3, 4, 1, 5, 2).reshape(-1, channels, rows, columns)


def _square(matrix: Array) -> Array:
    """Return A A^T, which NumPy computes in half the time and exactly symmetric."""
    return matrix @ matrix.T


def _standardised(images: Array, moments: Arrays) -> Iterator[tuple[slice, Array]]:
    """Yield rows and their standardised, flattened images in float32."""
    for start in range(0, len(images), _CHUNK):
        rows = slice(start, start + _CHUNK)
        chunk = Standardize().apply(images[rows], moments)
        yield rows, chunk.reshape(len(chunk), -1)


def _covariance(
    images: Array, moments: Arrays, strides: tuple[int, int] = (1, 1), *, centred: bool = True
) -> tuple[Array, Array]:
    """Return mean and covariance of standardised images, (d,) and (e, e); zeros and the second moment if not centred.

    The covariance is the mean over blocks of e numbers. In float64: float32 takes two thirds of the time, but is too
    inaccurate for a small regularisation.
    """
    d, blocks = math.prod(images.shape[1:]), math.prod(strides)
    total, products = np.zeros(d), np.zeros((d // blocks, d // blocks))
    for _, chunk in _standardised(images, moments):
        wide = chunk.astype(np.float64)
        total += wide.sum(0)
        wide = _blocks(wide, images.shape, strides)
        products += wide.T @ wide
    centre = total / len(images) if centred else np.zeros(d)
    means = _blocks(centre[None], images.shape, strides)
    # One pass is enough: standardised data have means near 0, so there is little cancellation.
    products /= len(images)
    products -= means.T @ means
    products /= blocks
    return centre, products
