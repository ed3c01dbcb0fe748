"""Checkpoints of a stage's loops: one folder each, complete or absent, adopted by whoever tries next.

Every attempt at a stage has a private folder, so that two attempts (where locks do not work) never mix; a new attempt
looks through all of them for the furthest complete checkpoint.
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
    """Where a stage stood: the finished loops, the current one after `step` steps, and what it had cost."""

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
    """Write a checkpoint into an attempt's folder and remove those it goes beyond, of earlier attempts too."""
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


def newest(scratch: Path) -> Checkpoint | None:
    """Return the furthest complete checkpoint of all attempts; damaged ones are passed over."""
    paths = sorted(scratch.glob("*/checkpoint-*"), key=lambda path: path.name, reverse=True)
    for path in paths:
        found = _load(path)
        if found is not None:
            return found
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
        # Removed meanwhile by an attempt that is still at work, where locks do not work.
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
