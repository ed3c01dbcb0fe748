"""An exponential moving average of tensors that change from step to step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class MovingAverage:
    """The average of all values so far with weights decay^age, corrected for its start at zero.

    Before the first update it is the tensors themselves.
    """

    def __init__(self, tensors: Mapping[str, Tensor], decay: float) -> None:
        self.tensors, self.decay, self.count = dict(tensors), decay, 0
        self.sums = {name: torch.zeros_like(tensor, requires_grad=False) for name, tensor in self.tensors.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the present values."""
        self.count += 1
        for name, tensor in self.tensors.items():
            self.sums[name].lerp_(tensor, 1 - self.decay)

    @torch.no_grad()
    def value(self, name: str) -> Tensor:
        """Return the average of one tensor."""
        if not self.count:
            return self.tensors[name].detach().clone()
        return self.sums[name] / (1 - self.decay**self.count)

    def state_dict(self) -> dict[str, Any]:
        """Return the mutable state."""
        return {"sums": dict(self.sums), "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.count = int(state["count"])
        for name, value in state["sums"].items():
            self.sums[name].copy_(value)
