"""Learning rates that are searched for at the start, and adapted by how inner losses fall."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_GROWTH, _BACK = 1.2, 0.7
_INTERVAL = 50
_FAILED, _MONOTONE = 0.29, 0.7
_SHRINK, _GROW = 0.9, 1.05
_TRIALS = 100
"""A bound on the search, far beyond any rate that helps."""


def course(losses: Tensor) -> Tensor:
    """Return 1 if losses fall at every step, -1 if the last is above the first or not finite, else 0."""
    monotone = (losses[1:] < losses[:-1]).all()
    failed = (losses[-1] > losses[0]) | ~losses.isfinite().all()
    return monotone.int() - (failed & ~monotone).int()


def searched(start: float, losses: Callable[[float], Tensor]) -> float:
    """Return a rate at which the losses just about fall at every step.

    The rate grows by 1.2 as long as they do, and once more when they do not; 0.7 of that is 0.84 times the first rate
    that failed.
    """
    rate = start
    for _ in range(_TRIALS):
        falls = int(course(losses(rate))) == 1
        rate *= _GROWTH
        if not falls:
            break
    return rate * _BACK


class Rate:
    """A learning rate that adapts every 50 steps.

    It is multiplied by 0.9 if at least 29 % of the runs failed, else by 1.05 if at least 70 % were monotone. The device
    is waited for at those steps only. The first period has 51 steps, as in RCIG's code.
    """

    def __init__(self, value: float, device: str) -> None:
        self.value, self.device = value, device
        self.courses: list[Tensor] = []

    def observe(self, step: int, losses: Tensor) -> None:
        """Take in the losses of a step's run."""
        self.courses.append(course(losses))
        if step == 0 or step % _INTERVAL:
            return
        seen = torch.stack(self.courses)
        failed, monotone = ((seen == kind).double().mean().item() for kind in (-1, 1))
        if failed >= _FAILED:
            self.value *= _SHRINK
        elif monotone >= _MONOTONE:
            self.value *= _GROW
        self.courses = []

    def state_dict(self) -> dict[str, Any]:
        """Return the mutable state."""
        return {"value": self.value, "courses": [int(course) for course in self.courses]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.value = float(state["value"])
        self.courses = [torch.tensor(course, dtype=torch.int32, device=self.device) for course in state["courses"]]
