"""The queue of a run: which stages are ready, running, waiting for others or skipped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from bpcbench.planning.planner import PlannedStage
from bpcbench.records import Status, Task


@dataclass(frozen=True)
class Outcome:
    """How an attempt at the stage with that id ended."""

    stage: str
    status: Status
    seconds: float = 0.0
    message: str = ""
    messages: tuple[str, ...] = ()


Execute = Callable[[Task], Outcome]


@dataclass
class Work:
    """The stages of a plan that are still to do, handed out as they become ready. Safe to use from several threads."""

    stages: Sequence[PlannedStage]
    make_task: Callable[[PlannedStage], Task]
    on_take: Callable[[Task], None]
    on_finish: Callable[[PlannedStage, Outcome], None]
    stopping: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _waiting: dict[str, PlannedStage] = field(default_factory=dict)
    _all: dict[str, PlannedStage] = field(default_factory=dict)
    _running: dict[str, PlannedStage] = field(default_factory=dict)
    _not_before: dict[str, float] = field(default_factory=dict)
    _blocking: dict[str, int] = field(default_factory=dict)
    _dependants: dict[str, list[str]] = field(default_factory=dict)
    _ready: dict[bool, dict[str, PlannedStage]] = field(default_factory=lambda: {True: {}, False: {}})
    _said: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._waiting = {stage.id: stage for stage in self.stages}
        self._all = dict(self._waiting)
        for stage in self.stages:
            needs = [need for need in dict.fromkeys(stage.stage.needs) if need in self._waiting]
            self._blocking[stage.id] = len(needs)
            for need in needs:
                self._dependants.setdefault(need, []).append(stage.id)
            if not needs:
                self._ready[stage.kind == "score"][stage.id] = stage

    def __bool__(self) -> bool:
        """True while the engine may still be handed a task, or has one running."""
        with self._lock:
            return self._left(scores=False)

    def _left(self, *, scores: bool) -> bool:
        both = (self._running,) if self.stopping else (self._running, self._waiting)
        return any((stage.kind == "score") == scores for group in both for stage in group.values())

    def scores_left(self) -> bool:
        """True while a score is waiting, or could still become ready."""
        with self._lock:
            # None is handed out any more once the run stops, whatever an engine that failed has left running.
            return not self.stopping and bool(self._running or self._waiting)

    def take(self, fits: Callable[[Task], bool], *, scores: bool = False) -> Task | None:
        """Return the next ready task that fits, or None. Scores are taken by the runner, not by engines."""
        with self._lock:
            if self.stopping:
                return None
            now = time.monotonic()
            for stage in self._ready[scores].values():
                if self._not_before.get(stage.id, 0.0) > now:
                    continue
                task = self.make_task(stage)
                if fits(task):
                    del self._ready[scores][stage.id]
                    self._running[stage.id] = self._waiting.pop(stage.id)
                    self.on_take(task)
                    return task
            return None

    def finish(self, outcome: Outcome) -> None:
        """Take note of an outcome: it makes dependants ready, or skips them, or puts a busy stage back."""
        with self._lock:
            stage = self._running.pop(outcome.stage)
            if outcome.status == "busy":
                self._waiting[stage.id] = stage
                self._ready[stage.kind == "score"][stage.id] = stage
                self._not_before[stage.id] = time.monotonic() + 0.3
                return
            if outcome.status == "stopped" and not self.stopping:
                # Not by this run: someone sent the signal to the worker alone.
                outcome = replace(outcome, status="failed", message="the worker was told to stop by a signal")
            # What every worker notices, such as a file system without locks, is said once.
            outcome = replace(outcome, messages=tuple(m for m in outcome.messages if m not in self._said))
            self._said.update(outcome.messages)
            self.on_finish(stage, outcome)
            if outcome.status in ("done", "cached"):
                for name in self._dependants.get(stage.id, ()):
                    self._blocking[name] -= 1
                    if self._blocking[name] == 0 and name in self._waiting:
                        dependant = self._waiting[name]
                        self._ready[dependant.kind == "score"][name] = dependant
            elif outcome.status == "failed":
                self._skip_dependants(stage.id, stage.label)

    def _skip_dependants(self, failed: str, label: str) -> None:
        for name in self._dependants.get(failed, ()):
            stage = self._waiting.pop(name, None)
            if stage is not None:
                self.on_finish(stage, Outcome(name, "skipped", message=f"it needs {label!r}, which failed"))
                self._skip_dependants(name, label)

    def stage(self, name: str) -> PlannedStage:
        """Return the stage with that id."""
        return self._all[name]

    def running(self) -> list[PlannedStage]:
        """Return the stages under way, engine's and runner's."""
        with self._lock:
            return list(self._running.values())
