"""How many draws of the parameters are computed together."""

from __future__ import annotations

from collections.abc import Callable

from bpcbench_torch.memory import FLOAT

GPU_BYTES = 1_000_000_000
"""Memory that draws computed together may take on a GPU if nobody says how many."""


def together(wanted: int | None, *, chunk: int, draws: int, gpu: bool, numbers: Callable[[int], float] | None) -> int:
    """Return how many draws are computed at a time, a multiple of `chunk` unless there are fewer draws.

    It is what is `wanted`, or `chunk`, or on a GPU as many as fit in `GPU_BYTES`; `numbers(count)` is how many numbers
    so many draws hold, growing linearly from two on, if that is known. Random numbers are those of chunks in any case,
    so that sums of more draws at a time differ by rounding alone.
    """
    if wanted is None and gpu and numbers is not None:
        each = numbers(3) - numbers(2)
        wanted = max(1, 2 + int((GPU_BYTES / FLOAT - numbers(2)) // each))
    wanted = min(wanted or chunk, draws)
    return max(chunk, wanted - wanted % chunk)


def chunks(first: int, count: int, chunk: int, draws: int) -> list[int]:
    """Return the sizes of the chunks of `count` draws from `first` on, of which there are `draws`."""
    end = min(first + count, draws)
    return [min(chunk, end - start) for start in range(first, end, chunk)]
