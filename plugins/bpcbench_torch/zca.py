"""ZCA whitening in NumPy: its syrk takes half the time of torch's matrix product, its eigh the same time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from bpcbench.api import Context, Preprocessing, option
from bpcbench.records import Array, Arrays, Data, Facts
from bpcbench_torch.preprocessing import Standardize, check_constants

_CHUNK = 2048
"""Images per chunk that are converted to floating point."""


@dataclass(frozen=True)
class ZCA(Preprocessing):
    """Channel standardisation, then x' = W (x - mu) on flattened images (Bell & Sejnowski, 1997; FRePo's settings).

    mu and C = (1/N) sum (x - mu)(x - mu)^T are those of the standardised training images, r = regularisation *
    trace(C) / d, C + r I = U diag(s) U^T, and W = U diag(s^-1/2) U^T, whose inverse is U diag(s^1/2) U^T. With fewer
    images than pixels, N < d, the scale of all but the N largest eigenvalues is 1 instead of s^-1/2. Fitted in float64,
    applied in float32. Images of one channel are only standardised, as the protocol requires, unless `grey` is set.
    `mean` and `std` are those of `standardize`.

    The other options are for images that were distilled elsewhere: `centred: false` is the recipe of KIP and RFAD,
    `absolute: true` with `spread: images` that of code which whitens CIFAR-10 with kornia (MTT, DATM).
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

    def __post_init__(self) -> None:
        if not 0.0 < self.regularisation < math.inf:
            raise ValueError(f"regularisation must be positive, got {self.regularisation}")
        check_constants(self.mean, self.std)

    def operations(self, facts: Facts) -> float | None:
        """Return 2 n d^2 for the covariance and 9 d^3 for its eigenvectors, d being the numbers of an image."""
        size = float(math.prod(facts.shape))
        return 2 * facts.sizes["train"] * size**2 + 9 * size**3

    def fit(self, data: Data, ctx: Context) -> Arrays:
        """Return `mean` and `std` per channel and, if there is whitening, `centre` (d,), `whiten`, `colour` (d, d)."""
        images = data.train.images
        moments = Standardize(self.spread, mean=self.mean, std=self.std).fit(data, ctx)
        if images.shape[1] == 1 and not self.grey:
            return moments
        centre, covariance = _covariance(images, moments, centred=self.centred)
        values, vectors = np.linalg.eigh(covariance)
        ridge = self.regularisation * (1.0 if self.absolute else covariance.trace() / len(centre))
        # Rounding can make small eigenvalues negative. Without any variance there is nothing to whiten: scale 1.
        scales = np.sqrt(np.maximum(values, 0) + ridge) if ridge > 0 else np.ones_like(values)
        scales[: max(0, len(centre) - len(images))] = 1.0  # eigh sorts in ascending order
        return {
            **moments,
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
        flat = result.reshape(len(images), -1)
        for rows, chunk in _standardised(images, arrays):
            np.matmul(chunk - centre, whiten, out=flat[rows])
        return result

    def invert(self, images: Array, arrays: Arrays) -> Array:
        """Return the pixels of whitened images."""
        if "colour" in arrays:
            coloured = images.reshape(len(images), -1).astype(np.float32, copy=False) @ arrays["colour"]
            images = (coloured + arrays["centre"]).reshape(images.shape)
        return Standardize().invert(images, arrays)

    def apply_float(self, pixels: Array, arrays: Arrays) -> Array:
        """Return the whitened images of float pixels."""
        standardised = Standardize().apply_float(pixels, arrays)
        if "whiten" not in arrays:
            return standardised
        flat = (standardised.reshape(len(pixels), -1) - arrays["centre"]) @ arrays["whiten"]
        return flat.reshape(pixels.shape).astype(np.float32, copy=False)


def _square(matrix: Array) -> Array:
    """Return A A^T, which NumPy computes in half the time and exactly symmetric."""
    return matrix @ matrix.T


def _standardised(images: Array, moments: Arrays) -> Iterator[tuple[slice, Array]]:
    """Yield rows and their standardised, flattened images in float32."""
    for start in range(0, len(images), _CHUNK):
        rows = slice(start, start + _CHUNK)
        chunk = Standardize().apply(images[rows], moments)
        yield rows, chunk.reshape(len(chunk), -1)


def _covariance(images: Array, moments: Arrays, *, centred: bool = True) -> tuple[Array, Array]:
    """Return mean and covariance of standardised images, (d,) and (d, d); zeros and the second moment if not centred.

    In float64: float32 takes two thirds of the time, but is too inaccurate for a small regularisation.
    """
    d = math.prod(images.shape[1:])
    total, products = np.zeros(d), np.zeros((d, d))
    for _, chunk in _standardised(images, moments):
        wide = chunk.astype(np.float64)
        total += wide.sum(0)
        products += wide.T @ wide
    centre = total / len(images) if centred else np.zeros(d)
    # One pass is enough: standardised data have means near 0, so there is little cancellation.
    return centre, products / len(images) - np.outer(centre, centre)
