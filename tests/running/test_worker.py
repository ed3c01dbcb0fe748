"""Worker processes as their parent sees them, and as a command that any engine may start."""

from __future__ import annotations

import contextlib
import json
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from plain_stages import planned
from toy_runs import until

from bpcbench.records import Ended, RunInfo, Task
from bpcbench.running.engines import Inline, Local
from bpcbench.running.local import LocalPool
from bpcbench.running.run import make_task
from bpcbench.running.worker import _NO_SERVER, Worker, death
from bpcbench.session import Session
from bpcbench.store.store import Store
from bpcbench.testing.engines import Bench, EngineConformance


def test_two_threads_ask_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every start of a process asks it of all others, in whatever thread it is, and the answer comes only once."""
    read = multiprocessing.forkserver.read_signed

    def slowly(descriptor: int) -> int:
        time.sleep(0.2)
        return read(descriptor)

    worker = Worker()
    try:
        monkeypatch.setattr(multiprocessing.forkserver, "read_signed", slowly)
        os.kill(worker.process.pid, signal.SIGKILL)
        with ThreadPoolExecutor(3) as threads:
            found = [threads.submit(worker.process.join) for _ in range(3)]
            assert [one.result() for one in found] == [None] * 3
        assert worker.process.exitcode == -signal.SIGKILL
    finally:
        worker.close(kill=True)


def test_a_worker_dies_with_its_parent_where_the_kernel_does_not_help() -> None:
    """On macOS there is no F_SETSIG: a thread sees that the parent's end of the pipe is closed."""
    script = """
import fcntl, os, sys, time
del fcntl.F_SETSIG
from bpcbench.running.worker import _die_with_parent
_die_with_parent(0)
print(os.getpid(), flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    assert int(process.stdout.readline()) == process.pid
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(5) == 70


def test_slots_where_the_system_does_not_tell_the_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    info = RunInfo(store=Path(), run="r", threads=5)
    assert Local().open(info).slots == 2
    assert Local(jobs=7).open(info).slots == 7


def test_an_idle_worker_that_died_is_not_used_again(tmp_path: Path) -> None:
    """What one task left behind must not cost the next one its attempt."""
    pool = LocalPool(RunInfo(store=tmp_path, run="r"), slots=1, reuse="always")
    try:
        pids = []
        for _ in range(2):
            assert pool.submit(score(tmp_path))
            assert not pool.submit(score(tmp_path)), "there is one slot"
            pids.append(next(iter(pool._running.values())).worker.process.pid)
            (ended,) = events(pool)
            assert (ended.status, ended.lost) == ("failed", False)
            assert "was removed" in ended.message
        assert pids[0] == pids[1]
        os.kill(pids[0], signal.SIGKILL)
        until(lambda: not pool._idle[0][1].process.is_alive(), 5)
        assert pool.submit(score(tmp_path))
        (ended,) = events(pool)
        assert "was removed" in ended.message
    finally:
        pool.close()


class FakeWorker:
    """A worker that is never started; it keeps the task it was sent."""

    sent: ClassVar[list[Task]] = []

    def __init__(self, preload: tuple[str, ...]) -> None:
        self.process = types.SimpleNamespace(is_alive=lambda: False)

    def send(self, task: Task) -> None:
        self.task = task
        self.sent.append(task)

    def ready(self) -> list[Any]:
        return []

    def events(self) -> Iterator[Ended]:
        if self.task.attempt == self.sent[0].attempt:
            yield Ended(self.task.attempt, "done")

    def close(self, *, kill: bool = False) -> None:
        pass


def test_tasks_share_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each sees one GPU; one that finds no room waits until a share is free, others that need none do not."""
    monkeypatch.setattr("bpcbench.running.local.Worker", FakeWorker)
    monkeypatch.setattr(FakeWorker, "sent", [])
    monkeypatch.setattr("bpcbench.running.gpus.visible_gpus", lambda: ("3", "5"))
    pool = Local(jobs=9).open(RunInfo(store=tmp_path, run="r"))

    def submit(gpus: float) -> bool:
        stage = planned("k", gpus=gpus)
        return pool.submit(make_task(stage, tmp_path, tmp_path, log=tmp_path / "log"))

    assert [submit(gpus) for gpus in (0.5, 0.5, 2.0, 0.5, 0.0)] == [True, True, True, False, True]
    assert [task.visible for task in FakeWorker.sent] == ["3", "3", "5", ""]
    assert [event.attempt for event in pool.wait(0)] == [FakeWorker.sent[0].attempt]
    assert submit(0.5)
    assert FakeWorker.sent[-1].visible == "3"


def events(pool: LocalPool) -> list[Ended]:
    """Wait until something has ended."""
    while not (ended := [event for event in pool.wait(10) if isinstance(event, Ended)]):
        pass
    return ended


def score(folder: Path) -> Task:
    return make_task(planned("k", score=True), folder / "store", folder, log=folder / "log")


def task(folder: Path) -> Task:
    return make_task(planned("k"), folder / "store", folder, log=folder / "log")


@pytest.mark.parametrize(
    ("code", "message", "lost"),
    [
        (-signal.SIGKILL, "the worker was killed by SIGKILL (out of memory?)", True),
        (-signal.SIGTERM, "the worker was killed by SIGTERM", True),
        (-signal.SIGSEGV, "the worker was killed by SIGSEGV", False),
        (3, "the worker ended with code 3 before it answered", False),
        (_NO_SERVER, "the process that starts workers was killed", True),
    ],
)
def test_which_deaths_are_nobodys_fault(tmp_path: Path, code: int, message: str, lost: bool) -> None:
    ended = death(task(tmp_path), code)
    assert (ended.status, ended.message, ended.lost) == ("failed", message, lost)
    assert message in (tmp_path / "log").read_text()


@dataclass
class Command:
    """The worker's command line for the coreset of a suite with one probe."""

    bench: Bench
    task: Task

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        file = self.bench.folder / "task.json"
        file.write_text(json.dumps(self.task.to_json()))
        command = [sys.executable, "-m", "bpcbench.running.worker", str(file), *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)

    def outcome(self) -> Ended:
        return Ended.from_json(json.loads(self.task.outcome_file.read_text()))


@contextlib.contextmanager
def probe(folder: Path, **options: Any) -> Iterator[Command]:
    """Make what a probe needs and return the command that executes it."""
    tested = EngineConformance()
    tested.plugin = Inline()  # type: ignore[misc]
    with tested.bench(folder) as bench:
        bench.write({"good": {"number": 2}})
        assert bench.run().exit_code == 0
        bench.write({"a": {"number": 1, **options}})
        stages = Session(str(bench.suite), out=bench.out).plan().to_do()
        coreset = next(stage for stage in stages if stage.kind == "coreset")
        yield Command(bench, make_task(coreset, bench.out, folder, log=folder / "worker.log"))


def test_the_command_executes_a_task(tmp_path: Path) -> None:
    """Its output goes to the log, its outcome to a file; a second time it is cached."""
    with probe(tmp_path) as command:
        for status in ("done", "cached"):
            worker = command.start()
            assert worker.communicate(timeout=60)[0] == ""
            assert worker.returncode == 0
            assert command.outcome().status == status
            assert command.outcome().attempt == command.task.attempt
        assert len(command.bench.journal("begin", "1")) == 1


def test_the_command_reports_a_failure(tmp_path: Path) -> None:
    with probe(tmp_path, behaviour="raise") as command:
        assert command.start().wait(60) == 1
        assert (command.outcome().status, command.outcome().message) == ("failed", "LookupError: as asked")
        assert "LookupError: as asked" in command.task.log.read_text()


def test_the_command_reports_that_another_process_is_at_work(tmp_path: Path) -> None:
    with probe(tmp_path) as command, Store.open(command.task.store).lock(command.task.id):
        assert command.start().wait(60) == 75
        assert command.outcome().status == "busy"


@pytest.mark.parametrize("numbers", [(signal.SIGTERM,), (signal.SIGINT,), (signal.SIGINT, signal.SIGTERM)])
def test_the_command_stops_with_a_checkpoint(tmp_path: Path, numbers: tuple[signal.Signals, ...]) -> None:
    with probe(tmp_path, steps=500, pace=0.05) as command:
        worker = command.start()
        until(lambda: len(command.bench.journal("step")) > 2)
        for number in numbers:
            worker.send_signal(number)
        assert worker.wait(10) == 143
        assert command.outcome().status == "stopped"
        assert len(command.bench.checkpoints()) == 1


def test_the_command_stops_outside_of_a_loop(tmp_path: Path) -> None:
    with probe(tmp_path, behaviour="sleep") as command:
        worker = command.start()
        until(lambda: command.bench.journal("begin", "1"))
        worker.terminate()
        worker.terminate()
        assert worker.wait(10) == 143
        assert command.outcome().status == "stopped"


def test_the_command_ends_with_its_parent_if_asked_to(tmp_path: Path) -> None:
    with probe(tmp_path, behaviour="sleep") as command:
        worker = command.start("--bound", stdin=subprocess.PIPE)
        until(lambda: command.bench.journal("begin", "1"))
        assert worker.stdin is not None
        worker.stdin.close()
        assert worker.wait(10) in (70, -signal.SIGKILL)


@pytest.mark.parametrize("text", [None, "{", "{}", "[1]"])
def test_the_command_refuses_what_is_not_a_task(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "task.json"
    if text is not None:
        file.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "bpcbench.running.worker", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f"{file} is not a task: " in done.stderr
    assert "Traceback" not in done.stderr


def test_records_survive_json(tmp_path: Path) -> None:
    ended = Ended("a", "failed", "message", 1.5, ("one", "two"), lost=True)
    assert Ended.from_json(json.loads(json.dumps(ended.to_json()))) == ended
    chosen = task(tmp_path)
    assert Task.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen
