"""Class-incremental learning in a suite: in how many steps the classes come, in which orders, and which come when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

Order: TypeAlias = int | Literal["natural"]
"""The seed of a permutation of the classes, or their own order."""
NATURAL: Literal["natural"] = "natural"
MOST = 2**32 - 1
"""The largest seed that NumPy's legacy generator takes."""
ORDER_SCHEMA: Mapping[str, Any] = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": MOST}, {"enum": [NATURAL]}]}


@dataclass(frozen=True)
class Tasks:
    """The classes come in `steps` equal steps, in each of the `orders` once."""

    steps: int
    orders: tuple[Order, ...] = (0,)

    def __post_init__(self) -> None:
        """Reject invalid values."""
        if type(self.steps) is not int or self.steps < 2:
            raise ValueError(f"steps must be an integer above 1, got {self.steps!r}")
        if not self.orders:
            raise ValueError("orders must name at least one")
        for order in self.orders:
            if order != NATURAL and not (type(order) is int and 0 <= order <= MOST):
                raise ValueError(f"an order is {NATURAL}, or a seed from 0 to {MOST}; got {order!r}")
        if len(set(self.orders)) < len(self.orders):
            raise ValueError(f"an order is named twice in {list(self.orders)}")


def class_order(order: Order, classes: int) -> tuple[int, ...]:
    """Return all classes in an order: their own, or the permutation of a seed.

    The permutations are those of DSA and FRePo (Zhao & Bilen, 2021; Zhou, Nezhadarya & Ba, 2022), which draw from
    NumPy's legacy generator. NumPy promises that its stream never changes.
    """
    if order == NATURAL:
        return tuple(range(classes))
    return tuple(int(label) for label in np.random.RandomState(order).permutation(classes))


def task_classes(order: Order, classes: int, steps: int) -> tuple[tuple[int, ...], ...]:
    """Return the classes of every step, sorted within a step; raise ValueError if `steps` does not divide them."""
    if classes % steps:
        allowed = ", ".join(str(number) for number in range(2, classes + 1) if classes % number == 0)
        raise ValueError(f"{classes} classes cannot come in {steps} equal steps (allowed: {allowed})")
    each, ordered = classes // steps, class_order(order, classes)
    return tuple(tuple(sorted(ordered[each * step : each * (step + 1)])) for step in range(steps))
