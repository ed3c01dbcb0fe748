"""Run a plan on an engine: ready stages run, failures stay isolated, stopped stages can be resumed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bpcbench.api import Engine, Pool
from bpcbench.errors import EngineError
from bpcbench.planning.plan import Plan
from bpcbench.planning.planner import PlannedStage
from bpcbench.records import RunInfo, StageEvent, Task
from bpcbench.registry.discovery import Registry
from bpcbench.running.bundles import Bundles
from bpcbench.running.engines import Inline, Local
from bpcbench.running.events import Listener, Monitor
from bpcbench.running.lane import Lane, StopRequest
from bpcbench.running.local import LocalPool
from bpcbench.running.ownership import Ownership
from bpcbench.running.queue import Outcome, Queue
from bpcbench.store.store import ABANDONED_SECONDS, Store

GRACE_SECONDS = 30.0
"""How long a stage may take to write its checkpoint when asked to stop."""


def score_pool(run: RunInfo) -> Pool:
    """Return the pool for scores: one process for all, because starting one costs more than a score."""
    return LocalPool(run, slots=1, reuse="always")


@dataclass(frozen=True)
class Failure:
    """A stage that failed, the reason, and the log with its output."""

    stage: PlannedStage
    message: str
    log: Path
    out_of_memory: bool = False


@dataclass(frozen=True)
class Result:
    """The outcome of a run: the number of stages by status, and the failures."""

    counts: dict[str, int]
    failures: tuple[Failure, ...] = ()
    signal: int | None = None
    error: str = ""
    """What went wrong with the engine, which ended the run."""
    left: int = 0
    """The number of stages that go on without this run."""

    @property
    def exit_code(self) -> int:
        """0 if all results exist, 1 if something failed, 128 + n if signal n stopped the run."""
        if self.signal is not None:
            return 128 + self.signal
        return 1 if self.error or self.failures or self.counts.get("skipped") else 0


@dataclass
class Runner:
    """Runs the pending stages of a plan. It is the host of two lanes: the engine's, and one for scores."""

    registry: Registry
    plan: Plan
    store: Store
    data: Path
    engine: Engine
    listeners: Sequence[Listener] = ()
    report: Callable[[str], None] = print
    debug: bool = False
    grace: float = GRACE_SECONDS
    detach: bool = False
    """Leave as soon as everything that is ready has been submitted."""
    announce: Callable[[str], None] | None = None
    """Shows what a signal starts; like `report` if it is None."""

    def run(self) -> Result:
        """Run until nothing is left, a signal asks to stop, or the engine fails; all is in the result."""
        self._counts: dict[str, int] = {}
        self._failures: list[Failure] = []
        self._shown: set[str] = set()
        stages = self.plan.to_do()
        if not stages:
            return Result({})
        self._bundles = Bundles.of(stages, self.store.has)
        self._queue = Queue(stages, after=self._bundles.leader)
        self._stop = StopRequest(when_submitted=self.detach)
        self._run = uuid.uuid4().hex
        self._monitor = Monitor(self.listeners, self.report, self._stopping)
        _sweep(self.store.root / "scratch" / "outcomes")
        info = RunInfo(
            store=self.store.root,
            run=self._run,
            threads=self.plan.suite.threads,
            device=self.plan.suite.device,
            preload=tuple(dict.fromkeys(module for planned in stages for module in planned.preload)),
            grace=self.grace,
            debug=self.debug,
            report=self.report,
        )
        stopped_by: list[int] = []
        error, left = "", 0
        self._signalled = stopped_by
        self._announced = False
        self._monitor.start()
        try:
            if self.engine.in_process:
                lane = self._lane(self.engine.open, info, scores=(True, False))
                with _signals(self._stop, lane.interrupt, stopped_by):
                    lane.run()
            else:
                lane = self._lane(self.engine.open, info, scores=(False,))
                scores = _LaneThread(self._lane(score_pool, info, scores=(True,)))
                with _signals(self._stop, None, stopped_by, leave=self.engine.detached):
                    self._run_both(lane, scores)
                left = lane.left
        except EngineError as failed:
            error = str(failed)
        finally:
            self._monitor.end()
        stopped = stopped_by[0] if stopped_by else None
        return Result(self._counts, tuple(self._failures), stopped, error, left)

    def _stopping(self) -> None:
        """Say that the run is about to stop, once."""
        if self._stop.requested and self._signalled and not self._announced:
            self._announced = True
            (self.announce or self.report)("stopping: running stages write a checkpoint (again to end at once)")

    def _lane(self, open_pool: Callable[[RunInfo], Pool], info: RunInfo, *, scores: tuple[bool, ...]) -> Lane:
        ownership = None
        if self.engine.detached and False in scores:
            ownership = Ownership(info.folder(self.engine.name), info.run)
            info = replace(info, claim=ownership.claim)
        return Lane(
            engine=self.engine.name if False in scores else "local",
            open=lambda: open_pool(info),
            queue=self._queue,
            scores=scores,
            host=self,
            # A store per lane: each lane runs in its own thread.
            store=Store(self.store.root),
            stop=self._stop,
            grace=self.grace,
            retries=self.engine.retries if False in scores else Local.retries,
            ownership=ownership,
        )

    def _run_both(self, lane: Lane, scores: _LaneThread) -> None:
        scores.start()
        try:
            lane.run()
        except BaseException:
            self._stop.requested = True
            raise
        finally:
            scores.join()
        if scores.error is not None:
            raise scores.error

    def task(self, planned: PlannedStage, jobs: int) -> Task:
        """Return a new attempt at a stage, in a pool of `jobs` slots."""
        suite = self.plan.suite
        along = self._bundles.along(planned)
        return make_task(
            planned,
            self.store.root,
            self.data,
            log=self.log_of(planned),
            threads=suite.threads,
            device=suite.device,
            timeout=None if suite.timeout is None else suite.timeout * (1 + len(along)),
            jobs=jobs,
            run=self._run,
            along=along,
        )

    def begun(self, planned: PlannedStage, task: Task) -> None:
        """Follow the events of an attempt."""
        self._monitor.started(planned, self.store.scratch(task.id) / task.attempt)

    def released(self, planned: PlannedStage) -> None:
        """Stop following an attempt; there will be another one."""
        self._monitor.finished(planned, Outcome(planned.id, "busy"))

    def part(self, planned: PlannedStage) -> None:
        """Let further attempts at a stage make its own fit alone; the others of its group still come after it."""
        self._bundles = self._bundles.without(planned.id)

    def finished(self, planned: PlannedStage, outcome: Outcome) -> None:
        """Count a finished stage, notify listeners, and skip its dependents if it failed."""
        with self._queue.changed:
            # Messages common to all workers, such as a file system without locks, are shown once.
            new = tuple(message for message in outcome.messages if message not in self._shown)
            self._shown.update(new)
            self._tell(planned, replace(outcome, messages=new))
            for skipped in self._queue.finish(planned, outcome.status):
                self._tell(skipped, Outcome(skipped.id, "skipped", message=f"it needs {planned.label!r}, which failed"))

    def log_of(self, planned: PlannedStage) -> Path:
        """Return the log file of a stage."""
        if planned.kind == "score":
            return self.store.root / "logs" / "scores.log"
        address = planned.stage.addresses[0]
        return self.store.root / "logs" / f"{address.kind}-{address.key[:12]}-{address.folder}.log"

    def _tell(self, planned: PlannedStage, outcome: Outcome) -> None:
        self._counts[outcome.status] = self._counts.get(outcome.status, 0) + 1
        if outcome.status == "failed":
            log = self.log_of(planned)
            self._failures.append(Failure(planned, outcome.message, log, outcome.out_of_memory))
        self._monitor.finished(planned, outcome)
        address = str(planned.stage.addresses[0])
        event = StageEvent(address, planned.kind, planned.label, outcome.status, outcome.seconds, outcome.message)
        self.registry.observe(event, self.report)


class _LaneThread(threading.Thread):
    """A lane in its own thread; an exception is kept and stops the run."""

    def __init__(self, lane: Lane) -> None:
        super().__init__(name="scores", daemon=True)
        self.lane = lane
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.lane.run()
        except BaseException as error:
            self.error = error
            self.lane.stop.requested = True


def _sweep(outcomes: Path) -> None:
    """Remove outcome files that were never read because their run was killed."""
    if outcomes.is_dir():
        for file in outcomes.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - file.stat().st_mtime > ABANDONED_SECONDS:
                    file.unlink()


def make_task(
    planned: PlannedStage,
    store: Path,
    data: Path,
    *,
    log: Path,
    threads: int = 1,
    device: str = "auto",
    timeout: float | None = None,
    jobs: int = 1,
    run: str = "",
    along: tuple[Mapping[str, Any], ...] = (),
) -> Task:
    """Return a new attempt at a planned stage."""
    return Task(
        id=planned.id,
        kind=planned.kind,
        key=planned.stage.key,
        body_version=planned.stage.body_version,
        stage=planned.stage.to_json(),
        label=planned.label,
        store=store,
        data=data,
        attempt=uuid.uuid4().hex[:12],
        log=log,
        threads=threads,
        device=device,
        timeout=timeout,
        jobs=jobs,
        resources=planned.resources,
        preload=planned.preload,
        family=planned.family,
        plugin=planned.plugin,
        run=run,
        along=along,
    )


def choose_engine(engine: Engine | None, *, jobs: int | None = None, inline: bool = False) -> Engine:
    """Return the suite's engine with the command line's settings."""
    chosen = Inline() if inline else engine or Local()
    return chosen if jobs is None else replace(chosen, jobs=jobs)


@contextlib.contextmanager
def _signals(
    stop: StopRequest, interrupt: Callable[[], None] | None, stopped_by: list[int], *, leave: bool = False
) -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and a lost terminal into a clean stop; a second one ends the process at once.

    `interrupt` is called in the handler, for stages that run in this thread. `leave` says that a lost terminal does not
    stop what runs elsewhere. The handler prints nothing: it may interrupt a print, which is not reentrant. The monitor
    says what happens.
    """

    def handle(signum: int, frame: types.FrameType | None) -> None:
        if stopped_by and signum == signal.SIGHUP:
            return  # a closing terminal sends it, and so does its shell
        if stopped_by:
            if os.isatty(2):
                # The cursor stands on the first bar; not print, which is not reentrant.
                os.write(2, b"\r\x1b[J")
            os._exit(128 + signum)
        stopped_by.append(signum)
        stop.leave = leave and signum == signal.SIGHUP
        stop.requested = True
        if signum == signal.SIGHUP:
            # There is no terminal to write to any more, which must not end this process.
            _discard_output()
        if interrupt is not None:
            interrupt()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Under nohup the last of them is ignored, and stays so.
    wanted = [
        signal.SIGINT,
        signal.SIGTERM,
        *([] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]),
    ]
    before: dict[int, Any] = {number: signal.signal(number, handle) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _discard_output() -> None:
    """Write to nowhere from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        if os.isatty(descriptor):
            os.dup2(nowhere, descriptor)
    os.close(nowhere)
