"""Runs that share a store and a detached engine: an attempt belongs to one of them, and passes on when that is gone."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import toys
from plain_stages import planned

from bpcbench.errors import UserError
from bpcbench.records import Task
from bpcbench.running.ownership import Ownership
from bpcbench.running.run import make_task
from bpcbench.session import Session


def left_by(run: str, folder: Path) -> Task:
    return make_task(planned("a"), folder, folder, log=folder / "log", run=run)


def test_an_attempt_of_a_living_run_is_left_to_it(tmp_path: Path) -> None:
    task = left_by("first", tmp_path)
    pid = os.fork()
    if pid == 0:
        try:
            Ownership(tmp_path / "owners", "first").begin()
            signal.pause()
        finally:
            os._exit(0)
    second, third = (Ownership(tmp_path / "owners", name) for name in ("second", "third"))
    try:
        while not list((tmp_path / "owners").glob("runs/first/lease-*")):
            pass
        second.begin()
        assert not second.claim(task)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
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


def test_an_engine_that_cannot_be_left_is_refused(install: Any, write_suite: Any, tmp_path: Path) -> None:
    install(toys)
    session = Session(write_suite(toys.TOYS), out=tmp_path / "out", detach=True)
    with pytest.raises(UserError, match=r"--detach: stages of the engine local end with the run .*slurm"):
        session.run()
    assert not (tmp_path / "out").exists()
