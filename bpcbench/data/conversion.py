"""Convert images of another data set to the shape of the cell's own, so that they can be predicted.

Grey becomes colour by repeating the channel; colour becomes grey by the luminance of ITU-R BT.601, 0.299 R + 0.587 G +
0.114 B, rounded. A size that is a whole multiple of the wanted one is reduced by box averaging, in which every pixel
counts once; any other size by bilinear interpolation whose filter widens with the reduction, so that nothing aliases
(an aliased image would be detected by its artefacts). The aspect ratio is not kept. An image that already has the
wanted shape is never changed.
"""

from __future__ import annotations

import numpy as np

from bpcbench.errors import UserError
from bpcbench.records import Array

VERSION = 1
"""Bumped when the same image would be converted differently; part of the key of every converted split."""

Shape = tuple[int, int, int]
_LUMINANCE = np.array([299, 587, 114], np.int64)


def conversion(name: str, shape: Shape, wanted: Shape) -> str:
    """Describe the conversion to the wanted shape, "" if none is needed; raise UserError if it is not possible."""
    steps = []
    if shape[0] != wanted[0]:
        if 1 not in (shape[0], wanted[0]) or (wanted[0] == 1 and shape[0] != 3):
            raise UserError(
                f"data set {name}: images with {shape[0]} channels cannot become images with {wanted[0]} "
                f"(possible: from 1 to any number, from 3 to 1)"
            )
        steps.append(f"grey repeated to {wanted[0]} channels" if shape[0] == 1 else "colour made grey")
    if shape[1:] != wanted[1:]:
        steps.append(f"resized to {wanted[1]}x{wanted[2]}")
    return ", ".join(steps)


def converted(images: Array, wanted: Shape) -> Array:
    """Return uint8 NCHW images in the wanted shape (channels, height, width); each depends on its own pixels only."""
    conversion("", images.shape[1:], wanted)
    if images.shape[1] == 3 and wanted[0] == 1:
        images = _grey(images)
    if images.shape[2:] != wanted[1:]:
        images = _resized(images, wanted[1], wanted[2])
    if images.shape[1] != wanted[0]:
        images = np.repeat(images, wanted[0], axis=1)
    return images


def _grey(images: Array) -> Array:
    weighted = np.tensordot(_LUMINANCE, np.asarray(images, np.int64), axes=(0, 1))
    return ((weighted + 500) // 1000).astype(np.uint8)[:, None]


def _resized(images: Array, height: int, width: int) -> Array:
    from PIL import Image

    whole = images.shape[2] % height == 0 and images.shape[3] % width == 0
    kernel = Image.Resampling.BOX if whole else Image.Resampling.BILINEAR
    result = np.empty((*images.shape[:2], height, width), np.uint8)
    for row, image in enumerate(images):
        for channel, plane in enumerate(image):
            result[row, channel] = Image.fromarray(np.ascontiguousarray(plane)).resize((width, height), kernel)
    return result
