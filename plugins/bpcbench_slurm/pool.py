"""The pool of the engine `slurm`.

A job is known by the path of its script, which names the attempt: numbers of jobs are used again when a controller was
killed. Outcomes come from the store; the queue says when there will be none.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bpcbench import Ended, Requeued, RunInfo, Started, Task
from bpcbench_slurm import request
from bpcbench_slurm.controller import Away, Controller, Full, Job

if TYPE_CHECKING:
    from bpcbench_slurm.engine import Slurm

TICK_SECONDS = 0.2
"""How often outcomes are looked for."""
FIRST_LOOK_SECONDS = 0.5
"""The time between two looks at the queue while something happens; it grows while nothing does."""
SETTLE_SECONDS = 3.0
"""How long the outcome of a job that is over may take to appear on a shared file system."""
MISSING_SECONDS = 6.0
"""How long a job that is not in the queue may take to appear there, before it counts as lost."""
_REASONS = {
    "BOOT_FAIL": "its node could not be started",
    "DEADLINE": "its deadline has passed",
    "NODE_FAIL": "its node failed",
    "OUT_OF_MEMORY": "it used more memory than it had asked for (option memory of the engine)",
    "PREEMPTED": "it was preempted and not requeued",
    "TIMEOUT": "it reached its time limit before it could write a checkpoint (option time of the engine)",
}
_HELD = re.compile(r"launch[ _]failed[ _]requeued[ _]held|JobHoldMaxRequeue", re.IGNORECASE)
"""Why Slurm holds a job for good that it could not start."""
_USUAL = frozenset({"None", "Priority", "Resources", "Dependency", "BeginTime", "(null)", "", "Cleaning", "Prolog"})
"""Reasons to wait that end by themselves."""
Event = Started | Requeued | Ended


@dataclass
class _Attempt:
    task: Task
    since: float
    submitted: bool
    running: bool = False
    over_since: float | None = None
    missing_since: float | None = None


class SlurmPool:
    """Jobs for attempts. Every call to Slurm that finds the controller away is made again later."""

    def __init__(self, engine: Slurm, run: RunInfo, controller: Controller, slots: int) -> None:
        self.slots = slots
        self._engine, self._run, self._controller = engine, run, controller
        self._folder = run.folder("slurm")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._attempts: dict[str, _Attempt] = {}
        self._news: list[Event] = []
        self._stopping: set[str] = set()
        self._killing: set[str] = set()
        self._to_signal: set[str] = set()
        self._away = False
        self._told: set[str] = set()
        self._pause = FIRST_LOOK_SECONDS
        self._next_look = 0.0
        # Fails here, with Slurm's own words, if this machine has no cluster.
        self._queue()

    @property
    def undelivered(self) -> int:
        """The number of attempts that the controller has not taken yet, because it is away."""
        return sum(not attempt.submitted for attempt in self._attempts.values())

    def adopt(self) -> Iterable[Task]:
        """Return the tasks that earlier runs have left; the jobs and files of a run that lives are left alone."""
        for file in sorted(self._folder.glob("*.json")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                task = Task.from_json(json.loads(file.read_text()))
                if self._run.claim(task):
                    self._attempts[task.attempt] = _Attempt(task, time.monotonic(), submitted=True)
        return [attempt.task for attempt in self._attempts.values()]

    def submit(self, task: Task) -> bool:
        """Submit a job, or do so later if the controller is away."""
        if request.gpu_count(self._engine, task) == 0:
            task = replace(task, visible="")
        file = self._file(task, "json")
        file.write_text(json.dumps(task.to_json()))
        self._file(task, "sh").write_text(request.script(self._engine, task, file))
        task.log.parent.mkdir(parents=True, exist_ok=True)
        attempt = _Attempt(task, time.monotonic(), submitted=False)
        try:
            if not self._away:
                self._sbatch(attempt)
        except Full as full:
            self._tidy(task)
            self._tell(f"Slurm takes no more jobs for now: {full}")
            return False
        except BaseException:
            self._tidy(task)
            raise
        self._attempts[task.attempt] = attempt
        self._soon()
        return True

    def _sbatch(self, attempt: _Attempt) -> None:
        task = attempt.task
        chosen = request.words(request.options(self._engine, task, self._run.grace))
        try:
            self._controller.submit(chosen, self._file(task, "sh"))
        except Away as away:
            # It may have been taken all the same; the queue will tell.
            self._note_away(away)
        else:
            attempt.submitted, attempt.since = True, time.monotonic()

    def wait(self, seconds: float) -> Iterable[Event]:
        """Return what has happened: outcomes in the store first, then what the queue says."""
        end = time.monotonic() + seconds
        while True:
            self._collect_outcomes()
            now = time.monotonic()
            if now >= self._next_look:
                self._look()
            if self._news or now >= end:
                break
            time.sleep(max(0.0, min(TICK_SECONDS, end - time.monotonic())))
        news, self._news = self._news, []
        return news

    def stop(self, attempts: Collection[str]) -> None:
        """Cancel what waits; what runs gets SIGTERM, and time to write a checkpoint."""
        self._stopping |= set(attempts) & self._attempts.keys()
        self._to_signal |= set(attempts) & self._attempts.keys()
        self._signal()

    def kill(self, attempts: Collection[str]) -> None:
        """Cancel, and send SIGKILL."""
        self._killing |= set(attempts) & self._attempts.keys()
        self._to_signal |= set(attempts) & self._attempts.keys()
        self._signal()

    def close(self) -> None:
        """Leave everything as it is."""

    def _collect_outcomes(self) -> None:
        folder = self._run.store / "scratch" / "outcomes"
        try:
            found = {path.stem for path in folder.iterdir() if path.suffix == ".json"}
        except OSError:
            return
        for name in found & self._attempts.keys():
            attempt = self._attempts[name]
            # A job that was told to stop may have been preempted: then it runs again, and the queue knows.
            if name in self._stopping or attempt.over_since is not None or _status(attempt.task) != "stopped":
                self._ended(Ended(name))

    def _look(self) -> None:
        jobs = self._queue()
        now = time.monotonic()
        before = len(self._news)
        if jobs is not None:
            for name, attempt in list(self._attempts.items()):
                self._judge(name, attempt, jobs.get(name), now)
            if self._to_signal:
                self._signal(jobs)
        self._pause = FIRST_LOOK_SECONDS if len(self._news) > before else min(self._pause * 1.5, self._engine.poll)
        self._next_look = time.monotonic() + self._pause

    def _judge(self, name: str, attempt: _Attempt, job: Job | None, now: float) -> None:
        if job is None:
            self._absent(name, attempt, now)
            return
        attempt.submitted, attempt.missing_since = True, None
        if not job.over and _HELD.match(job.reason):
            self._withdraw(name, job)
        elif job.over:
            if attempt.over_since is None:
                attempt.over_since = now
                self._soon()
            late = now - attempt.over_since > SETTLE_SECONDS
            if attempt.task.outcome_file.exists() or name in self._stopping | self._killing or late:
                self._ended(self._end_of(name, attempt, job))
        elif job.state in ("RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT"):
            if not attempt.running and job.state == "RUNNING":
                attempt.running = True
                self._news.append(Started(name))
        else:
            if attempt.running:
                attempt.running = False
                attempt.task.outcome_file.unlink(missing_ok=True)
                self._news.append(Requeued(name))
                self._tell(f"{attempt.task.kind} {attempt.task.label} was requeued by Slurm")
            if job.reason not in _USUAL:
                self._tell(f"{attempt.task.kind} {attempt.task.label} waits: {job.reason}")

    def _withdraw(self, name: str, job: Job) -> None:
        """Cancel a job that Slurm could not start and would hold for ever; the stage gets another one."""
        try:
            self._controller.cancel([job.id])
        except Away as away:
            self._note_away(away)
        else:
            stopped = name in self._stopping | self._killing
            reason = f"Slurm could not start its job {job.id} ({job.reason})"
            self._ended(Ended(name, "stopped", "stopped") if stopped else Ended(name, "failed", reason, lost=True))

    def _absent(self, name: str, attempt: _Attempt, now: float) -> None:
        if name in self._stopping and not attempt.submitted:
            self._ended(Ended(name, "stopped", "stopped"))
        elif not attempt.submitted:
            with contextlib.suppress(Full):
                self._sbatch(attempt)
        elif attempt.missing_since is None:
            attempt.missing_since = now
        elif now - max(attempt.missing_since, attempt.since) > MISSING_SECONDS:
            # Taken by a controller that was killed before it had written that down, or over for long.
            self._ended(Ended(name, message="its job is not in Slurm's queue any more"))

    def _end_of(self, name: str, attempt: _Attempt, job: Job) -> Ended:
        if job.state == "CANCELLED" and _status(attempt.task) in ("stopped", None):
            if name in self._stopping | self._killing:
                return Ended(name, "stopped", "stopped")
            return Ended(name, "failed", f"its job {job.id} was cancelled")
        if _status(attempt.task) is not None:
            return Ended(name)
        if job.state == "OUT_OF_MEMORY":
            return Ended(name, "failed", _REASONS[job.state], out_of_memory=True)
        # Whoever asks for more than it gets is killed without a word where Slurm watches over memory itself.
        reason = _REASONS.get(job.state, f"its job {job.id} ended as {job.state} without an outcome; see the log")
        return Ended(name, "failed", reason, lost=True)

    def _signal(self, jobs: dict[str, Job] | None = None) -> None:
        """Send what has to be sent to the jobs of those attempts; again later if the controller is away."""
        jobs = self._queue() if jobs is None else jobs
        if jobs is None:
            return
        chosen = {name: jobs[name].id for name in self._to_signal if name in jobs and not jobs[name].over}
        stopped = [number for name, number in chosen.items() if name not in self._killing]
        killed = [number for name, number in chosen.items() if name in self._killing]
        try:
            # In this order: one that starts meanwhile is met by the second call.
            self._controller.cancel(stopped, "--state=PENDING")
            self._controller.cancel(stopped, "--batch", "--signal=TERM")
            self._controller.cancel(killed)
            self._controller.cancel(killed, "--full", "--signal=KILL")
        except Away as away:
            self._note_away(away)
        else:
            # One that is not in the queue yet is met later.
            self._to_signal -= chosen.keys() | (self._to_signal - self._attempts.keys())
        self._soon()

    def _queue(self) -> dict[str, Job] | None:
        """Return the latest job of each attempt, or None if the controller is away."""
        try:
            listed = self._controller.jobs()
        except Away as away:
            self._note_away(away)
            return None
        if self._away:
            self._away = False
            self._run.report("Slurm's controller answers again")
        found: dict[str, Job] = {}
        for job in listed:
            path = Path(job.script)
            if path.suffix != ".sh" or path.parent != self._folder:
                continue
            # Submitted twice, if the answer to the first was lost: the one that may still run counts.
            if path.stem not in found or found[path.stem].over:
                found[path.stem] = job
        return found

    def _note_away(self, away: Away) -> None:
        if not self._away:
            self._away = True
            self._run.report(f"Slurm's controller does not answer; waiting for it ({away})")

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._run.report(text)

    def _ended(self, event: Ended) -> None:
        attempt = self._attempts.pop(event.attempt, None)
        if attempt is not None:
            self._tidy(attempt.task)
            self._stopping.discard(event.attempt)
            self._killing.discard(event.attempt)
            self._to_signal.discard(event.attempt)
            self._news.append(event)

    def _tidy(self, task: Task) -> None:
        for suffix in ("json", "sh"):
            self._file(task, suffix).unlink(missing_ok=True)

    def _file(self, task: Task, suffix: str) -> Path:
        return self._folder / f"{task.attempt}.{suffix}"

    def _soon(self) -> None:
        self._pause = FIRST_LOOK_SECONDS
        self._next_look = min(self._next_look, time.monotonic() + FIRST_LOOK_SECONDS)


def _status(task: Task) -> str | None:
    """Return the status that the worker left, or None."""
    try:
        return str(json.loads(task.outcome_file.read_text())["status"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
