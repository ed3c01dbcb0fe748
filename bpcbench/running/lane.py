"""A lane of a run: the stages that one pool executes, with their timeouts, stops, busy neighbours and lost workers."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from bpcbench.api import Pool
from bpcbench.errors import BpcbenchError, EngineError
from bpcbench.planning.planner import PlannedStage
from bpcbench.records import Ended, Requeued, Started, Status, Task
from bpcbench.running.checkpoint import furthest
from bpcbench.running.ownership import Ownership
from bpcbench.running.queue import Outcome, Queue, ResourceClass
from bpcbench.running.worker import note
from bpcbench.store.locks import Busy
from bpcbench.store.store import Store

POLL_SECONDS = 0.25
"""How long a pool is waited for at most before the lane looks whether the run is to stop."""
TIMEOUT_GRACE_SECONDS = 5.0
"""How long a stage that exceeds its timeout may take to end before it is killed."""
KILL_SECONDS = 10.0
"""How long an engine may take to report the end of an attempt that it was told to kill."""
BUSY_SECONDS = (0.25, 5.0)
"""First and longest delay before a stage that another process works on is tried again; it doubles in between."""
FULL_SECONDS = 1.0
"""How long a pool without room for a class of resources is not asked again, unless an attempt ends."""


REPORTED: tuple[Status, ...] = ("done", "cached", "busy", "failed", "stopped")
"""How an attempt may end; only the runner skips stages."""


@dataclass
class StopRequest:
    """Set when the run is to stop. Plain attributes, since a signal handler sets them.

    `leave` stops the run, but not the attempts of an engine that is detached. `when_submitted` asks for that as soon as
    nothing more can be submitted.
    """

    requested: bool = False
    leave: bool = False
    when_submitted: bool = False


class Host(Protocol):
    """What a lane asks of the run. Calls come from the lane's thread."""

    def task(self, planned: PlannedStage, jobs: int) -> Task:
        """Return a new attempt at a stage, in a pool of so many slots."""

    def begun(self, planned: PlannedStage, task: Task) -> None:
        """Note an attempt that a pool has taken."""

    def released(self, planned: PlannedStage) -> None:
        """Note a stage whose attempt is over, but which will be tried again."""

    def part(self, planned: PlannedStage) -> None:
        """Note a stage whose further attempts are to fit no others along with it."""

    def finished(self, planned: PlannedStage, outcome: Outcome) -> None:
        """Note a stage that is over, and tell the queue."""

    def report(self, text: str) -> None:
        """Show a line to the user."""


@dataclass
class _Attempt:
    planned: PlannedStage
    task: Task
    submitted: float
    started: float | None = None
    ending: str = ""
    """Why it was asked to stop: a message."""
    status: Status = "stopped"
    """What it has become if it does stop."""
    kill_at: float = math.inf
    lost_at: float = math.inf

    @property
    def late_at(self) -> float:
        if self.started is None or self.task.timeout is None or self.ending:
            return math.inf
        return self.started + self.task.timeout


@dataclass
class Lane:
    """Drives the stages of a queue for which `kind == "score"` is among `scores` through one pool.

    A worker that is lost is replaced up to `retries` times per stage. Whatever the engine raises ends the lane with an
    EngineError that names it.
    """

    engine: str
    open: Callable[[], Pool]
    queue: Queue
    scores: Collection[bool]
    host: Host
    store: Store
    stop: StopRequest
    grace: float
    retries: int
    ownership: Ownership | None = None
    """For an engine that is detached: which attempts are this run's."""
    _attempts: dict[str, _Attempt] = field(default_factory=dict)
    _full: dict[ResourceClass, float] = field(default_factory=dict)
    _busy: dict[str, float] = field(default_factory=dict)
    _lost: dict[str, int] = field(default_factory=dict)
    _reached: dict[str, str] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """The number of attempts under way."""
        return len(self._attempts)

    def run(self) -> None:
        """Run until all stages of the lane are over or, if the run is to stop, until no attempt is left."""
        with self._contained("open"):
            self._pool = self.open()
        try:
            if self.ownership is not None:
                self.ownership.begin()
            self._adopt()
            while self._attempts or (self.queue.left(self.scores) and not self.stop.requested):
                if self.ownership is not None and self.stop.leave:
                    break
                self.poll()
        finally:
            with contextlib.suppress(Exception):
                self._pool.close()
            if self.ownership is not None:
                self.ownership.end()
            for attempt in self._attempts.values():
                self.host.released(attempt.planned)

    def poll(self) -> None:
        """Submit what there is room for, then wait for something to happen, but not for long."""
        if self.stop.requested:
            self.interrupt()
        else:
            self._submit()
            if self.stop.when_submitted and self.ownership is not None and not self._undelivered():
                self.stop.requested = self.stop.leave = True
                return
        self._enforce()
        for event in self._wait():
            if isinstance(event, Started):
                self._started(event)
            elif isinstance(event, Requeued):
                self._requeued(event)
            else:
                self._ended(event)

    def interrupt(self) -> None:
        """Ask all attempts to stop that have not been asked."""
        asked = [attempt for attempt in list(self._attempts.values()) if not attempt.ending]
        self._ask_to_stop(asked, "stopped", "stopped", self.grace)

    @contextlib.contextmanager
    def _contained(self, call: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            what = str(error) if isinstance(error, BpcbenchError) else f"{type(error).__name__}: {error}"
            raise EngineError(f"engine {self.engine} failed in {call}: {what}") from error

    def _adopt(self) -> None:
        with self._contained("adopt"):
            tasks = list(self._pool.adopt())
        for task in tasks:
            if self.ownership is not None and not self.ownership.claim(task):
                continue
            planned = self.queue.adopt(task.id)
            if planned is not None:
                self._attempts[task.attempt] = _Attempt(planned, task, time.monotonic())
                self.host.begun(planned, task)
                self.host.report(f"still running: {planned.kind} {planned.label}")

    def _undelivered(self) -> int:
        with self._contained("undelivered"):
            return int(getattr(self._pool, "undelivered", 0))

    def _submit(self) -> None:
        now = time.monotonic()
        full = {group for group, until in self._full.items() if until > now}
        with self._contained("slots"):
            slots = max(1, int(self._pool.slots))
        while len(self._attempts) < slots:
            planned = self.queue.first(self.scores, now, full)
            if planned is None:
                return
            if (planned.id in self._busy or planned.id in self._lost) and self._in_store(planned):
                self.queue.take(planned)
                self._tidy(planned)
                self.host.finished(planned, Outcome(planned.id, "cached"))
                continue
            task = self.host.task(planned, slots)
            with self._contained("submit"):
                taken = self._pool.submit(task)
            if not taken:
                group = ResourceClass.of(planned)
                self._full[group] = now + FULL_SECONDS
                full.add(group)
                continue
            self.queue.take(planned)
            self._attempts[task.attempt] = _Attempt(planned, task, time.monotonic())
            self.host.begun(planned, task)

    def _enforce(self) -> None:
        now = time.monotonic()
        attempts = list(self._attempts.values())
        for attempt in attempts:
            if now >= attempt.late_at:
                message = f"it took longer than its timeout of {attempt.task.timeout:g} s"
                self._ask_to_stop([attempt], message, "failed", min(TIMEOUT_GRACE_SECONDS, self.grace))
        if doomed := [attempt for attempt in attempts if now >= attempt.kill_at]:
            for attempt in doomed:
                attempt.kill_at, attempt.lost_at = math.inf, now + KILL_SECONDS
            with self._contained("kill"):
                self._pool.kill([attempt.task.attempt for attempt in doomed])
        for attempt in attempts:
            if now >= attempt.lost_at:
                self.host.report(f"engine {self.engine} cannot end {attempt.planned.kind} {attempt.planned.label}")
                self._ended(Ended(attempt.task.attempt, "failed"))

    def _ask_to_stop(self, attempts: list[_Attempt], message: str, status: Status, grace: float) -> None:
        if not attempts:
            return
        for attempt in attempts:
            attempt.ending, attempt.status, attempt.kill_at = message, status, time.monotonic() + grace
            note(attempt.task, message)
        with self._contained("stop"):
            self._pool.stop([attempt.task.attempt for attempt in attempts])

    def _wait(self) -> list[Started | Requeued | Ended]:
        now = time.monotonic()
        due = self.queue.next_due(self.scores)
        deadlines = [min(a.late_at, a.kill_at, a.lost_at) for a in self._attempts.values()]
        until = min([now + POLL_SECONDS, *deadlines, *([] if due is None else [due])])
        seconds = max(0.0, until - now)
        if not self._attempts and not self._full:
            with self.queue.changed:
                idle = self.queue.first(self.scores, now) is None and self.queue.left(self.scores)
                if idle and not self.stop.requested:
                    self.queue.changed.wait(seconds)
            return []
        with self._contained("wait"):
            events = list(self._pool.wait(seconds))
            for event in events:
                if not isinstance(event, Started | Requeued | Ended):
                    raise TypeError(f"expected Started, Requeued or Ended, got {event!r}")
                if isinstance(event, Ended) and event.status not in (None, *REPORTED):
                    raise ValueError(f"an attempt cannot end with status {event.status!r}")
        if not events and time.monotonic() - now < min(0.01, seconds):
            # An engine that does not wait must not keep a processor busy.
            time.sleep(0.01)
        return events

    def _started(self, event: Started) -> None:
        attempt = self._attempts.get(event.attempt)
        if attempt is not None and attempt.started is None:
            attempt.started = time.monotonic()

    def _requeued(self, event: Requeued) -> None:
        attempt = self._attempts.get(event.attempt)
        if attempt is not None:
            attempt.started = None

    def _ended(self, event: Ended) -> None:
        attempt = self._attempts.pop(event.attempt, None)
        if attempt is None:
            return
        if self.ownership is not None:
            self.ownership.forget(event.attempt)
        self._full.clear()
        now = time.monotonic()
        planned = attempt.planned
        ended = self._known(attempt, event)
        if ended.status == "busy":
            first, longest = BUSY_SECONDS
            delay = self._busy[planned.id] = min(longest, 2 * self._busy.get(planned.id, first / 2))
            self._again(planned, now + delay)
            return
        message = ended.message
        status: Status = ended.status or "failed"
        if attempt.task.along and not self.stop.requested and (why := _without_an_answer(attempt, ended)):
            # What fitting several seeds has cost the worker must not cost the first of them its result.
            count = 1 + len(attempt.task.along)
            self.host.report(
                f"{planned.kind} {planned.label}: {count} seeds are fitted one by one, not together: {why}"
            )
            self.host.part(planned)
            self._again(planned, now + BUSY_SECONDS[0])
            return
        if status == "stopped" and not attempt.ending:
            # Not by this run: someone sent the signal to the worker alone, or took its machine away.
            ended, message = replace(ended, lost=True), "the worker was told to stop by a signal"
            if (reached := furthest(self.store.scratch(planned.id))) > self._reached.get(planned.id, ""):
                # A time limit, for instance: as long as each attempt gets further, there is no end to them.
                self._reached[planned.id] = reached
                self._lost.pop(planned.id, None)
        if status not in ("done", "cached"):
            if attempt.ending:
                status, message = attempt.status, attempt.ending
            elif ended.lost and self.stop.requested:
                status, message = "stopped", "stopped"
            elif ended.lost:
                attempts = self._lost[planned.id] = self._lost.get(planned.id, 0) + 1
                if attempts <= self.retries:
                    what = f"{planned.kind} {planned.label}: {message}"
                    self.host.report(f"worker lost: {what}; attempt {attempts + 1} of {self.retries + 1}")
                    self._again(planned, now + BUSY_SECONDS[0] * attempts)
                    return
                status, message = "failed", message if attempts == 1 else f"{message}, {attempts} times"
        seconds = ended.seconds or now - (attempt.started or attempt.submitted)
        exhausted = ended.out_of_memory and status == "failed" and not attempt.ending
        self.host.finished(planned, Outcome(planned.id, status, seconds, message, ended.messages, exhausted))

    def _again(self, planned: PlannedStage, due: float) -> None:
        self.host.released(planned)
        self.queue.put_back(planned, due)

    def _known(self, attempt: _Attempt, event: Ended) -> Ended:
        """Return the end of an attempt with its status: the engine's, that of its outcome file, or the store's."""
        recorded = _read_outcome(attempt.task)
        if event.status is not None and not event.lost:
            return event
        if recorded is not None:
            return recorded
        if self._in_store(attempt.planned):
            self._tidy(attempt.planned)
            return replace(event, status="done", lost=False, message="")
        return replace(event, status="failed", lost=True, message=event.message or "the worker left no outcome")

    def _tidy(self, planned: PlannedStage) -> None:
        """Remove the scratch of a stage whose worker was lost between its commit and the end of its work."""
        with contextlib.suppress(Busy, OSError, BpcbenchError), self.store.lock(planned.id):
            self.store.discard_scratch(planned.id)

    def _in_store(self, planned: PlannedStage) -> bool:
        return all(self.store.has(address) for address in planned.stage.addresses)


def _without_an_answer(attempt: _Attempt, ended: Ended) -> str:
    """Return why an attempt has not come to its own end, its timeout or the loss of its worker; empty if it has."""
    if ended.status in ("done", "cached"):
        return ""
    if attempt.ending:
        # One that cannot be ended still works on the stage.
        return attempt.ending if attempt.status == "failed" and time.monotonic() < attempt.lost_at else ""
    # An engine may tell a kill for memory from other losses; what the stage says itself took time.
    return ended.message if ended.lost or (ended.out_of_memory and not ended.seconds) else ""


def _read_outcome(task: Task) -> Ended | None:
    """Return what a worker wrote about its end, and remove it; None if there is nothing readable."""
    try:
        recorded = Ended.from_json(json.loads(task.outcome_file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        recorded = None
    with contextlib.suppress(OSError):
        task.outcome_file.unlink()
    known = recorded is not None and recorded.attempt == task.attempt and recorded.status in REPORTED
    return recorded if known else None
