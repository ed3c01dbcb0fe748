"""What a job on a node sees, compared with what this machine sees."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from detached_engine import Detached

from bpcbench.records import Task
from bpcbench.running.examination import examine
from bpcbench.running.sight import Sight, differences, look
from bpcbench.store.store import Store

HERE = Sight(
    host="login",
    python="/env/bin/python",
    versions={"bpcbench": "0.1.0", "torch": "2.6.0"},
    plugins={"vbpc": "bpcbench 0.1.0", "mine": "my-method 1.0"},
    cpus=8,
    gpus=("A100",),
    hidden=None,
    data=True,
    seen="a word",
    time=1000.0,
)


@pytest.mark.parametrize(
    ("change", "gpus", "said"),
    [
        ({}, 1, []),
        ({"seen": "No such file or directory"}, 0, ["n1 does not see what was just written into the store"]),
        (
            {"versions": {"bpcbench": "0.2.0"}},
            0,
            ["bpcbench is 0.2.0 on n1, 0.1.0 here", "torch is not installed on n1"],
        ),
        ({"plugins": {"vbpc": "bpcbench 0.1.0"}}, 0, ["plugin mine is 'not installed' on n1, 'my-method 1.0' here"]),
        ({"gpus": (), "hidden": ""}, 1, ["torch sees no GPU on n1, though one was asked for"]),
        ({"gpus": ()}, 0, []),
        ({"data": False}, 0, ["the data folder is not on n1"]),
        ({"time": 1300.0}, 0, ["the clock of n1 is off by +300 s"]),
    ],
)
def test_differences_say_what_to_do(change: dict[str, object], gpus: float, said: list[str]) -> None:
    there = dataclasses.replace(HERE, host="n1", **change)  # type: ignore[arg-type]
    found = list(differences(HERE, there, gpus=gpus))
    assert len(found) == len(said)
    for sentence, start in zip(found, said, strict=True):
        assert sentence.startswith(start)


def test_a_job_sees_the_store_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(tmp_path / "store")
    found = examine(Detached(), store.root, tmp_path, gpus=0, seconds=60, report=print)
    assert found.problems == ()
    assert found.sight is not None
    assert found.sight.versions["bpcbench"]
    assert not list((store.root / "scratch").rglob("*.json"))


def test_a_store_that_the_node_does_not_see_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker writes where this machine does not look."""
    to_json = Task.to_json
    elsewhere = Store.open(tmp_path / "elsewhere").root
    (elsewhere / "scratch" / "doctor").mkdir(parents=True)
    monkeypatch.setattr(Task, "to_json", lambda task: {**to_json(task), "store": str(elsewhere)})
    monkeypatch.setattr("bpcbench.running.examination.SETTLE_SECONDS", 0.5)
    store = Store.open(tmp_path / "store")
    found = examine(Detached(), store.root, tmp_path, gpus=0, seconds=60, report=print)
    assert found.sight is None
    (problem,) = found.problems
    assert f"left nothing in {store.root}" in problem
    assert "the nodes do not see this folder" in problem


def test_this_process_sees_itself(tmp_path: Path) -> None:
    task = Task("x", "examination", "k", 0, {}, "", tmp_path, tmp_path, "a", tmp_path / "log")
    assert "No such file" in look(task, devices=False).seen
