"""The engine `slurm` and its options."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import Any, ClassVar

from bpcbench import Engine, Pool, RunInfo, option
from bpcbench.errors import EngineError, unknown
from bpcbench_slurm.request import FIELDS, RESERVED, slurm_time

DEFAULT_JOBS = 200


@dataclass(frozen=True)
class Slurm(Engine):
    """A job of a Slurm cluster per stage. The store, the data and this environment must be seen by the nodes.

    Jobs survive the run that submitted them, and the next run takes them up. They are requeued when they are preempted
    and go on from their checkpoint; a job that reaches its time limit is submitted again as long as it gets further.
    """

    name = "slurm"
    detached: ClassVar[bool] = True

    partition: str | None = option(None, "partition; none: the cluster's default", key=False)
    account: str | None = option(None, "account that pays; none: yours", key=False)
    time: str | None = option(None, "limit of a job: 4h, 30m, '1-12:00:00'; none: the partition's", key=False)
    memory: str | None = option(None, "memory of a job, such as 16G; none: what its plugin asks for", key=False)
    cpus: int | None = option(None, "CPUs of a job; none: the suite's threads", key=False)
    gpus: int | None = option(None, "GPUs of a job; none: what its plugin asks for", key=False)
    sbatch: dict[str, Any] = option({}, "more options of sbatch: {qos: long, constraint: a100}", key=False)
    overrides: dict[str, Any] = option({}, "by method or inference: {vbpc: {time: 24h, memory: 64G}}", key=False)
    setup: str = option("", "shell lines before the worker starts, such as `module load cuda`", key=False)
    python: str | None = option(None, "Python on the nodes; none: the one that runs this", key=False)
    poll: float = option(10.0, "longest time between two looks at the queue, in seconds", key=False)

    def __post_init__(self) -> None:
        _check("", {name: getattr(self, name) for name in FIELDS})
        for name, values in self.overrides.items():
            if not isinstance(values, dict):
                raise ValueError(f"overrides.{name}: expected a mapping such as {{time: 24h}}, got {values!r}")
            _check(f"overrides.{name}.", values)

    def open(self, run: RunInfo) -> Pool:
        """Return a pool that submits jobs; refuse a machine without Slurm."""
        from bpcbench_slurm.controller import Controller
        from bpcbench_slurm.pool import SlurmPool

        if missing := [name for name in ("sbatch", "squeue", "scancel") if shutil.which(name) is None]:
            raise EngineError(f"{', '.join(missing)} not found: run this on a machine that submits to Slurm")
        return SlurmPool(self, run, Controller(), self.jobs or DEFAULT_JOBS)


def _check(where: str, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name not in FIELDS:
            raise ValueError(f"{where}{unknown('option', name, FIELDS)}")
        kind, words = FIELDS[name]
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise ValueError(f"{where}{name}: expected {words}, got {value!r}")
    if values.get("time") is not None:
        try:
            slurm_time(values["time"])
        except ValueError as error:
            raise ValueError(f"{where}time: {error}") from None
    for name in ("cpus", "gpus"):
        if values.get(name) is not None and values[name] < (1 if name == "cpus" else 0):
            raise ValueError(f"{where}{name}: expected at least {1 if name == 'cpus' else 0}, got {values[name]}")
    for name in values.get("sbatch") or {}:
        if not re.fullmatch(r"[a-z][a-z0-9_-]+", name):
            raise ValueError(f"{where}sbatch.{name}: expected the long name of an option of sbatch, without dashes")
        if name.replace("_", "-") in RESERVED:
            raise ValueError(f"{where}sbatch.{name}: bpcbench sets it itself")
