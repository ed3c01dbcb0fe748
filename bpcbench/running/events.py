"""Follow the events that running stages write, and pass them to listeners: progress, tracker."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from bpcbench.planning.planner import PlannedStage
from bpcbench.running.checkpoint import EVENTS
from bpcbench.running.queue import Outcome


class Listener(Protocol):
    """Receives the events of one run. Calls come from several threads, but one at a time."""

    def started(self, stage: PlannedStage) -> None:
        """Handle a stage that was handed to a worker."""

    def events(self, stage: PlannedStage, lines: Sequence[dict[str, Any]]) -> None:
        """Handle new events of a running stage: curve points and progress."""

    def finished(self, stage: PlannedStage, outcome: Outcome) -> None:
        """Handle a stage that has ended."""


class Monitor(threading.Thread):
    """Tails the event file of every running stage about twice a second, and calls `tick` as often, and at the end."""

    def __init__(
        self, listeners: Sequence[Listener], report: Callable[[str], None], tick: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(name="monitor", daemon=True)
        self.listeners = list(listeners)
        self.report = report
        self.tick = tick
        self._followed: dict[str, tuple[PlannedStage, Path, int]] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()

    def started(self, stage: PlannedStage, attempt: Path) -> None:
        """Start following a stage."""
        with self._lock:
            self._followed[stage.id] = (stage, attempt / EVENTS, 0)
            self._tell("started", stage)

    def finished(self, stage: PlannedStage, outcome: Outcome) -> None:
        """Stop following a stage."""
        with self._lock:
            self._followed.pop(stage.id, None)
            if outcome.status != "busy":
                self._tell("finished", stage, outcome)

    def run(self) -> None:
        """Follow until `end` is called."""
        while not self._end.wait(0.5):
            self.tick()
            with self._lock:
                for name, (stage, path, offset) in list(self._followed.items()):
                    path, offset = _latest(path, offset)
                    lines, offset = _read(path, offset)
                    self._followed[name] = (stage, path, offset)
                    if lines:
                        self._tell("events", stage, lines)

    def end(self) -> None:
        """Stop the thread."""
        self._end.set()
        self.join()
        self.tick()

    def _tell(self, what: str, *arguments: Any) -> None:
        for listener in list(self.listeners):
            try:
                getattr(listener, what)(*arguments)
            except Exception as error:
                self.listeners.remove(listener)
                self.report(f"{type(listener).__name__} is disabled: {type(error).__name__}: {error}")


def _latest(path: Path, offset: int) -> tuple[Path, int]:
    """Return the events of the same attempt started again by its engine, if it was, and where to read on."""
    attempt, _, again = path.parent.name.partition(".")
    while (later := path.parent.with_name(f"{attempt}.{int(again or 0) + 1}")).exists():
        again, path, offset = str(int(again or 0) + 1), later / path.name, 0
    return path, offset


def _read(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    lines: list[dict[str, Any]] = []
    with contextlib.suppress(OSError), path.open("rb") as stream:
        stream.seek(0, 2)
        if stream.tell() < offset:
            # The stage resumed from a checkpoint.
            offset = 0
        stream.seek(offset)
        for line in stream:
            if not line.endswith(b"\n"):
                break
            offset += len(line)
            with contextlib.suppress(ValueError):
                lines.append(json.loads(line))
    return lines, offset
