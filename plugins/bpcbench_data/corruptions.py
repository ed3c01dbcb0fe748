"""The seven image corruptions of the VBPC paper, at the severities of CIFAR-10-C (Hendrycks & Dietterich, 2019).

Every function takes uint8 images (n, channels, height, width) with one or three channels, the parameters of a severity
and the random draws, and returns uint8 images. Each follows the published definition step by step, on a whole batch at
once. Where the definition casts floats to bytes, fractions are truncated, not rounded. docs/corruptions.md gives the
definitions in words and lists where ImageMagick's arithmetic is not reproduced.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bpcbench.errors import unknown
from bpcbench.records import Array
from bpcbench_data.corruption_motion import motion_blur

VERSION = 1
"""Increase it whenever the same seed would give other images."""
SEVERITIES = (1, 2, 3, 4, 5)
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
_CHUNK_VALUES = 1_000_000
"""Pixel values per chunk: as floats they nearly fit in a processor's cache."""


@dataclass(frozen=True)
class Draws:
    """The random streams of one split, in image order; NumPy guarantees that RandomState streams never change."""

    angles: np.random.RandomState
    layers: np.random.RandomState


def draws(seed: int, kind: str, severity: int) -> Draws:
    """Return fresh random streams, which differ by type and severity."""
    words = [seed, list(CORRUPTIONS).index(kind), severity]
    return Draws(np.random.RandomState([*words, 0]), np.random.RandomState([*words, 1]))


def corrupted(images: Array, kind: str, severity: int, seed: int = 0) -> Iterator[Array]:
    """Yield the corrupted images in order, in chunks. The result for an image depends only on the images up to it.

    Raise ValueError for an unknown type or severity, and for images of neither one nor three channels.
    """
    if kind not in CORRUPTIONS:
        raise ValueError(unknown("type of corruption", kind, CORRUPTIONS))
    if severity not in SEVERITIES:
        raise ValueError(f"unknown severity {severity!r} (allowed: 1 to 5)")
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"images must be uint8 (n, 1 or 3, height, width), got {images.dtype} {images.shape}")
    apply, parameters = CORRUPTIONS[kind]
    random = draws(seed, kind, severity)
    size = max(1, _CHUNK_VALUES // int(np.prod(images.shape[1:])))
    for start in range(0, len(images), size):
        # A copy, because a memory map would be read from disk again at every step.
        yield apply(np.array(images[start : start + size]), parameters[severity - 1], random)


def gaussian_blur(images: Array, sigma: float, random: Draws) -> Array:
    """Blur each channel by a Gaussian truncated at 4 sigma; the border is extended by its own pixels."""
    from scipy.ndimage import gaussian_filter

    blurred = gaussian_filter(images / 255.0, (0, 0, sigma, sigma), mode="nearest", truncate=4.0)
    return _bytes(blurred)


def jpeg_compression(images: Array, quality: int, random: Draws) -> Array:
    """Encode each image as JPEG of the given quality, with chroma subsampling, and decode it again."""
    from PIL import Image

    result = np.empty_like(images)
    for row, image in enumerate(images):
        file = io.BytesIO()
        Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(file, "JPEG", quality=quality)
        pixels = np.asarray(Image.open(file))
        result[row] = pixels if len(image) == 1 else pixels.transpose(2, 0, 1)
    return result


def pixelate(images: Array, share: float, random: Draws) -> Array:
    """Shrink to `share` of the size with a box filter, and enlarge back by repeating pixels."""
    height, width = images.shape[2:]
    small = _box_resize(images, max(1, int(height * share)), max(1, int(width * share)))
    return _box_resize(small, height, width)


def _box_resize(images: Array, height: int, width: int) -> Array:
    """Average the pixels whose centres lie in a new pixel as Pillow does: rows first, rounded to bytes in between."""
    across, down = (_box_windows(*sizes) for sizes in ((images.shape[3], width), (images.shape[2], height)))
    rows = images.reshape(-1, images.shape[3]).astype(np.float32) @ across.T
    rows = np.floor(rows / across.sum(1) + np.float32(0.5)).reshape(-1, images.shape[2], width)
    columns = np.floor(down @ rows / down.sum(1, keepdims=True) + np.float32(0.5))
    return columns.astype(np.uint8).reshape(*images.shape[:2], height, width)


@functools.lru_cache(maxsize=128)
def _box_windows(size: int, wanted: int) -> Array:
    """Return a 0/1 matrix (wanted, size): the pixels that are averaged for each new pixel."""
    step = size / wanted
    reach = max(step, 1.0)
    # The arithmetic is Pillow's, so that an edge in the middle of a pixel is rounded to the same side.
    middle = ((np.arange(wanted) + 0.5) * step)[:, None]
    pixels = np.arange(size)
    inside = (pixels >= (middle - 0.5 * reach + 0.5).astype(int)) & (pixels < (middle + 0.5 * reach + 0.5).astype(int))
    offset = (pixels - middle + 0.5) * (1.0 / reach)
    return (inside & (offset > -0.5) & (offset <= 0.5)).astype(np.float32)


def defocus_blur(images: Array, lens: tuple[float, float], random: Draws) -> Array:
    """Correlate each channel with a disk smoothed by a 3x3 Gaussian; the border is reflected."""
    kernel = disk(*lens)
    reach = len(kernel) // 2
    wide = np.pad(images / 255.0, ((0, 0), (0, 0), (reach, reach), (reach, reach)), "reflect")
    height, width = images.shape[2:]
    total = np.zeros(images.shape)
    for (down, right), weight in np.ndenumerate(kernel):
        if weight > 0:
            total += weight * wide[:, :, down : down + height, right : right + width]
    return _bytes(total)


def disk(radius: float, smoothing: float) -> Array:
    """Return the float32 kernel: a disk that sums to one, smoothed by a 3x3 Gaussian of sigma `smoothing`."""
    from scipy.ndimage import correlate

    # One pixel beyond the radius for the smoothing; the definition's 17x17 kernel is 0 further out.
    across = np.arange(-np.ceil(radius) - 1, np.ceil(radius) + 2)
    flat = (across[:, None] ** 2 + across**2 <= radius**2).astype(np.float32)
    bell = np.exp(-np.array([1.0, 0.0, 1.0]) / (2 * smoothing**2))
    bell = (bell / bell.sum()).astype(np.float32)
    return correlate(flat / flat.sum(), np.outer(bell, bell), mode="constant")


def zoom_blur(images: Array, largest: float, random: Draws) -> Array:
    """Average the image with its enlargements by 1, 1.01, 1.02, ... up to but not including `largest`."""
    # As in the definition, where the rounding of arange decides whether the end is included.
    factors = np.arange(1, largest, 0.01)
    scaled = images.astype(np.float32) / np.float32(255)
    total = scaled.copy()
    for factor in factors:
        total += clipped_zoom(scaled, float(factor))
    return _bytes(total / np.float32(len(factors) + 1))


def clipped_zoom(images: Array, factor: float) -> Array:
    """Enlarge the centre of images by linear interpolation and crop to the original size; the dtype is kept."""
    height, width = images.shape[-2:]
    down, across = (_zoom_matrix(size, factor).astype(images.dtype) for size in (height, width))
    # The rows of all images at once, then one small product per image.
    rows = images.reshape(-1, width) @ across.T
    return (down @ rows.reshape(-1, height, width)).reshape(images.shape)


@functools.lru_cache(maxsize=128)
def _zoom_matrix(size: int, factor: float) -> Array:
    """Return `clipped_zoom` along one side as a matrix: interpolation is linear in the pixels."""
    from scipy.ndimage import zoom

    kept = int(np.ceil(size / factor))
    first = (size - kept) // 2
    weights = zoom(np.eye(size)[first : first + kept], (factor, 1), order=1)
    surplus = (len(weights) - size) // 2
    return weights[surplus : surplus + size]


def motion_blur_at_random_angle(images: Array, brush: tuple[float, float], random: Draws) -> Array:
    """Apply motion blur at a random angle between -45 and 45 degrees."""
    return motion_blur(images, *brush, random.angles.uniform(-45, 45, len(images)))


def snow(images: Array, weather: tuple[float, ...], random: Draws) -> Array:
    """Whiten the image, then add a layer of moving flakes and the same layer rotated by 180 degrees.

    The layer is enlarged Gaussian noise, set to 0 below a threshold, then motion-blurred downwards.
    """
    mean, std, enlarged, threshold, radius, sigma, kept = weather
    layer = snow_layer(images.shape, (mean, std, enlarged, threshold), random)
    layer = motion_blur(layer, radius, sigma, random.angles.uniform(-135, -45, len(images))) / 255.0
    scaled = images.astype(np.float32) / np.float32(255)
    grey = np.tensordot(scaled, _LUMINANCE, (1, 0))[:, None] if images.shape[1] == 3 else scaled
    white = np.maximum(scaled, np.float32(1.5) * grey + np.float32(0.5))
    whitened = np.float32(kept) * scaled + np.float32(1 - kept) * white
    return _bytes(whitened + layer + layer[:, :, ::-1, ::-1])


def snow_layer(shape: Sequence[int], flakes: tuple[float, ...], random: Draws) -> Array:
    """Return the flakes before the motion blur, uint8 (n, 1, height, width); most pixels are 0."""
    mean, std, enlarged, threshold = flakes
    noise = random.layers.normal(mean, std, (shape[0], 1, *shape[2:]))
    layer = clipped_zoom(noise, enlarged)
    return _bytes(np.where(layer < threshold, 0.0, layer))


def _bytes(images: Array) -> Array:
    """Return floats in [0, 1] as bytes: clipped, scaled and truncated."""
    return (np.clip(images, 0.0, 1.0) * images.dtype.type(255)).astype(np.uint8)


def mean_distance(clean: Array, changed: Array) -> float:
    """Return the mean absolute difference of the pixels of two uint8 arrays, in grey levels."""
    return float(np.abs(clean.astype(np.int16) - changed).mean())


Corruption = Callable[[Array, Any, Draws], Array]
CORRUPTIONS: Mapping[str, tuple[Corruption, tuple[Any, ...]]] = {
    "gaussian_blur": (gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
    "jpeg_compression": (jpeg_compression, (80, 65, 58, 50, 40)),
    "snow": (
        snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "zoom_blur": (zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "pixelate": (pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "defocus_blur": (defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "motion_blur": (motion_blur_at_random_angle, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
}
"""The corruptions in the paper's order, each with its parameters at the severities 1 to 5."""
