"""Random real images: the baseline that every method must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bpcbench.api import Context
from bpcbench.records import Coreset, Data, Facts, Inputs
from bpcbench.sampling import per_class
from bpcbench_baselines.selection import Baseline, real_images, rows_by_class


@dataclass(frozen=True)
class RandomChoice(Baseline):
    """`ipc` real images of every class, drawn uniformly without replacement.

    Methods that are initialised with real images start from these under the same seed. The coreset of a larger ipc
    contains that of a smaller one.
    """

    name: ClassVar[str] = "random"

    def operations(self, facts: Facts, ipc: int) -> float:
        """Return 0: images are only copied."""
        return 0.0

    def distil(self, data: Data, ipc: int, inputs: Inputs, ctx: Context) -> Coreset:
        """Return the drawn images, ordered by class."""
        rows_by_class(data, ipc)
        return real_images(data, per_class(data.labels, ipc, ctx.seed), inputs)
