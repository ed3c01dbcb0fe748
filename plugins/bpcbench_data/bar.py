"""A progress bar for what takes seconds: at once on a terminal, in a log only after two seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 2.0
"""Seconds for which nothing is said where nobody watches."""


@contextmanager
def bar(total: int, what: str, unit: str) -> Iterator[Callable[[int], object]]:
    """Yield a function that is told of every step done; the bar goes to stderr."""
    from tqdm import tqdm

    terminal = sys.stderr.isatty()
    wait = 0.0 if terminal else PATIENCE
    with tqdm(
        total=total,
        desc=what,
        unit=unit,
        unit_scale=True,
        leave=not terminal,
        delay=wait,
        mininterval=wait or 0.1,
        file=sys.stderr,
    ) as shown:
        yield shown.update
