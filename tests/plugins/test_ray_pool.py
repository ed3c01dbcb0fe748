"""What the pool of the engine `ray` adopts, ends and leaves alone, with a make-believe Ray: none is needed."""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from plain_stages import planned

from bpcbench import Ended, RunInfo, Started, Task
from bpcbench.running.run import make_task
from bpcbench_ray.engine import RayEngine
from bpcbench_ray.head import Head


@dataclass
class Call:
    """A call of a method; its answer is there when the actor lives."""

    actor: Actor
    method: str

    def remote(self, *_: object) -> Call:
        self.actor.calls.append(self.method)
        return Call(self.actor, self.method)

    def __hash__(self) -> int:
        return id(self)


@dataclass
class Actor:
    """An actor that runs, waits for room, or has ended."""

    lives: bool = True
    over: bool = False
    arguments: tuple[object, ...] = ()
    calls: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Call:
        return Call(self, name)


@dataclass
class Ray:
    """The few functions that the pool uses."""

    actors: dict[str, Actor] = field(default_factory=dict)
    killed: list[Actor] = field(default_factory=list)
    waited: float = -1.0
    answers: bool = True

    def get_actor(self, name: str, namespace: str) -> Actor:
        if name not in self.actors:
            raise ValueError(f"Failed to look up actor with name {name!r}")
        return self.actors[name]

    def remote(self, kind: type) -> Any:
        def options(*, name: str, **more: object) -> Any:
            def make(*arguments: object) -> Actor:
                if name in self.actors:
                    raise ValueError(f"The name {name} is already taken")
                return self.actors.setdefault(name, Actor(arguments=arguments))

            return types.SimpleNamespace(remote=make)

        return types.SimpleNamespace(options=options)

    def wait(self, refs: list[Call], num_returns: int, timeout: float) -> tuple[list[Call], list[Call]]:
        self.waited = timeout
        ready = [ref for ref in refs if ref.actor.lives and (ref.method == "where" or ref.actor.over)]
        return ready, [ref for ref in refs if ref not in ready]

    def get(self, ref: Call, timeout: float) -> object:
        return 0

    def kill(self, actor: Actor) -> None:
        self.killed.append(actor)

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 8}}]

    def is_initialized(self) -> bool:
        return True

    def get_runtime_context(self) -> Any:
        return types.SimpleNamespace(gcs_address="127.0.0.1:1")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    made, module, exceptions = Ray(), types.ModuleType("ray"), types.ModuleType("ray.exceptions")
    for name in ("get_actor", "remote", "wait", "get", "kill", "nodes", "is_initialized", "get_runtime_context"):
        setattr(module, name, getattr(made, name))
    for name in ("RayError", "RayActorError", "ActorUnavailableError"):
        setattr(exceptions, name, type(name, (Exception,), {}))
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.setitem(sys.modules, "ray.exceptions", exceptions)
    monkeypatch.delitem(sys.modules, "bpcbench_ray.pool", raising=False)
    monkeypatch.setattr(Head, "_look", lambda self, now: setattr(self, "_since", None if made.answers else now))
    yield made
    sys.modules.pop("bpcbench_ray.pool", None)


@dataclass
class Scene:
    """A store; pools of several runs on it."""

    store: Path
    number: int = 0

    def pool(self, *, lost: Collection[str] = ()) -> Any:
        """Return the pool of another run, to which the attempts of those runs pass that are `lost`."""
        self.number += 1
        info = RunInfo(store=self.store, run=f"run-{self.number}", claim=lambda task: task.run in lost)
        return importlib.import_module("bpcbench_ray.pool").RayPool(RayEngine(), info, 5)

    def task(self, name: str = "a") -> Task:
        log = self.store / "logs" / name
        return make_task(planned(name), self.store, self.store, log=log, run=f"run-{self.number}")

    @property
    def files(self) -> list[str]:
        return sorted(file.stem for file in (self.store / "scratch" / "engines" / "ray").glob("*.json"))


@pytest.fixture
def scene(tmp_path: Path, ray: Ray) -> Scene:
    return Scene(tmp_path)


def submitted(scene: Scene) -> tuple[Any, Task]:
    """Return the pool of a run and what it has submitted."""
    pool, task = scene.pool(), scene.task()
    assert pool.submit(task)
    return pool, task


def test_the_actor_gets_all_it_needs_when_it_is_made(scene: Scene, ray: Ray) -> None:
    """A call that Ray keeps here until the actor lives would be lost with this process."""
    pool, task = submitted(scene)
    (actor,) = ray.actors.values()
    assert actor.arguments[0] == str(scene.store / "scratch" / "engines" / "ray" / f"{task.attempt}.json")
    assert actor.arguments[1] == str(task.log)
    assert actor.calls == ["where"]
    assert list(pool.wait(0)) == [Started(task.attempt)]
    actor.over = True
    assert list(pool.wait(0)) == [Ended(task.attempt)]
    assert scene.files == []


@pytest.mark.parametrize("there", [True, False])
def test_what_a_living_run_owns_is_left_alone(scene: Scene, ray: Ray, there: bool) -> None:
    """Its file too, if its actor is not there yet."""
    _, task = submitted(scene)
    if not there:
        ray.actors.clear()
    second = scene.pool()
    assert list(second.adopt()) == []
    assert list(second.wait(0)) == []
    second.stop([task.attempt])
    second.kill([task.attempt])
    second.close()
    assert ray.killed == []
    assert scene.files == [task.attempt]


def test_the_same_stage_is_not_begun_beside_the_run_that_is_at_it(scene: Scene, ray: Ray) -> None:
    _, first = submitted(scene)
    second = scene.pool()
    again = scene.task()
    assert second.submit(again)
    assert list(second.wait(0)) == [Ended(again.attempt, "busy")]
    assert ray.killed == []
    assert scene.files == [first.attempt]


@pytest.mark.parametrize("lives", [True, False])
def test_what_a_run_that_is_gone_has_left_is_taken_over(scene: Scene, ray: Ray, lives: bool) -> None:
    """It has begun when its actor says so: one that waits for room has not."""
    _, task = submitted(scene)
    (actor,) = ray.actors.values()
    actor.lives = lives
    second = scene.pool(lost=["run-1"])
    assert [one.attempt for one in second.adopt()] == [task.attempt]
    assert list(second.wait(0)) == ([Started(task.attempt)] if lives else [])
    actor.lives = actor.over = True
    assert [*second.wait(0), *second.wait(0)][-1] == Ended(task.attempt)
    assert ray.killed == [actor]


@pytest.mark.parametrize("outcome", [True, False])
def test_an_actor_that_is_gone_counts_only_with_an_outcome(scene: Scene, ray: Ray, outcome: bool) -> None:
    """Without one its stage is submitted like any other, and no worker is said to be lost."""
    _, task = submitted(scene)
    ray.actors.clear()
    if outcome:
        task.outcome_file.parent.mkdir(parents=True)
        task.outcome_file.write_text("{}")
    second = scene.pool(lost=["run-1"])
    assert [one.attempt for one in second.adopt()] == [task.attempt] * outcome
    assert list(second.wait(0)) == [Ended(task.attempt)] * outcome
    assert scene.files == []


def test_an_actor_belongs_to_the_newest_attempt_at_its_stage(scene: Scene, ray: Ray) -> None:
    """An old file of a run that is gone does not make the actor of one that lives its own."""
    _, old = submitted(scene)
    ray.actors.clear()
    _, new = submitted(scene)
    folder = scene.store / "scratch" / "engines" / "ray"
    for seconds, task in enumerate((old, new)):
        os.utime(folder / f"{task.attempt}.json", (seconds, seconds))
    third = scene.pool(lost=["run-1"])
    assert list(third.adopt()) == []
    assert list(third.wait(0)) == []
    assert ray.killed == []
    assert scene.files == [new.attempt]


def test_actors_that_wait_for_room_are_handed_over_before_a_run_leaves(scene: Scene, ray: Ray) -> None:
    pool, _ = submitted(scene)
    (actor,) = ray.actors.values()
    actor.lives = False
    pool.close()
    assert ray.waited > 0
    assert ray.killed == []


def test_nothing_is_submitted_while_the_head_node_is_away(scene: Scene, ray: Ray) -> None:
    pool = scene.pool()
    ray.answers = False
    assert not pool.submit(scene.task())
    assert (ray.actors, scene.files) == ({}, [])
    ray.answers = True
    assert pool.submit(scene.task())
