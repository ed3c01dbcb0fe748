"""What a stage asks of Slurm: the options of sbatch, and the batch script."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bpcbench import Task

if TYPE_CHECKING:
    from bpcbench_slurm.engine import Slurm

FIELDS: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "partition": (str, "a name"),
    "account": (str, "a name"),
    "time": (str, "a duration such as 4h or '1-12:00:00' (in quotes)"),
    "memory": (str, "an amount such as 16G"),
    "cpus": (int, "a number"),
    "gpus": (int, "a number"),
    "sbatch": (dict, "a mapping such as {qos: long}"),
}
"""The options that may differ by method and inference, with their types."""
RESERVED = frozenset(
    {"job-name", "array", "wrap", "parsable", "wait", "test-only", "dependency", "output", "open-mode"}
)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def slurm_time(text: str) -> str:
    """Return a time limit as Slurm writes it; ValueError if it is none."""
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text):
        minutes = max(1, math.ceil(float(found[1]) * _UNITS[found[2]] / 60))
        return f"{minutes // 1440}-{minutes // 60 % 24:02d}:{minutes % 60:02d}:00"
    if not re.fullmatch(r"\d+-\d+(:\d+){0,2}|\d+:\d+(:\d+)?", text):
        raise ValueError(f"expected {FIELDS['time'][1]}, got {text!r}")
    return text


def job_name(task: Task) -> str:
    """Return the name of all jobs for a stage of a store: two of them never run at the same time."""
    place = hashlib.sha256(f"{task.store.resolve()} {task.id}".encode()).hexdigest()
    return f"bpc-{task.kind}-{task.key[:12]}-{place[:8]}"


def options(engine: Slurm, task: Task, grace: float) -> dict[str, Any]:
    """Return the options of sbatch for a task; True stands for a flag, None and False for nothing."""
    chosen = {name: getattr(engine, name) for name in FIELDS}
    own = dict(engine.overrides.get(task.plugin, {}))
    free = {**engine.sbatch, **(own.pop("sbatch", None) or {})}
    chosen.update(own)
    gpus = gpu_count(engine, task)
    memory = task.resources.memory
    wanted: dict[str, Any] = {
        "job-name": job_name(task),
        "dependency": "singleton",
        "comment": f"{task.kind} {task.label}",
        "output": str(task.log),
        "open-mode": "append",
        "requeue": True,
        # To the worker, which takes the place of the script: it writes a checkpoint before the time is up.
        "signal": f"B:TERM@{max(1, round(grace))}",
        "nodes": 1,
        "ntasks": 1,
        "cpus-per-task": chosen["cpus"] or task.threads,
        "gres": f"gpu:{gpus}" if gpus else None,
        "mem": chosen["memory"] or (None if memory is None else f"{math.ceil(memory * 1024)}M"),
        "partition": chosen["partition"],
        "account": chosen["account"],
        "time": None if chosen["time"] is None else slurm_time(chosen["time"]),
    }
    return {**wanted, **{name.replace("_", "-"): value for name, value in free.items()}}


def gpu_count(engine: Slurm, task: Task) -> int:
    """Return the GPUs that a job for the task asks for: whole ones, and none if the suite computes on the CPU."""
    asked = dict(engine.overrides.get(task.plugin, {})).get("gpus", engine.gpus)
    if asked is not None:
        return int(asked)
    return math.ceil(task.resources.gpus) if task.device.startswith(("auto", "cuda")) else 0


def words(chosen: Mapping[str, Any]) -> list[str]:
    """Return options as words of a command line."""
    given = {name: value for name, value in chosen.items() if value is not None and value is not False}
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in given.items()]


def script(engine: Slurm, task: Task, file: Path) -> str:
    """Return the batch script. The worker takes the shell's place, so that Slurm's signals reach it."""
    python = engine.python or sys.executable
    failed = {
        "attempt": task.attempt,
        "status": "failed",
        "message": f"{python} cannot be started on the node",
        "messages": [],
    }
    lines = [
        "#!/bin/bash",
        *(line for line in engine.setup.splitlines()),
        "shopt -s execfail",
        f"exec {shlex.quote(python)} -m bpcbench.running.worker {shlex.quote(str(file))}",
        f"mkdir -p {shlex.quote(str(task.outcome_file.parent))}",
        f"printf %s {shlex.quote(json.dumps(failed))} > {shlex.quote(str(task.outcome_file))}",
        "exit 1",
    ]
    return "\n".join(lines) + "\n"


def environment() -> dict[str, str]:
    """Return the environment for sbatch: without what a job around this process would pass on to another."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "SLURMD_")) or name in ("SLURM_CONF", "SLURM_CLUSTERS")
    }
