"""Move small tensors to a device without waiting for what it is computing."""

from __future__ import annotations

import torch
from torch import Tensor


def on_device(values: Tensor, device: str | torch.device) -> Tensor:
    """Return a tensor of the CPU on the device; the host does not wait for the device's queue.

    A GPU copies asynchronously only from page-locked memory, which torch reuses once the copy is done.
    """
    if torch.device(device).type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
