"""The panels of a paper's figures of learned images: every coreset before and after, from manifest and store alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from bpcbench.figures import image_grid
from bpcbench.records import FINAL, snapshot_member
from bpcbench.reporting.view import View
from bpcbench.store.address import Address
from bpcbench.store.previews import read_preview

IMAGES = 100
"""So many images are in a panel at most: the first of every class."""
_MOMENTS = {"before": snapshot_member(0), "after": FINAL}
_PLAIN = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Panel:
    """One picture, of a coreset before or after it was learned."""

    dataset: str
    ipc: int
    method: str
    part: int
    moment: str
    png: bytes

    @property
    def file(self) -> str:
        """The name of its file."""
        part = f"-part{self.part}" if self.part else ""
        return _PLAIN.sub("_", f"{self.dataset}-ipc{self.ipc}-{self.method}{part}-{self.moment}") + ".png"


def panels(view: View, seed: int = 0) -> Iterator[Panel]:
    """Yield the panels of every method, data set and number of images per class for one distillation seed.

    Images are in pixel space, a row per class where there are several of each. What the store does not have is left
    out; a method that keeps no snapshots has no start.
    """
    seen: set[tuple[str, int, str]] = set()
    for cell in view.manifest.cells:
        group = cell.group
        name = (group.dataset, group.ipc, group.method)
        if cell.distil_seed != seed or cell.step is not None or not cell.coresets or name in seen:
            continue
        seen.add(name)
        for number, address in enumerate(cell.coresets, 1):
            part = number if len(cell.coresets) > 1 else 0
            for moment, member in _MOMENTS.items():
                if png := _grid(view, Address(address.kind, address.key, member)):
                    yield Panel(*name, part, moment, png)


def _grid(view: View, address: Address) -> bytes | None:
    shown = read_preview(view.store, address)
    return image_grid(*shown, IMAGES) if shown else None
