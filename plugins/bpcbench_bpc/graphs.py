"""How many inner steps keep their graph where the derivative of all of them is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bpcbench_torch.memory import FLOAT, Sizes, unrolled

if TYPE_CHECKING:
    from bpcbench_bpc.problem import Problem

KEPT_BYTES = 4_000_000_000
"""Memory that graphs may take if nobody says how many are kept."""


def kept_graphs(these: Sizes, steps: int, *, augmented: bool = True) -> int:
    """Return how many of the last steps keep their graph: as many as fit in `KEPT_BYTES`."""
    none, one, two = (unrolled(these, steps, graphs, augmented=augmented) for graphs in (0, 1, 2))
    if FLOAT * none >= KEPT_BYTES:
        return 0
    # Pulling back needs one graph in any case, so the first that is kept costs nothing.
    return min(steps, 1 + int((KEPT_BYTES / FLOAT - one) / max(1.0, two - one)))


def graphs_used(wanted: int | None, problem: Problem, steps: int) -> int | None:
    """Return what is `wanted`; else none where steps are replayed as CUDA graphs, or as many as fit in memory."""
    if wanted is not None or problem.sizes is None:
        return wanted
    return 0 if problem.regions.captured else kept_graphs(problem.sizes, steps)
