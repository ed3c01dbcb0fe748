"""One tiny job on an engine, and what it saw: for `bpcbench doctor --engine`."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bpcbench.api import Engine, Pool
from bpcbench.errors import BpcbenchError
from bpcbench.records import Ended, Resources, RunInfo, Started, Task
from bpcbench.running.sight import Sight, differences, look, question_file, read_sight, sight_file

SETTLE_SECONDS = 10.0
"""How long a shared file system may take to show what a node has written."""


@dataclass(frozen=True)
class Examination:
    """What the job saw, if it left word, and what is wrong."""

    sight: Sight | None
    seconds: float
    problems: tuple[str, ...]


def examine(
    engine: Engine, store: Path, data: Path, *, gpus: float, seconds: float, report: Callable[[str], None]
) -> Examination:
    """Run a tiny job that asks for GPUs or none, and compare what it sees with what this process sees."""
    task = Task(
        id=f"examination:{uuid.uuid4().hex[:12]}",
        kind="examination",
        key=uuid.uuid4().hex,
        body_version=0,
        stage={},
        label="of doctor",
        store=store,
        data=data.absolute(),
        attempt=uuid.uuid4().hex[:12],
        log=store / "logs" / "doctor.log",
        resources=Resources(gpus=gpus),
        run=uuid.uuid4().hex,
    )
    sight_file(task).parent.mkdir(parents=True, exist_ok=True)
    question_file(task).write_text(uuid.uuid4().hex)
    begin = time.monotonic()
    try:
        ended = _run(replace(engine, jobs=1), task, seconds, report)
        there = read_sight(task)
        waited = time.monotonic()
        while there is None and ended == Ended(task.attempt) and time.monotonic() - waited < SETTLE_SECONDS:
            time.sleep(0.2)
            there = read_sight(task)
        took = time.monotonic() - begin
        if there is None:
            return Examination(None, took, (_silence(engine, task, ended),))
        here = look(task, devices=False)
        return Examination(there, took, tuple(differences(here, there, gpus=gpus)))
    except BpcbenchError as error:
        return Examination(None, time.monotonic() - begin, (str(error),))
    finally:
        for file in (sight_file(task), question_file(task), task.outcome_file):
            file.unlink(missing_ok=True)


def _run(engine: Engine, task: Task, seconds: float, report: Callable[[str], None]) -> Ended | str:
    """Return how the job ended, or how far it came in that time."""
    pool = engine.open(RunInfo(store=task.store, run=task.run, report=report))
    state = "was not taken"
    try:
        end = time.monotonic() + seconds
        taken = False
        while time.monotonic() < end:
            taken = taken or pool.submit(task)
            for event in pool.wait(0.25):
                if event.attempt != task.attempt:
                    continue
                if isinstance(event, Ended):
                    state = ""
                    return event
                state = "was running" if isinstance(event, Started) else "was waiting"
            if taken and state == "was not taken":
                state = "was waiting"
        return state
    except BaseException:
        state = "was broken off"
        raise
    finally:
        with contextlib.suppress(Exception):
            if state:
                _end(pool, task)
            pool.close()


def _end(pool: Pool, task: Task) -> None:
    """See to it that nothing of the job is left."""
    pool.kill([task.attempt])
    end = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < end and not any(isinstance(event, Ended) for event in pool.wait(0.1)):
        pass


def _silence(engine: Engine, task: Task, ended: Ended | str) -> str:
    if isinstance(ended, str):
        return f"the job {ended} when the time was up"
    if ended.status == "failed" and not ended.lost:
        return f"the job failed: {ended.message}"
    said = f" ({ended.message})" if ended.message else ""
    return (
        f"the job left nothing in {task.store}{said}: the nodes do not see this folder, or bpcbench is not installed "
        f"for the Python there; see {task.log}, on the node if it is not here"
    )
