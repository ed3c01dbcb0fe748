"""The built-in engines: a process per stage on this machine, or everything in this very process for a debugger."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import Any

from bpcbench.api import Engine, option
from bpcbench.hooks import hookimpl
from bpcbench.records import Status, Task
from bpcbench.running.device import gpu_count, usable_cpus
from bpcbench.running.queue import Execute, Outcome, Work
from bpcbench.running.worker import Worker, note

BPCBENCH_API = 1
GRACE_SECONDS = 30.0
"""How long a stage that is asked to stop may take to write its checkpoint."""


@dataclass
class _Running:
    worker: Worker
    task: Task
    gpu: int | None
    since: float
    ending: str = ""
    kill_at: float = float("inf")


@dataclass(frozen=True)
class Local(Engine):
    """Processes on this machine: one per stage, forked from a server that has the frameworks loaded.

    At most `jobs` stages run at once, and at most as many as fit on the GPUs (`gpus` of a method or an inference may
    be a fraction). A stage that crashes, hangs past its timeout or is killed fails alone.
    """

    name = "local"
    jobs: int | None = option(None, "stages at a time; none: as many as CPU threads allow", key=False)
    gpus: int | None = option(None, "GPUs to use; none: all that are visible", key=False)

    def run(self, work: Work, execute: Execute) -> Iterator[Outcome]:
        """Run the work in worker processes."""
        gpus = [1.0] * (gpu_count() if self.gpus is None else self.gpus)
        running: list[_Running] = []
        preload = tuple(dict.fromkeys(module for stage in work.stages for module in stage.preload))
        try:
            while running or work:
                while len(running) < self.slots(_threads(work)):
                    task = work.take(lambda task: _gpu(task, gpus) is not None)
                    if task is None:
                        break
                    try:
                        running.append(_start(task, gpus, preload))
                    except (OSError, EOFError) as error:
                        yield Outcome(task.id, "failed", message=f"no worker could be started: {error!r}")
                if running:
                    wait([item for one in running for item in one.worker.ready()], 0.2)
                else:
                    time.sleep(0.05)
                for one in list(running):
                    outcome = _poll(one, work)
                    if outcome is not None:
                        running.remove(one)
                        _release(one, gpus)
                        yield outcome
        finally:
            for one in running:
                one.worker.close(kill=True)

    def slots(self, threads: int) -> int:
        """Return how many stages run at once."""
        if self.jobs is not None:
            return max(1, self.jobs)
        return max(1, usable_cpus() // max(1, threads))


def _threads(work: Work) -> int:
    return work.make_task(work.stages[0]).threads if work.stages else 1


def _gpu(task: Task, gpus: list[float]) -> int | None:
    """Return a GPU with room for the task; -1 if it needs none; None if it has to wait."""
    if not gpus or task.resources.gpus <= 0 or not task.device.startswith(("auto", "cuda")):
        return -1
    return next((i for i, free in enumerate(gpus) if free >= min(task.resources.gpus, 1.0) - 1e-9), None)


def _start(task: Task, gpus: list[float], preload: tuple[str, ...]) -> _Running:
    gpu = _gpu(task, gpus)
    if gpu is not None and gpu >= 0:
        gpus[gpu] -= min(task.resources.gpus, 1.0)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(len(gpus))))).split(",")
        task = replace(task, visible=visible[gpu])
    worker = Worker(preload)
    worker.send(task)
    return _Running(worker, task, gpu, time.monotonic())


def _release(one: _Running, gpus: list[float]) -> None:
    if one.gpu is not None and one.gpu >= 0:
        gpus[one.gpu] += min(one.task.resources.gpus, 1.0)


def _poll(one: _Running, work: Work) -> Outcome | None:
    """Return the outcome of a running task if it has ended; see to timeouts and stops."""
    now = time.monotonic()
    outcome = one.worker.result()
    if outcome is None and now > one.kill_at:
        outcome = Outcome(one.task.id, "failed")
        one.worker.close(kill=True)
    elif outcome is not None:
        one.worker.close()
    if outcome is not None:
        if one.ending and outcome.status in ("failed", "stopped"):
            status: Status = "stopped" if one.ending == "stopped" else "failed"
            return Outcome(outcome.stage, status, now - one.since, one.ending, messages=outcome.messages)
        return replace(outcome, seconds=outcome.seconds or now - one.since)
    if not one.ending:
        limit = one.task.timeout
        if work.stopping:
            one.ending, one.kill_at = "stopped", now + GRACE_SECONDS
        elif one.worker.late():
            one.ending, one.kill_at = f"it took longer than its timeout of {limit:g} s", now + 5.0
        if one.ending:
            note(one.task, one.ending)
            one.worker.terminate()
    return None


@dataclass(frozen=True)
class Inline(Engine):
    """This process, one stage after the other: for pdb, profilers and coverage. Nothing is isolated."""

    name = "inline"

    def run(self, work: Work, execute: Execute) -> Iterator[Outcome]:
        """Run the work here."""
        while work:
            task = work.take(lambda task: True)
            if task is not None:
                yield execute(task)
            elif work.stopping:
                return
            else:
                # Another process is at work on what is left.
                time.sleep(0.1)


@hookimpl
def bpcbench_engines() -> list[type[Any]]:
    """Register the built-in engines."""
    return [Local, Inline]
