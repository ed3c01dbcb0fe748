"""An endless stream of shuffled batches of the training data, kept on the device if it fits."""

from __future__ import annotations

import mmap
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from bpcbench.records import Array, Data, Transform
from bpcbench_torch.device_transform import DeviceTransform, as_function, is_known
from bpcbench_torch.memory import RESIDENT_BYTES
from bpcbench_torch.transfer import on_device

Place = Literal["whole", "bytes", "stream", "mapped"]
"""Where images are: preprocessed on the device (`whole`), as uint8 on the device (`bytes`), read ahead from a memory
map into pinned memory (`stream`), or read and preprocessed on the host when they are asked for (`mapped`), the best
where the host is the device.
"""
_SHARE = 0.5
"""The share of a device's memory that uint8 images may take where nothing says what a step needs."""
_RESERVE = 1.2
"""What a step may need relative to its prediction."""


class TrainingImages:
    """Preprocessed training images by row, wherever they are.

    `rows` are the rows that belong to it (None: all); it never reads more of a memory map than is asked for. Numbers
    do not depend on the place up to rounding, those of `bytes` and `stream` not at all.

    `needed` are the bytes that the whole computation is predicted to need on the device without the images as bytes:
    these are kept there only if that much, and a fifth of it, is left for the computation.
    """

    def __init__(
        self,
        images: Array,
        transform: Transform,
        *,
        device: str,
        rows: Array | None = None,
        resident_bytes: int = RESIDENT_BYTES,
        place: Place | None = None,
        needed: float | None = None,
    ) -> None:
        self.images, self.transform, self.device, self.chosen = images, transform, device, rows
        self.count = len(images) if rows is None else len(rows)
        numbers = self.count * int(np.prod(images.shape[1:]))
        self.place: Place = place or self._place(numbers, resident_bytes, needed)
        self._convert: DeviceTransform | None = None
        if self.place in ("bytes", "stream"):
            # Only here: the matrix that whitens would lie on the device for nothing.
            self._convert = as_function(transform, device)
            if self._convert is None:
                raise ValueError(f"{transform.plugin.name} is not known to run on a device")
        self.resident: Tensor | None = None
        self._reader = ThreadPoolExecutor(1) if self.place == "stream" else None
        self._ahead: tuple[Tensor, Future[Tensor]] | None = None
        if self.place == "whole":
            self.resident = torch.as_tensor(transform.apply(images if rows is None else images[rows]), device=device)
        elif self.place == "bytes":
            self.resident = self._bytes_on_device()
        else:
            _expect_random_reads(images)

    @property
    def ordered(self) -> bool:
        """Whether rows are best asked for in ascending order: reads are then sequential on disk."""
        return self.place != "whole"

    def take(self, rows: Tensor, following: Tensor | None = None) -> Tensor:
        """Return the images of rows (on the CPU, counted among its own), float32 on the device.

        `following` are the rows that will be asked for next, if they are known: they are read in the meantime.
        """
        if self.resident is not None:
            found = self.resident.index_select(0, on_device(rows, self.device))
            return found if self.place == "whole" else self._converted(found)
        if self._reader is None:
            return torch.as_tensor(self.transform.apply(self._read(rows)), device=self.device)
        ready = self._ahead
        hit = ready is not None and torch.equal(ready[0], rows)
        read = ready[1].result() if ready is not None and hit else self._pinned(rows)
        self._ahead = None if following is None else (following, self._reader.submit(self._pinned, following))
        return self._converted(read.to(self.device, non_blocking=True))

    def _place(self, numbers: int, resident_bytes: int, needed: float | None) -> Place:
        size = 4 * numbers if 4 * numbers <= resident_bytes else 0
        if torch.device(self.device).type == "cpu" or not is_known(self.transform):
            return "whole" if size else "mapped"
        free, held = _memory(self.device)
        # A prediction counts small data as preprocessed, and what the computation holds already is part of it.
        others = None if needed is None else _RESERVE * (needed - size)
        room = _SHARE * free if others is None else free + held - others
        if size and (size <= room or not free):  # small, and it fits, or torch cannot tell
            return "whole"
        return "bytes" if numbers <= room else "stream"

    def _converted(self, pixels: Tensor) -> Tensor:
        assert self._convert is not None
        return self._convert(pixels)

    def _read(self, rows: Tensor) -> Array:
        found = rows.numpy() if self.chosen is None else self.chosen[rows.numpy()]
        return np.asarray(self.images[found])

    def _pinned(self, rows: Tensor) -> Tensor:
        read = torch.from_numpy(self._read(rows))
        return read.pin_memory() if torch.device(self.device).type == "cuda" else read

    def _bytes_on_device(self) -> Tensor:
        """Copy the bytes part by part, so that the host never holds all of them."""
        kept = torch.empty((self.count, *self.images.shape[1:]), dtype=torch.uint8, device=self.device)
        for part in torch.arange(self.count).split(4096):
            kept[part[0] : part[-1] + 1] = torch.from_numpy(self._read(part)).to(self.device)
        return kept


class Batches:
    """Batches of preprocessed images and int64 labels in an order drawn from one generator, at most once per epoch.

    An epoch ends with its last full batch. Data smaller than a batch are used whole. `resize` changes the size of the
    batches that follow, which no state holds. With `rows`, the data are those
    rows of the training data only.
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
        rows: Array | None = None,
        place: Place | None = None,
        needed: float | None = None,
    ) -> None:
        self.source = TrainingImages(
            data.train.images,
            transform,
            device=device,
            rows=rows,
            resident_bytes=resident_bytes,
            place=place,
            needed=needed,
        )
        self.device = device
        self.size = min(size, self.source.count)
        labels = np.asarray(data.labels) if rows is None else np.asarray(data.labels)[rows]
        self.labels = torch.as_tensor(labels, dtype=torch.int64, device=device)
        self.generator = torch.Generator().manual_seed(seed)
        self.order = torch.randperm(self.source.count, generator=self.generator)
        self.position = 0

    @property
    def resident(self) -> Tensor | None:
        """The images on the device, preprocessed or as bytes; None if they are read as needed."""
        return self.source.resident

    def resize(self, size: int) -> None:
        """Set the size of the following batches."""
        self.size = min(size, self.source.count)

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
        rows, following = self.rows(), None
        if self.source.ordered:
            # No loss depends on the order within a batch.
            rows = rows.sort().values
            if self.position + self.size <= len(self.order):
                following = self.order[self.position : self.position + self.size].sort().values
        images = self.source.take(rows, following)
        return images, self.labels.index_select(0, on_device(rows, self.device))

    def state_dict(self) -> dict[str, Any]:
        """Return the mutable state."""
        return {"order": self.order, "position": self.position, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.order = state["order"]
        self.position = int(state["position"])
        self.generator.set_state(state["generator"])


def _memory(device: str) -> tuple[float, float]:
    """Return the bytes of an accelerator that are free, and those of this process's tensors.

    What torch's allocator keeps in reserve is free. Both are 0 where torch cannot tell.
    """
    if torch.device(device).type != "cuda" or not torch.cuda.is_available():
        return 0.0, 0.0
    free, _ = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_allocated(device)
    return float(free + torch.cuda.memory_reserved(device) - held), float(held)


def _expect_random_reads(images: Array) -> None:
    """Turn off read-ahead for a memory map: it can read megabytes for a row of a few kilobytes."""
    base: Any = images
    while not isinstance(base, mmap.mmap) and base is not None:
        base = getattr(base, "base", None)
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        base.madvise(mmap.MADV_RANDOM)
