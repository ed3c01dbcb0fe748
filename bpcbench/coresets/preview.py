"""What a coreset looks like: uint8 pixels and class numbers that can be drawn without its preprocessing."""

from __future__ import annotations

import numpy as np

from bpcbench.records import Array, Coreset, Transform

PREVIEW = "preview"
PREVIEW_CLASSES = "preview_classes"
PREVIEW_IMAGES = 100
"""A preview shows at most so many images, the first of every class."""


def preview(coreset: Coreset, transform: Transform) -> dict[str, Array]:
    """Return the arrays from which a coreset can be drawn without its preprocessing: uint8 pixels and class numbers."""
    rows = np.arange(len(coreset))
    if len(rows) > PREVIEW_IMAGES:
        classes = np.unique(coreset.class_ids)[:PREVIEW_IMAGES]
        each = PREVIEW_IMAGES // len(classes)
        rows = np.concatenate([np.flatnonzero(coreset.class_ids == c)[:each] for c in classes])
    shown = to_bytes(transform.invert(np.asarray(coreset.images)[rows]))
    return {PREVIEW: shown, PREVIEW_CLASSES: np.asarray(coreset.class_ids)[rows].astype(np.int64)}


def to_bytes(pixels: Array) -> Array:
    """Return pixels in [0, 1] as uint8; values outside are clipped, NaN is black."""
    return np.rint(np.clip(np.nan_to_num(pixels), 0.0, 1.0) * 255.0).astype(np.uint8)
