"""The options of the engine `ray`, what it says without Ray, and its actor in this process: no Ray is needed."""

from __future__ import annotations

import importlib.util
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bpcbench import RunInfo
from bpcbench.errors import EngineError
from bpcbench_ray import actor, head
from bpcbench_ray.actor import StageActor
from bpcbench_ray.engine import RayEngine


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpus": -1}, "gpus: expected a number, got -1"),
        ({"overrides": {"vbpc": {"gpu": 1}}}, "overrides.vbpc.unknown option 'gpu'; did you mean 'gpus'?"),
        ({"overrides": {"vbpc": 1}}, "overrides.vbpc: expected a mapping"),
        ({"overrides": {"vbpc": {"memory": "32G"}}}, "overrides.vbpc.memory: expected GB, got '32G'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("?", r"\?").replace(".", r"\.")):
        RayEngine(**options)  # type: ignore[arg-type]


def test_without_ray_the_message_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r'pip install "bpcbench\[ray\]"'):
        RayEngine().open(RunInfo(store=tmp_path, run="r"))


class Actor(StageActor):
    """An actor that says when its process would end."""

    def __init__(self, *arguments: object) -> None:
        self.left = threading.Event()
        super().__init__(*arguments)  # type: ignore[arg-type]

    def _leave(self) -> None:
        self.left.set()


@dataclass
class Node:
    """A folder with a program that stands for Python on a node; it writes what it is told to."""

    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def start(self, program: str, *, timeout: float | None = None, grace: float = 60.0) -> Actor:
        python = self.folder / "python"
        python.write_text(f"#!/bin/sh\n{program}\n")
        python.chmod(0o755)
        log = str(self.folder / "log")
        return Actor(str(self.folder / "TASK.json"), log, str(python), {"COLOUR": "blue"}, timeout, grace)

    def ready(self) -> None:
        end = time.monotonic() + 20
        while "ready" not in self.log:
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(actor, "LINGER_SECONDS", 0.0)
    return Node(tmp_path)


POLITE = "trap 'echo stopped; exit 143' TERM\necho ready\nwhile :; do sleep 0.05; done"
STUBBORN = "trap '' TERM\necho ready\nwhile :; do sleep 0.05; done"


def test_the_actor_starts_the_worker_and_ends_with_it(node: Node) -> None:
    worker = node.start('echo "$@" $COLOUR; exit 75')
    assert worker.join() == 75
    assert worker.left.wait(10)
    assert node.log == f"-m bpcbench.running.worker {node.folder}/TASK.json --bound stop blue\n"
    assert worker.where()[1] > 0


def test_a_stop_is_a_signal_to_the_worker_that_may_still_write(node: Node) -> None:
    worker = node.start(POLITE)
    node.ready()
    worker.stop(60.0)
    assert worker.join() == 143
    assert node.log == "ready\nstopped\n"


def test_a_worker_that_does_not_stop_is_killed_after_the_grace_even_if_no_run_listens(node: Node) -> None:
    worker = node.start(STUBBORN)
    node.ready()
    begin = time.monotonic()
    worker.stop(0.4)
    assert worker.join() == -signal.SIGKILL
    assert time.monotonic() - begin >= 0.4


def test_the_actor_enforces_the_timeout_itself(node: Node) -> None:
    """After the run would have, which is its timeout and two graces; then the worker gets a signal, and the grace."""
    begin = time.monotonic()
    worker = node.start(POLITE, timeout=0.6, grace=0.3)
    node.ready()
    assert worker.join() == 143
    assert time.monotonic() - begin >= 0.6 + 2 * 0.3
    assert worker.left.wait(10)
    assert node.log == "ready\nstopped\n"


def test_a_worker_that_ignores_its_timeout_is_killed(node: Node) -> None:
    worker = node.start(STUBBORN, timeout=0.4, grace=0.2)
    assert worker.join() == -signal.SIGKILL
    assert worker.left.wait(10)


def test_a_worker_in_time_is_not_disturbed(node: Node) -> None:
    worker = node.start("echo ready; sleep 0.3; exit 0", timeout=30.0, grace=0.1)
    assert worker.join() == 0


def test_all_that_a_worker_has_started_is_killed_with_it(node: Node) -> None:
    worker = node.start(f"sh -c 'echo child $$; {STUBBORN}'".replace("\n", ";"))
    node.ready()
    child = int(node.log.split("child ")[1].split()[0])
    worker.kill()
    assert worker.join() == -signal.SIGKILL
    end = time.monotonic() + 10
    while Path(f"/proc/{child}/stat").exists() and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_worker_that_cannot_be_started_is_said_and_holds_nothing(tmp_path: Path, node: Node) -> None:
    worker = Actor("TASK.json", str(tmp_path / "log"), "/nowhere/python", {}, None, 1.0)
    with pytest.raises(FileNotFoundError, match="/nowhere/python"):
        worker.where()
    worker.stop(1.0)
    worker.kill()
    assert worker.join() is None
    assert worker.left.wait(10), "its CPUs are free again without a run that listens"


@dataclass
class Cluster:
    """A head node whose port is open or not, a clock, and what was said."""

    open: bool = True
    now: float = 0.0
    looks: int = 0
    said: list[str] = field(default_factory=list)

    def connect(self, *_: object, **__: object) -> Cluster:
        self.looks += 1
        if not self.open:
            raise ConnectionRefusedError
        return self

    def close(self) -> None:
        pass


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(head.socket, "create_connection", made.connect)
    monkeypatch.setattr(head.time, "monotonic", lambda: made.now)
    return made


def test_a_head_node_that_is_gone_ends_the_run_before_ray_does(cluster: Cluster) -> None:
    watched = head.Head("10.0.0.1:6379", cluster.said.append)
    for cluster.now in range(10):
        watched.answers()
    assert cluster.looks == 5, "not at every turn"
    cluster.open = False
    with pytest.raises(EngineError, match=r"at 10\.0\.0\.1:6379 is gone; start the cluster again"):
        for cluster.now in range(10, 100):
            watched.answers()
    assert head.AWAY_SECONDS < cluster.now - 10 < 40, "Ray gives up after 60 s"
    assert cluster.said == ["the head node of the Ray cluster does not answer; waiting for it"]


def test_a_head_node_that_comes_back_is_waited_for(cluster: Cluster) -> None:
    watched = head.Head("[::1]:6379", cluster.said.append)
    for cluster.now in range(200):
        cluster.open = cluster.now % 50 > 25
        watched.answers()
    assert len(cluster.said) == 8
    assert cluster.said[1] == "the head node of the Ray cluster answers again"


def test_the_head_node_is_looked_for_at_once_where_a_call_would_not_return(cluster: Cluster) -> None:
    watched = head.Head("10.0.0.1:6379", cluster.said.append)
    assert watched.answers()
    cluster.open = False
    assert watched.answers(), "not so soon"
    assert not watched.answers(fresh=True)
    assert not watched.answers()
