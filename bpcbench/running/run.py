"""Driving a plan through an engine: what is ready is run, what fails fails alone, what stops can go on later."""

from __future__ import annotations

import contextlib
import os
import pdb  # noqa: T100 - `--pdb` is a feature
import signal
import threading
import time
import traceback
import types
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from bpcbench.api import Engine
from bpcbench.errors import PluginError
from bpcbench.planning.plan import Plan
from bpcbench.planning.planner import PlannedStage
from bpcbench.records import StageEvent, Task
from bpcbench.registry.discovery import Registry
from bpcbench.running.bodies import attempt, execute
from bpcbench.running.context import StageContext
from bpcbench.running.engines import Inline, Local
from bpcbench.running.events import Listener, Monitor
from bpcbench.running.queue import Outcome, Work
from bpcbench.running.scoring import Scorer
from bpcbench.store.store import Store


@dataclass(frozen=True)
class Failure:
    """A stage that failed, why, and where its output lies."""

    stage: PlannedStage
    message: str
    log: Path


@dataclass(frozen=True)
class Result:
    """How a run ended: how many stages ended in which way, and which failed."""

    counts: dict[str, int]
    failures: tuple[Failure, ...] = ()
    signal: int | None = None

    @property
    def exit_code(self) -> int:
        """0 if all is there, 1 if something failed, 128 + n if signal n stopped the run."""
        if self.signal is not None:
            return 128 + self.signal
        return 1 if self.failures or self.counts.get("skipped") else 0


@dataclass
class Runner:
    """Runs the stages of a plan that are to do."""

    registry: Registry
    plan: Plan
    store: Store
    data: Path
    engine: Engine
    listeners: Sequence[Listener] = ()
    report: Callable[[str], None] = print
    debug: bool = False

    def run(self) -> Result:
        """Run until nothing is left, or a signal asks to stop."""
        self._counts: dict[str, int] = {}
        self._failures: list[Failure] = []
        self._contexts: list[StageContext] = []
        stages = self.plan.to_do()
        self._monitor = Monitor(self.listeners, self.report)
        self._work = work = Work(stages, self._task, self._take, self._finish)
        if not stages:
            return Result({})
        self._monitor.start()
        stopped_by: list[int] = []
        try:
            with _signals(self._stop, stopped_by):
                if isinstance(self.engine, Inline):
                    self._run_inline(work)
                else:
                    self._run_apart(work)
        finally:
            self._monitor.end()
        return Result(self._counts, tuple(self._failures), stopped_by[0] if stopped_by else None)

    def _run_apart(self, work: Work) -> None:
        preload = tuple(dict.fromkeys(module for stage in work.stages for module in stage.preload))
        scorer = Scorer(work, preload)
        scorer.start()
        try:
            for outcome in self.engine.run(work, execute):
                work.finish(outcome)
            if work and not work.stopping:
                raise PluginError(f"engine {self.engine.name} ended while stages were left; run again to go on")
        except BaseException:
            work.stopping = True
            raise
        finally:
            scorer.join()
        if scorer.error is not None:
            raise scorer.error

    def _run_inline(self, work: Work) -> None:
        for outcome in self.engine.run(work, self._execute_here):
            work.finish(outcome)
            self._scores_here(work)
        while work.scores_left():
            self._scores_here(work)
            # Another process is at work on what is left.
            time.sleep(0.02)

    def _scores_here(self, work: Work) -> None:
        while (task := work.take(lambda task: True, scores=True)) is not None:
            work.finish(self._execute_here(task))

    def _execute_here(self, task: Task) -> Outcome:
        if not self.debug:
            return execute(task, self._contexts.append)
        try:
            return attempt(task, self._contexts.append)
        except Exception as error:
            traceback.print_exc()
            pdb.post_mortem(error.__traceback__)
            return Outcome(task.id, "failed", message=f"{type(error).__name__}: {error}")

    def _stop(self) -> None:
        """Ask for a clean stop; a stage that runs in this process is told directly."""
        self._work.stopping = True
        for context in self._contexts:
            context.stopping = True

    def _take(self, task: Task) -> None:
        self._monitor.started(self._work.stage(task.id), self.store.scratch(task.id) / task.attempt)

    def _task(self, planned: PlannedStage) -> Task:
        suite = self.plan.suite
        return make_task(
            planned,
            self.store.root,
            self.data,
            log=self.log_of(planned),
            threads=suite.threads,
            device=suite.device,
            timeout=suite.timeout,
            jobs=self.engine.slots(suite.threads) if isinstance(self.engine, Local) else 1,
        )

    def log_of(self, planned: PlannedStage) -> Path:
        """Return the file that holds what a stage printed."""
        if planned.kind == "score":
            return self.store.root / "logs" / "scores.log"
        address = planned.stage.addresses[0]
        return self.store.root / "logs" / f"{address.kind}-{address.key[:12]}-{address.folder}.log"

    def _finish(self, stage: PlannedStage, outcome: Outcome) -> None:
        self._counts[outcome.status] = self._counts.get(outcome.status, 0) + 1
        if outcome.status == "failed":
            self._failures.append(Failure(stage, outcome.message, self.log_of(stage)))
        self._monitor.finished(stage, outcome)
        event = StageEvent(
            str(stage.stage.addresses[0]), stage.kind, stage.label, outcome.status, outcome.seconds, outcome.message
        )
        self.registry.observe(event, self.report)


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
    )


def choose_engine(engine: Engine | None, *, jobs: int | None = None, inline: bool = False) -> Engine:
    """Return the suite's engine with the command line's wishes."""
    if inline:
        return Inline()
    chosen: Any = engine or Local()
    if jobs is not None and "jobs" in {field.name for field in fields(chosen)}:
        chosen = replace(chosen, jobs=jobs)
    return cast(Engine, chosen)


@contextlib.contextmanager
def _signals(end: Callable[[], None], stopped_by: list[int]) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into a clean stop; a second one ends the process at once."""

    def stop(signum: int, frame: types.FrameType | None) -> None:
        if stopped_by:
            os._exit(128 + signum)
        stopped_by.append(signum)
        end()
        # Not print: the signal may have come in the middle of one, which must not be entered twice.
        os.write(2, b"\nstopping: running stages write a checkpoint (again to end at once)\n")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
