"""What befalls a run from outside: its store is removed, workers are killed, the clock goes back, handles go stale."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from stored import put
from toy_runs import Toy, until

from bpcbench.cli import main
from bpcbench.store.store import Store

SLOW = "{a: {plugin: toy-loop, steps: 60}, b: {plugin: toy-loop, steps: 61}}"


def same_as_alone(toy: Toy) -> bool:
    """Run what is left, and compare with a run that nothing befell."""
    toy.run()
    alone = Toy(toy.folder / "alone")
    alone.suite.write_text(toy.suite.read_text())
    alone.run()
    return toy.results() == alone.results()


@pytest.mark.campaign
def test_a_store_that_is_removed(toy: Toy) -> None:
    toy.write(SLOW)
    run = toy.start(pace=0.03)
    until(lambda: toy.scratch("*/*/checkpoint-*"))
    # The run renames and removes folders of its own meanwhile.
    until(lambda: shutil.rmtree(toy.out, ignore_errors=True) or not toy.out.exists())
    assert run.wait(60) == 1
    assert toy.all_gone(10)
    assert "was removed while it was used" in toy.output()
    assert "Traceback" not in toy.output()
    assert not list(toy.out.glob("stages/*/*/*")), "nothing is kept in what is no store"
    assert same_as_alone(toy)


@pytest.mark.campaign
def test_a_worker_that_is_killed_again_and_again(toy: Toy) -> None:
    """It is replaced a few times, then its stage fails; the other one is not touched."""
    toy.write(SLOW)
    run = toy.start(pace=0.05)
    killed: set[int] = set()

    def kill_new() -> bool:
        for (pid,) in toy.counted("worker", 60):
            if int(pid) not in killed:
                killed.add(int(pid))
                os.kill(int(pid), signal.SIGKILL)
        return run.poll() is not None

    until(kill_new)
    assert run.wait() == 1
    assert 2 <= len(killed) <= 6
    assert "killed" in toy.output() or "lost" in toy.output()
    assert "Traceback" not in toy.output()
    assert [name for name, *_ in toy.members("coreset")], "the other stage is done"
    assert toy.all_gone(10)
    assert same_as_alone(toy)


@pytest.mark.campaign
def test_a_clock_that_goes_back(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    toy.write(SLOW)
    toy.run(pace=0.005, clock=-20)
    seconds = [value for _, meta, _ in toy.members() for name, value in meta.items() if name.endswith("seconds")]
    assert seconds
    assert min(seconds) >= 0
    capsys.readouterr()
    for words in (["status"], ["report", str(toy.suite), "--costs"], ["store", "list"]):
        assert main([*words, "--out", str(toy.out)]) == 0
    shown = capsys.readouterr()
    assert "ended" in shown.out
    assert " -" not in shown.out.replace(" - ", "")
    assert same_as_alone(toy)


@pytest.mark.parametrize("call", ["lstat", "open"])
def test_what_a_file_server_does_not_give_is_not_taken_for_damaged(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path / "store")
    kept, stale = put(store, name="kept"), put(store, name="stale")
    real = getattr(os, call)

    def handle(path: Any, *arguments: Any, **options: Any) -> Any:
        if stale.key in str(path) and "stage.json" in str(path):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, handle)
        reader = Store.open(store.root)
        assert reader.has(kept)
        if call == "open":
            assert not reader.has(stale)
            assert "Stale file handle" in reader.messages[0]
            assert "set aside" not in reader.messages[0]
    assert store.path(stale).is_dir()
    assert Store.open(store.root).has(stale)
    assert json.loads((store.path(stale) / "stage.json").read_text())["label"] == "stale"
