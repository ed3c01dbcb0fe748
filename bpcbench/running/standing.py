"""How the invocations of a store stand: what runs, what failed and what is left, read from files alone.

Any machine that sees the store can ask. What runs is known from run records, whose owner writes a heartbeat; how far
a stage is, from the events of its latest attempt; where an interrupted one goes on, from its checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from bpcbench.errors import UserError, did_you_mean, shortened
from bpcbench.reading import opened
from bpcbench.reporting.collect import Progress
from bpcbench.reporting.view import View
from bpcbench.running.checkpoint import EVENTS
from bpcbench.store.address import Address
from bpcbench.store.invocations import Invocation
from bpcbench.store.manifest import CellRecord
from bpcbench.store.runs import RunRecord, last_failures
from bpcbench.store.store import Store

State = Literal["running", "failed", "interrupted", "done", "left"]
_TAIL_BYTES = 65536
"""How much of a file of events is read from its end."""


@dataclass(frozen=True)
class Steps:
    """How far a stage is: steps of its loop, seconds spent on it, and the latest numbers that it logged."""

    done: int
    total: int
    seconds: float
    what: str = ""
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def left(self) -> float | None:
        """Seconds until the loop ends, at the pace so far; None before the first step."""
        return self.seconds / self.done * (self.total - self.done) if self.done > 0 else None


@dataclass(frozen=True)
class Standing:
    """A stage of an invocation: its label as runs print it, why it failed, and the addresses of its results."""

    id: str
    label: str
    state: State
    message: str = ""
    log: Path | None = None
    steps: Steps | None = None
    addresses: tuple[Address, ...] = ()

    @property
    def short(self) -> str:
        """The kind and the start of the key: what names the stage in a command."""
        kind, _, rest = self.id.partition(":")
        return f"{kind}-{rest[:12]}"


@dataclass(frozen=True, eq=False)
class Report:
    """How one invocation stands."""

    store: Store
    invocation: Invocation

    @cached_property
    def progress(self) -> Progress:
        """The cells by state."""
        return View(self.store, self.invocation).progress

    @property
    def run(self) -> RunRecord | None:
        """The latest run that is under way, else the latest."""
        runs = self.invocation.runs
        return next((run for run in reversed(runs) if run.alive), runs[-1] if runs else None)

    @cached_property
    def stages(self) -> tuple[Standing, ...]:
        """The stages that run, failed, were interrupted, are left or done, in the order of the suite."""
        return tuple(_stages(self.store, self.invocation))


def age(timestamp: str) -> float:
    """Return the seconds since a timestamp of a run record."""
    then = datetime.fromisoformat(timestamp.replace("Z", "+00:00"))
    return max(0.0, (datetime.now(timezone.utc) - then).total_seconds())


def _stages(store: Store, invocation: Invocation) -> Iterator[Standing]:
    runs = invocation.runs
    labels = {name: label for run in runs if run.alive for name, label in run.labels.items()}
    running = {name for run in runs if run.alive for name in run.running}
    failed = last_failures(runs)
    seen: set[str] = set()
    # Prerequisites are in no cell: they are known from the runs only.
    for name in (*labels, *failed):
        if name.startswith("prerequisite:") and name not in seen:
            seen.add(name)
            label = labels.get(name) or f"prerequisite {failed[name].label}"
            message = failed[name].message if name in failed else ""
            state: State = "running" if name in running else "failed"
            if state == "running" or not store.has(Address.parse(name)):
                yield _standing(store, name, label, state, message, (Address.parse(name),))
    for cell in invocation.manifest.cells:
        for name, label, addresses in _of_cell(cell):
            if name in seen:
                continue
            seen.add(name)
            message = failed[name].message if name in failed else ""
            if name in running:
                state = "running"
            elif all(store.has(address) for address in addresses):
                state = "done"
            elif name in failed:
                state = "failed"
            else:
                state = "left"
            yield _standing(store, name, label, state, message if state == "failed" else "", addresses)


def _of_cell(cell: CellRecord) -> Iterator[tuple[str, str, tuple[Address, ...]]]:
    """Yield the stages of a cell: their ids, their labels and what they leave in the store."""
    if cell.skipped:
        return
    group = cell.group
    for address in cell.coresets:
        # Snapshots are kept by the stage that makes the coreset.
        name = f"coreset {group.dataset} ipc {group.ipc} {group.method} seed {cell.distil_seed}"
        yield address.stage, name, (address,)
    yield f"predict:{cell.predict}", f"predict {cell.label}", cell.predictions
    for evaluator, address in cell.scores.items():
        yield address.stage, f"score {cell.label} {evaluator}", (address,)


def _standing(
    store: Store, name: str, label: str, state: State, message: str, addresses: tuple[Address, ...]
) -> Standing:
    if state == "done":
        return Standing(name, label, state, addresses=addresses)
    log = next(iter(log_files(store, name)), None)
    steps = read_steps(store, name) if not name.startswith("score:") else None
    if state == "left" and steps is not None:
        state = "interrupted"
    return Standing(name, label, state, message, log, steps, addresses)


def log_files(store: Store, stage: str) -> list[Path]:
    """Return the logs of a stage, the latest first; scores share one."""
    folder = store.root / "logs"
    kind, _, rest = stage.partition(":")
    if kind == "score":
        found = [folder / "scores.log"]
    else:
        key, _, member = rest.partition("@")
        end = f"-{member.replace('/', ',')}.log" if member else ".log"
        start = f"{kind}-{key[:12]}-"
        every = folder.iterdir() if folder.is_dir() else ()
        found = [path for path in every if path.name.startswith(start) and path.name.endswith(end)]
    dated = []
    for path in found:
        with contextlib.suppress(OSError):
            dated.append((path.lstat().st_mtime, path))
    return [path for _, path in sorted(dated, reverse=True)]


def read_steps(store: Store, stage: str) -> Steps | None:
    """Return how far the latest attempt at a stage is, or None if it has not said."""
    found: list[tuple[float, Path]] = []
    with contextlib.suppress(OSError):
        for attempt in store.scratch(stage).iterdir():
            with contextlib.suppress(OSError):
                found.append(((attempt / EVENTS).lstat().st_mtime, attempt / EVENTS))
    for _, path in sorted(found, reverse=True):
        steps = _latest(path)
        if steps is not None:
            return steps
    return None


def _latest(path: Path) -> Steps | None:
    steps: Steps | None = None
    metrics: dict[str, float] = {}
    for line in _tail(path):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            if "m" in line:
                metrics |= {str(name): float(value) for name, value in line["m"].items()}
            elif line.get("total"):
                what = str(line.get("what", ""))
                steps = Steps(int(line["done"]), int(line["total"]), float(line["t"]), what)
    return steps and replace(steps, metrics=metrics)


def _tail(path: Path) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(OSError, ValueError), opened(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        stream.seek(max(0, size - _TAIL_BYTES))
        if size > _TAIL_BYTES:
            stream.readline()
        for text in stream.read(_TAIL_BYTES).splitlines():
            with contextlib.suppress(ValueError):
                line = json.loads(text)
                if isinstance(line, dict):
                    yield line


def select(stages: Sequence[Standing], words: Sequence[str]) -> list[Standing]:
    """Return the stages that words name: parts of the label (`vbpc`, `ipc 10`, `seed 0`), or the start of a key.

    A seed is that of a coreset if one has it and all other words, else the first of a prediction's two. Scores share
    one log, and are meant only by the word `score` or by a key. UserError for a word that no stage has.
    """
    wanted = _paired(" ".join(words))
    parts = [(stage, _parts(stage)) for stage in stages]
    for word in wanted:
        if not any(_has(stage, own, word) for stage, own in parts):
            every = sorted({part for _, own in parts for part in own})
            shown = word.replace("=", " ")
            close = did_you_mean(word, every).replace("=", " ")
            raise UserError(f"no stage of this store has {shortened(shown)!r} in its label or key{close}")
    exact = " ".join(wanted)
    found = [stage for stage, own in parts if all(_has(stage, own, word) for word in wanted)]
    found = [stage for stage in found if all(_has(stage, _paired(stage.label), word) for word in wanted)] or found
    whole = [stage for stage in found if " ".join(_paired(stage.label)) == exact]
    return whole or [stage for stage in found if not stage.id.startswith("score:")] or found


def _has(stage: Standing, parts: Sequence[str], word: str) -> bool:
    if word in parts:
        return True
    kind, _, key = stage.id.partition(":")
    for lead in ("", f"{kind}-", f"{kind}:"):
        rest = word.removeprefix(lead)
        if word.startswith(lead) and len(rest) >= 4 and key.startswith(rest):
            return True
    return False


def _parts(stage: Standing) -> list[str]:
    own = _paired(stage.label)
    # A seed of a prediction is `distil.evaluate`; the first of them alone names its coreset's.
    return [*own, *(part.partition(".")[0] for part in own if part.startswith("seed=") and "." in part)]


def _paired(text: str) -> list[str]:
    """Return the words of a label, with `ipc 10`, `seed 0.1` and `step 5` as one word each."""
    words = [word for word in text.replace("/", " ").split() if word]
    result: list[str] = []
    for word in words:
        if result and result[-1] in ("ipc", "seed", "step"):
            result[-1] += f"={word}"
        else:
            result.append(word)
    return result
