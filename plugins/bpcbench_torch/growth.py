"""Batches that grow while a method runs."""

from __future__ import annotations


def check_growth(start: int | None, end: int) -> None:
    """Raise ValueError if a batch cannot grow from `start` to `end`; None is one that does not grow."""
    if start is not None and not 1 <= start <= end:
        raise ValueError(f"batch_start must lie between 1 and batch, {end}, got {start}")


def grown(start: int | None, end: int) -> tuple[int, ...]:
    """Return the sizes of a batch that doubles from `start` to `end`, or `end` alone."""
    sizes = [end if start is None else start]
    while sizes[-1] < end:
        sizes.append(min(2 * sizes[-1], end))
    return tuple(sizes)


def size_at(step: int, steps: int, sizes: tuple[int, ...]) -> int:
    """Return the size of the batch of a step: each for equally many steps, the smallest first."""
    return sizes[step * len(sizes) // steps]
