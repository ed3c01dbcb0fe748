"""The engine `ray` and its options. Ray itself is imported when a run opens the pool."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, ClassVar

from bpcbench import Engine, Pool, RunInfo, option
from bpcbench.errors import EngineError, unknown

DEFAULT_JOBS = 200
FIELDS = {"cpus": "a number", "gpus": "a number", "memory": "GB", "resources": "a mapping such as {a100: 1}"}
"""The options that may differ by method and inference, and what they are."""


@dataclass(frozen=True)
class RayEngine(Engine):
    """A detached actor of a Ray cluster per stage. The store, the data and this environment must be seen by the nodes.

    The actor starts a worker process, forwards stops and ends with it. Actors survive the run that started them, and
    the next run takes them up.
    """

    name = "ray"
    detached: ClassVar[bool] = True

    address: str = option("auto", "address of the cluster; auto: RAY_ADDRESS, or the one on this machine", key=False)
    cpus: float | None = option(None, "CPUs of a stage; none: the suite's threads", key=False)
    gpus: float | None = option(None, "GPUs of a stage; none: what its plugin asks for", key=False)
    memory: float | None = option(None, "memory of a stage in GB, a hint; none: what its plugin asks for", key=False)
    resources: dict[str, Any] = option({}, "custom resources of a stage: {a100: 1}", key=False)
    overrides: dict[str, Any] = option({}, "by method or inference: {vbpc: {gpus: 1, memory: 32}}", key=False)
    python: str | None = option(None, "Python on the nodes; none: that of the Ray workers", key=False)

    def __post_init__(self) -> None:
        _check("", {name: getattr(self, name) for name in FIELDS})
        for name, values in self.overrides.items():
            if not isinstance(values, dict):
                raise ValueError(f"overrides.{name}: expected a mapping such as {{gpus: 1}}, got {values!r}")
            _check(f"overrides.{name}.", values)

    def open(self, run: RunInfo) -> Pool:
        """Return a pool of actors; refuse if Ray is not installed or there is no cluster."""
        if importlib.util.find_spec("ray") is None:
            raise EngineError('Ray is not installed: pip install "bpcbench[ray]"')
        from bpcbench_ray.pool import RayPool

        return RayPool(self, run, self.jobs or DEFAULT_JOBS)


def _check(where: str, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name not in FIELDS:
            raise ValueError(f"{where}{unknown('option', name, FIELDS)}")
        kind: Any = dict if name == "resources" else (int, float)
        wrong = value is not None and (not isinstance(value, kind) or isinstance(value, bool))
        if wrong or (kind is not dict and value is not None and value < 0):
            raise ValueError(f"{where}{name}: expected {FIELDS[name]}, got {value!r}")
