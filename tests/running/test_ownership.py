"""Runs that share a store and a detached engine: an attempt belongs to one of them, and passes on when that is gone."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import toys
from detached_engine import Detached, DetachedPool
from plain_stages import planned

import bpcbench
from bpcbench.errors import UserError
from bpcbench.records import Task
from bpcbench.running.ownership import Ownership
from bpcbench.running.run import Runner, make_task
from bpcbench.session import Session
from bpcbench.store.store import Store


def left_by(run: str, folder: Path) -> Task:
    return make_task(planned("a"), folder, folder, log=folder / "log", run=run)


@contextlib.contextmanager
def living(folder: Path, run: str) -> Iterator[None]:
    """A run in another process, which is killed in the end."""
    pid = os.fork()
    if pid == 0:
        try:
            Ownership(folder, run).begin()
            signal.pause()
        finally:
            os._exit(0)
    try:
        while not list(folder.glob(f"runs/{run}/lease-*")):
            pass
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_an_attempt_of_a_living_run_is_left_to_it(tmp_path: Path) -> None:
    task = left_by("first", tmp_path)
    second, third = (Ownership(tmp_path / "owners", name) for name in ("second", "third"))
    with living(tmp_path / "owners", "first"):
        second.begin()
        assert not second.claim(task)
    assert second.claim(task)
    assert second.claim(task), "it stays its own"
    second.forget(task.attempt)
    second.end()
    assert third.claim(task), "nobody is left who owns it"


def test_two_successors_do_not_both_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = left_by("gone", tmp_path)
    second, third = (Ownership(tmp_path / "owners", name) for name in ("second", "third"))
    # Both have found that the owner is gone before either has claimed.
    monkeypatch.setattr(Ownership, "_claim", lambda *_: None)
    assert [second.claim(task), third.claim(task)] == [True, False]


def test_a_pool_can_ask_whose_an_attempt_is(install: Any, write_suite: Any, tmp_path: Path) -> None:
    """The pool of a detached engine gets the run's `claim`, which refuses the attempts of a run that lives."""
    said: list[bool] = []

    @dataclass(frozen=True)
    class Asking(Detached):
        name = "asking"

        def open(self, run: bpcbench.RunInfo) -> bpcbench.Pool:
            class AskingPool(DetachedPool):
                def adopt(self) -> list[Task]:
                    said.extend(run.claim(left_by(owner, tmp_path)) for owner in ("other", "gone"))
                    return []

            return AskingPool(run.folder(self.name), 1)

    install(toys)
    session = Session(write_suite(toys.TOYS), out=tmp_path / "out", track=False, quiet=True)
    prepared = session.prepare()
    store = Store.open(prepared.out)
    engine = Asking()
    with living(bpcbench.RunInfo(store.root, "other").folder(engine.name), "other"):
        Runner(prepared.registry, prepared.plan, store, prepared.data, engine, report=lambda text: None).run()
    assert said == [False, True]


def test_an_engine_that_cannot_be_left_is_refused(install: Any, write_suite: Any, tmp_path: Path) -> None:
    install(toys)
    session = Session(write_suite(toys.TOYS), out=tmp_path / "out", detach=True)
    with pytest.raises(UserError, match=r"--detach: stages of the engine local end with the run .*slurm"):
        session.run()
    assert not (tmp_path / "out").exists()
