"""Random windows of expert trajectories, with one snapshot in memory at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from bpcbench.records import Arrays, PrerequisiteOutput
from bpcbench_bpc.trajectories import Trajectories, snapshot_name
from bpcbench_torch.transfer import on_device

Window = Callable[[int], Tensor]
"""Maps a number of epochs after the window's start to flat parameters."""


class Windows:
    """Draws an expert and a start epoch in [min_start, max_start); snapshots are read from disk on demand.

    Order `uniform` draws experts with replacement; `passes` visits all of them in a new shuffled order each time.
    """

    def __init__(
        self,
        made: PrerequisiteOutput,
        *,
        max_start: int,
        min_start: int = 0,
        order: Literal["uniform", "passes"],
        seed: int,
        device: str,
    ) -> None:
        assert isinstance(made.plugin, Trajectories)
        self.members = made.members
        self.names = tuple(made.members)
        self.starts = [epoch for epoch in made.plugin.snapshots if min_start <= epoch < max_start]
        self.uniform = order == "uniform"
        self.device = device
        self.generator = torch.Generator().manual_seed(seed)
        self.queue: list[int] = []
        self.opened: dict[str, Arrays] = {}

    def draw(self) -> Window:
        """Return the next window."""
        name = self.names[self._expert()]
        start = self.starts[self._number(len(self.starts))]
        if name not in self.opened:
            self.opened[name] = self.members[name]  # the file is mapped, not read
        arrays = self.opened[name]

        def read(ahead: int) -> Tensor:
            return on_device(torch.tensor(arrays[snapshot_name(start + ahead)], dtype=torch.float32), self.device)

        return read

    def _expert(self) -> int:
        if self.uniform:
            return self._number(len(self.names))
        if not self.queue:
            self.queue = torch.randperm(len(self.names), generator=self.generator).tolist()
        return self.queue.pop()

    def _number(self, below: int) -> int:
        return int(torch.randint(below, (), generator=self.generator))

    def state_dict(self) -> dict[str, Any]:
        """Return the mutable state."""
        return {"queue": list(self.queue), "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.queue = [int(index) for index in state["queue"]]
        self.generator.set_state(state["generator"])
