"""An endless stream of shuffled batches of the training data, kept on the device if it fits."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bpcbench.records import Array, Data, Transform

RESIDENT_BYTES = 4_000_000_000
"""Data that would be larger as float32 stay a uint8 memory map and are preprocessed batch by batch."""


class Batches:
    """Batches of preprocessed images and int64 labels in an order drawn from one generator, at most once per epoch.

    An epoch ends with its last full batch. Data smaller than a batch are used whole.
    """

    def __init__(
        self,
        data: Data,
        transform: Transform,
        *,
        size: int,
        seed: int,
        device: str,
        resident_bytes: int = RESIDENT_BYTES,
    ) -> None:
        self.transform, self.device = transform, device
        self.images = data.train.images
        self.size = min(size, len(self.images))
        self.labels = torch.as_tensor(np.asarray(data.labels), dtype=torch.int64, device=device)
        self.generator = torch.Generator().manual_seed(seed)
        self.order = torch.randperm(len(self.images), generator=self.generator)
        self.position = 0
        self.resident: Tensor | None = None
        if 4 * self.images.size <= resident_bytes:
            self.resident = torch.as_tensor(transform.apply(self.images), device=device)
        else:
            _expect_random_reads(self.images)

    def rows(self) -> Tensor:
        """Return the rows of the next batch."""
        if self.position + self.size > len(self.order):
            self.order = torch.randperm(len(self.order), generator=self.generator)
            self.position = 0
        rows = self.order[self.position : self.position + self.size]
        self.position += self.size
        return rows

    def next(self) -> tuple[Tensor, Tensor]:
        """Return the next batch."""
        rows = self.rows()
        on_device = rows.to(self.device, non_blocking=True)
        if self.resident is not None:
            return self.resident.index_select(0, on_device), self.labels.index_select(0, on_device)
        # Sorted reads are sequential on disk, and no loss depends on the order within a batch.
        ordered = np.sort(rows.numpy())
        images = torch.as_tensor(self.transform.apply(np.asarray(self.images[ordered])), device=self.device)
        return images, self.labels.index_select(0, torch.as_tensor(ordered, device=self.device))

    def state_dict(self) -> dict[str, Any]:
        """Return the mutable state."""
        return {"order": self.order, "position": self.position, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.order = state["order"]
        self.position = int(state["position"])
        self.generator.set_state(state["generator"])


def _expect_random_reads(images: Array) -> None:
    """Turn off read-ahead for a memory map: it can read megabytes for a row of a few kilobytes."""
    base: Any = images
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        base.madvise(mmap.MADV_RANDOM)
