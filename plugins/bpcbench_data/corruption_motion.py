"""ImageMagick's motion blur for a batch of images, each with its own angle."""

from __future__ import annotations

import numpy as np

from bpcbench.records import Array


def motion_kernel(radius: float, sigma: float) -> Array:
    """Return the 2 ceil(radius) + 1 weights along the motion: half a Gaussian, normalised to sum to one."""
    along = np.arange(2 * int(np.ceil(radius)) + 1)
    weights = np.exp(-(along**2) / (2 * sigma**2))
    return weights / weights.sum()


def motion_offsets(taps: int, angles: Array) -> tuple[Array, Array]:
    """Return the offsets of each weight, down and right, in whole pixels, (taps, angles); angles are in degrees."""
    radians = np.deg2rad(angles)
    along = np.arange(taps)[:, None]
    down, right = (np.ceil(along * part - 0.5).astype(int) for part in (np.sin(radians), np.cos(radians)))
    return down, right


def motion_blur(images: Array, radius: float, sigma: float, angles: Array) -> Array:
    """Return uint8 images (n, c, h, w), each blurred along its angle: sum_i w_i x[y + down_i, x + right_i], rounded.

    The border is extended by its own pixels. Angles are in degrees, clockwise from the right since y points down.
    """
    kernel = motion_kernel(radius, sigma)
    # Sorted by angle, images that a weight moves by the same offset are neighbours and can be sliced.
    order = np.argsort(angles, kind="stable")
    down, right = motion_offsets(len(kernel), np.asarray(angles)[order])
    reach = len(kernel)
    border = ((0, 0), (0, 0), (reach, reach), (reach, reach))
    wide = np.pad(images[order].astype(np.float32), border, "edge")
    height, width = images.shape[2:]
    total = np.zeros(images.shape, np.float32)
    for weight, downs, rights in zip(kernel.astype(np.float32), down, right, strict=True):
        moves = np.flatnonzero((np.diff(downs) != 0) | (np.diff(rights) != 0)) + 1
        for first, last in zip([0, *moves], [*moves, len(images)], strict=True):
            if first < last:
                top, left = reach + downs[first], reach + rights[first]
                total[first:last] += weight * wide[first:last, :, top : top + height, left : left + width]
    result = np.empty_like(images)
    result[order] = np.clip(total + np.float32(0.5), 0, 255).astype(np.uint8)
    return result
