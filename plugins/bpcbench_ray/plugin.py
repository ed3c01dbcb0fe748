"""The hooks of bpcbench_ray."""

from __future__ import annotations

from bpcbench import Engine, hookimpl
from bpcbench_ray.engine import RayEngine

BPCBENCH_API = 1


@hookimpl
def bpcbench_engines() -> list[type[Engine]]:
    """Return the engine."""
    return [RayEngine]
