"""The hooks of bpcbench_slurm."""

from __future__ import annotations

from bpcbench import Engine, hookimpl
from bpcbench_slurm.engine import Slurm

BPCBENCH_API = 1


@hookimpl
def bpcbench_engines() -> list[type[Engine]]:
    """Return the engine."""
    return [Slurm]
