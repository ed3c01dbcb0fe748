"""A worker whose plugins or data are not those that were planned with fails, and commits nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import toys
import yaml
from toys import TOYS, Centroid, Dots, Line, Pick, Right, Scale

from bpcbench.planning.plan import Plan, make
from bpcbench.records import Task
from bpcbench.registry.discovery import Registered, Registry
from bpcbench.running.bodies import execute
from bpcbench.running.run import make_task
from bpcbench.store.store import Store
from bpcbench.suite.files import load

SUITE = yaml.safe_load(TOYS) | {"datasets": {"dots": {"file": "noise"}}, "ipc": [1], "seeds": 1}


class Worker:
    """A plan of one cell, whose tasks are executed here one by one."""

    def __init__(self, registry: Registry, suite: str, folder: Path) -> None:
        self.registry, self.folder = registry, folder
        (folder / "data").mkdir()
        (folder / "data" / "noise").write_bytes(b"some")
        self.store = Store.open(folder / "store", create=True)
        self.plan: Plan = make(registry, load(registry, suite), None, folder / "data")

    def task(self, kind: str) -> Task:
        (planned,) = (planned for planned in self.plan.stages if planned.kind == kind)
        return make_task(planned, self.folder / "store", self.folder / "data", log=self.folder / "log")

    def until(self, kind: str) -> Task:
        """Execute what comes before the stage of a kind, and return its task."""
        for planned in self.plan.stages:
            if planned.kind == kind:
                return self.task(kind)
            assert execute(self.task(planned.kind)).status == "done"
        raise AssertionError(kind)

    def raise_version(self, kind: str, cls: type[Any]) -> None:
        """Install a later version of a plugin, as a machine may have that the plan was not made on."""
        newer = dataclass(frozen=True)(type(cls.__name__, (cls,), {"version": 2, "__module__": cls.__module__}))
        self.registry.classes[kind, cls.name] = Registered(kind, newer, "tests", "toys")

    def refuses(self, task: Task, *words: str) -> None:
        before = set(self.store.addresses())
        outcome = execute(Task.from_json(task.to_json()))
        assert outcome.status == "failed"
        for word in words:
            assert word in outcome.message
        assert set(Store.open(self.folder / "store").addresses()) == before
        assert outcome.message in (self.folder / "log").read_text()


@pytest.fixture
def worker(install: Callable[..., Registry], write_suite: Callable[..., str], tmp_path: Path) -> Worker:
    return Worker(install(toys), write_suite(yaml.safe_dump(SUITE)), tmp_path)


VERSIONS: dict[str, tuple[str, type[Any], str]] = {
    "preprocessing": ("prerequisite", Scale, "toys:scale"),
    "method": ("coreset", Pick, "toys:pick"),
    "inference": ("predict", Centroid, "toys:centroid"),
    "network": ("predict", Line, "toys:line"),
    "dataset": ("coreset", Dots, "toys:dots"),
    "evaluator": ("score", Right, "toys:right"),
}


@pytest.mark.parametrize(("plugin", "stage", "cls", "title"), [(name, *rest) for name, rest in VERSIONS.items()])
def test_a_plugin_of_another_version_is_refused(
    worker: Worker, plugin: str, stage: str, cls: type[Any], title: str
) -> None:
    task = worker.until(stage)
    worker.raise_version(plugin, cls)
    worker.refuses(task, f"planned as {title} version 1", f"this installation has {title} version 2", "plan again")


def test_the_preprocessing_of_another_version_is_refused_by_all_who_use_what_it_fitted(worker: Worker) -> None:
    task = worker.until("score")
    worker.raise_version("preprocessing", Scale)
    worker.refuses(task, "planned as toys:scale version 1", "has toys:scale version 2")


@pytest.mark.parametrize(("stage", "split"), [("prerequisite", "train"), ("coreset", "train"), ("predict", "test")])
def test_other_data_than_planned_with_are_refused(worker: Worker, stage: str, split: str) -> None:
    task = worker.until(stage)
    (worker.folder / "data" / "noise").write_bytes(b"other")
    worker.refuses(task, f"dots in {worker.folder / 'data'}: the {split} split differs from the one planned with")


def test_a_task_under_a_key_that_is_not_its_own_is_refused(worker: Worker) -> None:
    task = worker.until("coreset")
    worker.refuses(replace(task, stage={**task.stage, "seed": 5}), f"coreset:{task.key} was planned by another version")
    worker.refuses(replace(task, body_version=task.body_version + 1), "was planned by another version of bpcbench")
    assert execute(task).status == "done"
