"""Per-channel standardisation, fitted or with given constants, in NumPy only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from bpcbench.api import Context, Preprocessing, option
from bpcbench.records import Array, Arrays, Data

_SMALLEST_STD = 1e-6
_CHUNK = 4096
"""Images per chunk of the histogram: NumPy's bincount widens every byte to 8 bytes."""


@dataclass(frozen=True)
class Standardize(Preprocessing):
    """(x / 255 - mean_c) / std_c with the mean and the population std of channel c over all training pixels.

    Both are exact: they come from integer sums over a histogram of the 256 grey levels. std_c is at least 1e-6. With
    `spread: images` std_c is the mean over images of each image's std, which is smaller. The constants 0.2023, 0.1994,
    0.2010 for CIFAR-10 in much public code are of this kind. `mean` and `std` replace the computed constants by given
    ones, such as those that a paper prints; nothing is then fitted.
    """

    name: ClassVar[str] = "standardize"
    default: ClassVar[bool] = True
    preload: ClassVar[tuple[str, ...]] = ()

    spread: Literal["pixels", "images"] = option(
        "pixels", "std over all pixels, or the mean over images of each image's std", absent="pixels"
    )
    mean: list[float] = option([], "given means per channel, of pixels in [0, 1]; empty: computed", absent=[])
    std: list[float] = option([], "given standard deviations per channel; empty: computed", absent=[])

    def __post_init__(self) -> None:
        check_constants(self.mean, self.std)

    def fit(self, data: Data, ctx: Context) -> Arrays:
        """Return `mean` and `std` per channel, float64, of pixels scaled to [0, 1]."""
        if self.mean:
            if len(self.mean) != data.facts.shape[0]:
                raise ValueError(f"mean and std have {len(self.mean)} channels, the images {data.facts.shape[0]}")
            return {"mean": np.array(self.mean, np.float64), "std": np.array(self.std, np.float64)}
        moments = [_moments(histogram) for histogram in _histograms(data.train.images)]
        mean, std = np.asarray(moments, np.float64).reshape(-1, 2).T
        if self.spread == "images":
            std = _mean_spread(data.train.images)
        return {"mean": mean.copy(), "std": np.maximum(std, _SMALLEST_STD)}

    def apply(self, images: Array, arrays: Arrays) -> Array:
        """Return standardised images, computed in float64 and rounded once to float32."""
        if images.dtype != np.uint8:
            raise ValueError(f"standardize takes raw uint8 images, got {images.dtype}")
        levels = np.arange(256) / 255
        table = ((levels - arrays["mean"][:, None]) / arrays["std"][:, None]).astype(np.float32)
        result = np.empty(images.shape, np.float32)
        for channel, values in enumerate(table):
            result[:, channel] = values[images[:, channel]]
        return result

    def invert(self, images: Array, arrays: Arrays) -> Array:
        """Return std * x + mean."""
        shape = (1, -1, 1, 1)
        scaled = images * arrays["std"].astype(np.float32).reshape(shape)
        return scaled + arrays["mean"].astype(np.float32).reshape(shape)

    def apply_float(self, pixels: Array, arrays: Arrays) -> Array:
        """Return (x - mean) / std, computed in float64 and rounded once to float32."""
        shape = (1, -1, 1, 1)
        return ((pixels - arrays["mean"].reshape(shape)) / arrays["std"].reshape(shape)).astype(np.float32)


@dataclass(frozen=True)
class Constants(Preprocessing):
    """(x / 255 - mean_c) / std_c with given numbers, one per channel or one for all; nothing is fitted.

    With the defaults the networks see pixels from 0 to 1. Images that were distilled elsewhere are often standardised
    with rounded constants such as 0.4914, 0.4822, 0.4465 and 0.2023, 0.1994, 0.2010 for CIFAR-10.
    """

    name: ClassVar[str] = "constants"

    mean: list[float] = option([0.0], "mean of each channel, of pixels from 0 to 1")
    std: list[float] = option([1.0], "standard deviation of each channel, of pixels from 0 to 1")

    def __post_init__(self) -> None:
        if not self.mean or not self.std or not all(map(math.isfinite, (*self.mean, *self.std))):
            raise ValueError(f"mean and std must be finite numbers, got {self.mean} and {self.std}")
        if min(self.std) <= 0:
            raise ValueError(f"std must be positive, got {self.std}")

    def fit(self, data: Data, ctx: Context) -> Arrays:
        """Return `mean` and `std` per channel, float64."""
        channels = data.facts.shape[0]
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, channels):
                raise ValueError(f"constants: {len(values)} numbers for `{name}` of images of {channels} channels")
        return {
            "mean": np.broadcast_to(np.asarray(self.mean, np.float64), channels).copy(),
            "std": np.broadcast_to(np.asarray(self.std, np.float64), channels).copy(),
        }

    def apply(self, images: Array, arrays: Arrays) -> Array:
        """Return standardised images, computed in float64 and rounded once to float32."""
        return Standardize().apply(images, arrays)

    def invert(self, images: Array, arrays: Arrays) -> Array:
        """Return std * x + mean."""
        return Standardize().invert(images, arrays)

    def apply_float(self, pixels: Array, arrays: Arrays) -> Array:
        """Return (x - mean) / std."""
        return Standardize().apply_float(pixels, arrays)


def check_constants(mean: Sequence[float], std: Sequence[float]) -> None:
    """Raise ValueError unless both are empty, or have the same length and standard deviations above 0."""
    if len(mean) != len(std):
        raise ValueError(f"mean and std are given together, one of each per channel; got {len(mean)} and {len(std)}")
    if not all(value > 0 for value in std):
        raise ValueError(f"std must be above 0, got {list(std)}")


def _histograms(images: Array) -> Array:
    """Return the count of each grey level in each channel, (channels, 256)."""
    counts = np.zeros((images.shape[1], 256), np.int64)
    for start in range(0, len(images), _CHUNK):
        chunk = images[start : start + _CHUNK]
        for channel in range(len(counts)):
            counts[channel] += np.bincount(chunk[:, channel].ravel(), minlength=256)
    return counts


def _mean_spread(images: Array) -> Array:
    """Return the mean over images of the population std of each channel, of pixels scaled to [0, 1]."""
    parts = (images[start : start + _CHUNK] for start in range(0, len(images), _CHUNK))
    return np.asarray(sum(part.std(axis=(2, 3), dtype=np.float64).sum(0) for part in parts)) / (255 * len(images))


def _moments(histogram: Array) -> tuple[float, float]:
    """Return mean and population standard deviation of grey levels scaled to [0, 1]."""
    counts = [int(count) for count in histogram]
    n = sum(counts)
    if n == 0:
        raise ValueError("standardize needs at least one training image")
    total = sum(level * count for level, count in enumerate(counts))
    squares = sum(level * level * count for level, count in enumerate(counts))
    return total / (255 * n), math.sqrt(n * squares - total * total) / (255 * n)
