"""Checkpoints of a stage's loops: one folder each, written atomically, from which the next attempt resumes.

Every attempt at a stage has a private folder, so that concurrent attempts (where locks do not work) never mix. A
new attempt searches all of them for the furthest complete checkpoint.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bpcbench.running.state import Packed
from bpcbench.store import folder

META = "checkpoint.json"
EVENTS = "events.jsonl"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a stage: its finished loops, the current loop after `step` steps, and the time spent so far."""

    path: Path
    loop: int
    step: int
    total: int
    elapsed: float
    cpu: float
    events: int
    state: Packed


def save(
    attempt: Path, *, loop: int, step: int, total: int, elapsed: float, cpu: float, events: int, state: Packed
) -> None:
    """Write a checkpoint into an attempt's folder and remove all earlier ones, also of other attempts."""
    temporary = folder.temporary(attempt)
    meta = {
        "loop": loop,
        "step": step,
        "total": total,
        "elapsed": elapsed,
        "cpu": cpu,
        "events": events,
        "skeleton": state.skeleton,
    }
    try:
        folder.write(temporary, META, meta, state.arrays, {})
        target = attempt / f"checkpoint-{loop:06d}-{step:012d}"
        shutil.rmtree(target, ignore_errors=True)
        folder.publish(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for old in attempt.parent.glob("*/checkpoint-*"):
        if old.name < target.name:
            shutil.rmtree(old, ignore_errors=True)


def fresh_folder(scratch: Path, attempt: str) -> Path:
    """Create and return the folder of an attempt: ATTEMPT, or ATTEMPT.1, .2, ... if it was started before.

    A cluster may start an attempt again while the first process lives on, and the two must not mix.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    path, again = scratch / attempt, 0
    while True:
        try:
            path.mkdir()
        except FileExistsError:
            again += 1
            path = scratch / f"{attempt}.{again}"
        else:
            return path


def furthest(scratch: Path) -> str:
    """Return what grows as the checkpoints of a stage do: empty if there is none."""
    return max((path.name for path in scratch.glob("*/checkpoint-*")), default="")


def newest(scratch: Path) -> Checkpoint | None:
    """Return the furthest complete checkpoint of all attempts; damaged ones are skipped."""
    paths = sorted(scratch.glob("*/checkpoint-*"), key=lambda path: path.name, reverse=True)
    for path in paths:
        loaded = _load(path)
        if loaded is not None:
            return loaded
    return None


def _load(path: Path) -> Checkpoint | None:
    try:
        meta: dict[str, Any] = folder.read_meta(path, META)
    except ValueError:
        return None
    if folder.verify(path, meta) is not None:
        return None
    try:
        arrays = dict(folder.LazyArrays(path / folder.ARRAYS))
    except OSError:
        # Removed meanwhile by a concurrent attempt, where locks do not work.
        return None
    return Checkpoint(
        path=path,
        loop=meta["loop"],
        step=meta["step"],
        total=meta["total"],
        elapsed=meta["elapsed"],
        cpu=meta["cpu"],
        events=meta["events"],
        state=Packed(arrays, meta["skeleton"]),
    )
