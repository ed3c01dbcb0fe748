"""Two workers on one stage on purpose, as after a node is lost whose worker lives on: one writes, the other stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bpcbench.records import Task
from bpcbench.registry.discovery import LOCAL_VARIABLE, registry
from bpcbench.running.engines import Inline
from bpcbench.running.run import make_task
from bpcbench.session import Session
from bpcbench.store.store import Store
from bpcbench.testing.engines import PROBES, Bench

OPTIONS: dict[str, Any] = {"number": 1, "steps": 120}


def worker(bench: Bench, task: Task) -> subprocess.Popen[bytes]:
    """Start a worker whose lease lasts a second."""
    file = bench.folder / f"{task.attempt}.json"
    file.write_text(json.dumps(task.to_json()))
    settings = {"BPCBENCH_LEASE_SECONDS": "3", "BPCBENCH_CHECKPOINT_SECONDS": "0.05"}
    return subprocess.Popen(
        [sys.executable, "-m", "bpcbench.running.worker", str(file)], env={**os.environ, **settings}
    )


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(LOCAL_VARIABLE, PROBES)
    registry.cache_clear()
    made = Bench(tmp_path / "twins", Inline(), 5.0)
    Store.open(made.out)
    yield made
    registry.cache_clear()


def test_the_loser_stops_and_the_results_are_those_of_one(bench: Bench, tmp_path: Path) -> None:
    reference = Bench(tmp_path / "reference", Inline(), 5.0).write({"a": OPTIONS})
    assert reference.run().exit_code == 0
    bench.write({"a": {**OPTIONS, "pace": 0.03}})
    plan = Session(str(bench.suite), out=bench.out).plan()
    fit, distil = (next(p for p in plan.stages if p.kind == kind) for kind in ("prerequisite", "coreset"))
    tasks = [make_task(p, bench.out, tmp_path, log=tmp_path / "log") for p in (fit, distil, distil, distil)]
    assert worker(bench, tasks[0]).wait(60) == 0
    first = worker(bench, tasks[1])
    try:
        wait_for(lambda: bench.checkpoints())
        # It falls silent, but keeps the lock, as a machine without a network would.
        first.send_signal(signal.SIGSTOP)
        assert worker(bench, tasks[2]).wait(60) == 75, "not silent for long enough"
        time.sleep(3.1)
        second = worker(bench, tasks[3])
        wait_for(lambda: len(bench.journal("from", "1")) == 2)
        first.send_signal(signal.SIGCONT)
        assert first.wait(60) == 75, "it must find out that it is not the one any more"
        assert second.poll() is None, "while the other is still at work"
        assert second.wait(60) == 0
    finally:
        first.kill()
    start, again = bench.journal("from", "1")
    assert (start.step, again.step > 0) == (0, True)
    assert len(bench.journal("end", "1")) == 1
    assert bench.run().exit_code == 0
    assert bench.results() == reference.results()
    assert not list((bench.out / "scratch" / "stages").iterdir())


def test_the_same_attempt_started_again_has_a_folder_of_its_own(bench: Bench, tmp_path: Path) -> None:
    """A cluster starts a lost job again under the same name, while its first process may live on."""
    bench.write({"a": {**OPTIONS, "pace": 0.03}})
    plan = Session(str(bench.suite), out=bench.out).plan()
    fit, distil = (next(p for p in plan.stages if p.kind == kind) for kind in ("prerequisite", "coreset"))
    tasks = [make_task(p, bench.out, tmp_path, log=tmp_path / "log") for p in (fit, distil)]
    assert worker(bench, tasks[0]).wait(60) == 0
    first = worker(bench, tasks[1])
    wait_for(lambda: bench.checkpoints())
    first.kill()
    first.wait()
    second = worker(bench, tasks[1])
    wait_for(lambda: len(bench.journal("from", "1")) == 2)
    scratch = bench.out / "scratch" / "stages"
    assert {path.parent.name for path in scratch.glob("*/*/events.jsonl")} >= {f"{tasks[1].attempt}.1"}
    assert second.wait(60) == 0
