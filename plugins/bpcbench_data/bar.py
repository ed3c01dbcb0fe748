"""A progress bar on stderr: shown at once on a terminal, elsewhere only after two seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 2.0
"""Seconds before a bar appears when stderr is not a terminal."""


@contextmanager
def bar(total: int, what: str, unit: str) -> Iterator[Callable[[int], object]]:
    """Yield a function that advances the bar by a number of units."""
    from tqdm import tqdm

    terminal = sys.stderr.isatty()
    delay = 0.0 if terminal else PATIENCE
    with tqdm(
        total=total,
        desc=what,
        unit=unit,
        unit_scale=True,
        leave=not terminal,
        delay=delay,
        mininterval=delay or 0.1,
        file=sys.stderr,
    ) as progress:
        yield progress.update
