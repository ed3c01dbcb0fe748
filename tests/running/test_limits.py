"""Runs with little: few open files, little memory, processes that cannot be started."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from plain_stages import planned
from toy_runs import Toy

from bpcbench.records import RunInfo
from bpcbench.running import local
from bpcbench.running.run import make_task
from bpcbench.store import provenance


def _limited(toy: Toy, limit: str, *words: str) -> tuple[int, str]:
    """Run the suite in a shell with a limit; return the exit code and what was printed."""
    run = [sys.executable, "-m", "bpcbench", "run", str(toy.suite), "--out", str(toy.out), "--no-mlflow", *words]
    toy.folder.joinpath("limited.sh").write_text(f"{limit}\nexec {' '.join(run)}\n")
    done = toy.command(["bash", str(toy.folder / "limited.sh")])
    return done.returncode, done.stdout


@pytest.mark.campaign
@pytest.mark.parametrize("limit", ["ulimit -n 64", "ulimit -v 1200000", "ulimit -v 250000"])
def test_a_run_with_little_ends_with_results_or_a_sentence(limit: str, toy: Toy) -> None:
    toy.write("[toy-adam]", evaluators="classification, toy-shifted")
    code, said = _limited(toy, limit, "--jobs", "2")
    assert "EOFError" not in said
    if code == 0:
        assert "acc" in said
    elif "ulimit -v 250000" not in limit:  # there Python itself cannot load its libraries
        assert code == 1, said
        assert "Traceback" not in said, said
        assert "to resume: bpcbench run" in said
    assert code == 0 or "ulimit -n" not in limit
    assert toy.all_gone(10)
    toy.run()
    alone = Toy(toy.folder / "alone").write("[toy-adam]", evaluators="classification, toy-shifted")
    alone.run()
    assert toy.results() == alone.results()


def test_what_cannot_be_preloaded_does_not_end_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> Any:
        raise MemoryError

    monkeypatch.setattr(provenance, "versions", none_left)
    monkeypatch.setattr("bpcbench.registry.discovery.registry", none_left)
    sys.modules.pop("bpcbench.running.preloaded", None)
    importlib.import_module("bpcbench.running.preloaded")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (EOFError("unexpected EOF"), "the process that starts workers has ended, as it does when memory is short"),
        (MemoryError(), "there is no memory left"),
        (OSError(24, "Too many open files"), "Too many open files"),
        (ConnectionResetError(), "the process that starts workers has ended"),
    ],
)
def test_why_no_worker_could_be_started(
    error: Exception, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(local, "Worker", refuse)
    pool = local.LocalPool(RunInfo(tmp_path, "run"), slots=1)
    assert pool.submit(make_task(planned("k"), tmp_path, tmp_path, log=tmp_path / "log"))
    (ended,) = pool.wait(0)
    assert (ended.status, ended.message[: ended.message.index(":")]) == ("failed", "no worker could be started")  # type: ignore[union-attr]
    assert words in ended.message  # type: ignore[union-attr]
