"""The pictures of a cell, drawn from what the store holds: its coreset as a grid, and its evaluators' figures."""

from __future__ import annotations

import functools

import numpy as np

from bpcbench.figures import draw, figure_from_json, image_grid
from bpcbench.store.address import Address
from bpcbench.store.manifest import CellRecord
from bpcbench.store.store import Store


class Pictures:
    """Draws each coreset once, however many cells evaluate it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._grid = functools.lru_cache(maxsize=64)(self._draw)

    def of(self, cell: CellRecord) -> dict[str, bytes]:
        """Return the pictures of a cell by file name."""
        files = {}
        for number, address in enumerate(cell.coresets):
            if grid := self._grid(address):
                files["coreset.png" if len(cell.coresets) == 1 else f"coreset-{number}.png"] = grid
        for label, address in cell.scores.items():
            prefix = "" if len(cell.scores) == 1 else f"{label}/"
            for name, figure in self.store.meta(address).get("figures", {}).items():
                files[f"{prefix}{name}.svg"] = draw(figure_from_json(figure)).encode()
        return files

    def _draw(self, address: Address) -> bytes | None:
        if not self.store.has(address):
            return None
        arrays = self.store.read(address).arrays
        if "preview" not in arrays:
            return None
        return image_grid(np.asarray(arrays["preview"]), np.asarray(arrays["preview_classes"]))
