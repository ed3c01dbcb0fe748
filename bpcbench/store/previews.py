"""What coresets look like: the pixels that lie beside them, for views that have no plugins at hand."""

from __future__ import annotations

import numpy as np

from bpcbench.errors import StoreError
from bpcbench.records import Array
from bpcbench.store.address import Address
from bpcbench.store.store import Store


def read_preview(store: Store, address: Address) -> tuple[Array, Array] | None:
    """Return the pixels (n, channels, height, width) in uint8 and the classes (n,) of a coreset; None without them.

    Whatever else lies in their place is noted in the store's messages.
    """
    if not store.has(address):
        return None
    try:
        arrays = store.read(address).arrays
        if "preview" not in arrays:
            return None
        pixels, classes = np.asarray(arrays["preview"]), np.asarray(arrays["preview_classes"])
    except (StoreError, KeyError, TypeError, ValueError) as error:
        store.note(f"{address}: its pictures cannot be read: {str(error)[:200]}")
        return None
    if pixels.ndim == 4 and pixels.shape[1] not in (1, 3):
        return None  # no picture can show them
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or not pixels.size:
        store.note(f"{address}: its pictures cannot be read: they are {pixels.dtype} of shape {pixels.shape}")
        return None
    if classes.shape != pixels.shape[:1] or classes.dtype.kind not in "iu":
        store.note(f"{address}: its pictures cannot be read: their classes are {classes.dtype} of {classes.shape}")
        return None
    return pixels, classes
