"""Endless shuffled batches of the real training data, resident on the device where it fits."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bpcbench.records import Array, Data, Transform

RESIDENT_BYTES = 4_000_000_000
"""Larger data, as preprocessed float32, stay a memory map of uint8 and are preprocessed batch by batch."""


class Batches:
    """Preprocessed images and int64 labels, every image once per epoch, in an order drawn from one generator.

    An epoch ends with its last full batch; data smaller than a batch are used whole.
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
        """Return the numbers of the next images."""
        if self.position + self.size > len(self.order):
            self.order = torch.randperm(len(self.order), generator=self.generator)
            self.position = 0
        rows = self.order[self.position : self.position + self.size]
        self.position += self.size
        return rows

    def next(self) -> tuple[Tensor, Tensor]:
        """Return the next batch."""
        rows = self.rows()
        there = rows.to(self.device, non_blocking=True)
        if self.resident is not None:
            return self.resident.index_select(0, there), self.labels.index_select(0, there)
        # Sorted reads are sequential on disk; the order inside a batch does not matter to any loss.
        some = np.sort(rows.numpy())
        images = torch.as_tensor(self.transform.apply(np.asarray(self.images[some])), device=self.device)
        return images, self.labels.index_select(0, torch.as_tensor(some, device=self.device))

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes."""
        return {"order": self.order, "position": self.position, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.order = state["order"]
        self.position = int(state["position"])
        self.generator.set_state(state["generator"])


def _expect_random_reads(images: Array) -> None:
    """Keep the kernel from reading ahead around every row of a memory map: megabytes, perhaps, for a few kilobytes."""
    base: Any = images
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        base.madvise(mmap.MADV_RANDOM)
