"""Preprocessing on the device: the fitted transforms of this package as functions of uint8 tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bpcbench.records import Transform
from bpcbench_torch.preprocessing import Constants, Standardize
from bpcbench_torch.zca import ZCA

DeviceTransform = Callable[[Tensor], Tensor]
"""Maps uint8 images (n, c, h, w) to float32 images in network space, on their device."""


def is_known(transform: Transform) -> bool:
    """Return whether there is such a function; of other preprocessings only NumPy code is known."""
    # Subclasses may override `apply`.
    return type(transform.plugin) in (Standardize, Constants, ZCA)


def as_function(transform: Transform, device: str) -> DeviceTransform | None:
    """Return the transform as a function on a device, or None for preprocessings of which only NumPy code is known.

    Standardisation is a table of 256 numbers per channel, the same bits as `Standardize.apply`; whitening is one more
    matrix product, equal to that of NumPy up to rounding.
    """
    if not is_known(transform):
        return None
    arrays = transform.arrays
    levels = np.arange(256) / 255
    values = ((levels - arrays["mean"][:, None]) / arrays["std"][:, None]).astype(np.float32)
    table = torch.tensor(values, device=device)

    def standardised(pixels: Tensor) -> Tensor:
        channels = [row[pixels[:, index].int()] for index, row in enumerate(table)]
        return torch.stack(channels, 1)

    if "whiten" not in arrays:
        return standardised
    centre, whiten = (torch.tensor(np.asarray(arrays[name]), device=device) for name in ("centre", "whiten"))

    def whitened(pixels: Tensor) -> Tensor:
        count, channels, rows, columns = pixels.shape
        side = round((len(whiten) / channels) ** 0.5)
        down, across = (1, 1) if len(whiten) == centre.numel() else (rows // side, columns // side)
        flat = standardised(pixels).flatten(1) - centre
        parts = flat.view(count, channels, rows // down, down, columns // across, across)
        blocks = parts.permute(0, 3, 5, 1, 2, 4).reshape(count * down * across, -1) @ whiten
        whole = blocks.view(count, down, across, channels, rows // down, columns // across)
        return whole.permute(0, 3, 4, 1, 5, 2).reshape(pixels.shape)

    return whitened
