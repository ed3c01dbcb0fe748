"""Only what is missing and asked for is to do; the plan works back from the scores."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import toys
import yaml
from toys import TOYS

import bpcbench
from bpcbench.planning.plan import Plan
from bpcbench.planning.spec import Spec
from bpcbench.planning.stages import ScoreStage
from bpcbench.registry import source
from bpcbench.registry.discovery import Registry
from bpcbench.session import Session
from bpcbench.store.store import Store


class Bench:
    """The toy suite, a store, and what one does with them."""

    def __init__(self, write_suite: Callable[..., str], out: Path) -> None:
        self.write_suite = write_suite
        self.out = out
        self.suite = write_suite(TOYS)

    def keys(self, **keys: Any) -> None:
        """Replace some keys of the suite."""
        self.suite = self.write_suite(yaml.safe_dump(yaml.safe_load(TOYS) | keys))

    def run(self, *overrides: str, **options: Any) -> dict[str, int]:
        result = bpcbench.run(self.suite, overrides, out=self.out, inline=True, track=False, quiet=True, **options)
        assert result.failures == ()
        return result.counts

    def plan(self, *overrides: str, recompute: tuple[str, ...] = ()) -> Plan:
        return Session(self.suite, overrides, out=self.out, recompute=recompute).plan()

    def to_do(self, *overrides: str, **options: Any) -> dict[str, int]:
        return Counter(planned.stage.kind for planned in self.plan(*overrides, **options).to_do())

    def delete(self, kind: str, prerequisite: str | None = None) -> None:
        """Remove all results of a kind, or those of one prerequisite."""
        store = Store.open(self.out)
        for address in list(store.addresses()):
            described = store.meta(address)["stage"]
            if address.kind == kind and prerequisite in (None, kind == "prerequisite" and _name(described["plugin"])):
                store.remove(address)


def _name(plugin: Any) -> str:
    return Spec.from_json(plugin).name


@pytest.fixture
def bench(install: Callable[..., Registry], write_suite: Callable[..., str], tmp_path: Path) -> Bench:
    install(toys)
    return Bench(write_suite, tmp_path / "out")


def test_planning_alone_writes_nothing(bench: Bench) -> None:
    assert bench.to_do() == {"prerequisite": 1, "coreset": 4, "predict": 8, "score": 8}
    assert not bench.out.exists()


def test_a_finished_suite_needs_nothing(bench: Bench) -> None:
    assert bench.run() == {"done": 21}
    plan = bench.plan()
    assert Counter((planned.kind, planned.status) for planned in plan.stages) == {
        ("prerequisite", "cached"): 1, ("coreset", "cached"): 4, ("predict", "cached"): 8, ("score", "cached"): 8
    }  # fmt: skip
    assert bench.run() == {}
    for kind in ("predict", "coreset", "prerequisite"):
        bench.delete(kind)
        assert bench.to_do() == {}
    # What was pruned and is not needed is not listed.
    assert {planned.kind for planned in bench.plan().stages} == {"score"}


def test_what_is_missing_is_made_from_what_is_there(bench: Bench) -> None:
    bench.run()
    bench.delete("score")
    assert bench.to_do() == {"score": 8}
    bench.delete("coreset")
    assert bench.to_do() == {"score": 8}  # predictions exist, so no coreset is needed
    bench.delete("prerequisite")
    assert bench.to_do() == {"prerequisite": 1, "score": 8}  # evaluators are given the preprocessing
    assert bench.run() == {"done": 9}
    bench.delete("score")
    bench.delete("predict")
    assert bench.to_do() == {"coreset": 4, "predict": 8, "score": 8}
    assert bench.run() == {"done": 20}


def test_pruned_prerequisites_are_not_rebuilt_for_a_coreset_that_exists(bench: Bench) -> None:
    bench.keys(methods=["guided"])
    bench.run()
    bench.delete("prerequisite", "means")
    bench.delete("predict")
    bench.delete("score")
    assert bench.to_do() == {"predict": 8, "score": 8}
    bench.delete("coreset")
    assert bench.to_do() == {"prerequisite": 2, "coreset": 4, "predict": 8, "score": 8}
    assert bench.run() == {"done": 22}


def test_the_cells_of_one_missing_score_only(bench: Bench) -> None:
    bench.run()
    cell = bench.plan().cells[-1]
    store = Store.open(bench.out)
    store.remove(cell.scores["right"])
    shutil.rmtree(store.root / "stages" / "predict" / cell.predict)
    (again, score) = bench.plan().to_do()
    assert (again.stage.key, again.label) == (cell.predict, cell.label)
    assert score.stage.addresses == (cell.scores["right"],)


def test_more_of_something_only_adds_what_is_new(bench: Bench) -> None:
    bench.run()
    assert bench.to_do("seeds.evaluate=3") == {"predict": 4, "score": 4}
    assert bench.to_do("seeds.distil=3") == {"coreset": 2, "predict": 4, "score": 4}
    assert bench.to_do("ipc=[1, 2, 3]") == {"coreset": 2, "predict": 4, "score": 4}
    assert bench.to_do("networks.wide={plugin: line, width: 9}") == {"predict": 8, "score": 8}
    assert bench.to_do("evaluators.more={plugin: right, bonus: 1}") == {"score": 8}
    assert bench.to_do("methods.guided=") == {"prerequisite": 2, "coreset": 4, "predict": 8, "score": 8}


def test_another_split_is_predicted_without_the_others_being_made_again(bench: Bench) -> None:
    bench.run()
    store = Store.open(bench.out)
    before = {address: store.path(address).stat().st_mtime_ns for address in store.addresses()}
    assert bench.to_do("evaluators.elsewhere=") == {"predict": 8, "score": 8}
    assert bench.run("evaluators.elsewhere=") == {"done": 16}
    after = {address: store.path(address).stat().st_mtime_ns for address in store.addresses()}
    assert before.items() <= after.items()
    new = {(address.kind, address.member.partition("~")[0]) for address in after.keys() - before.keys()}
    assert new == {("predict", "blobs/test"), ("score", "final")}
    assert bench.to_do() == {}


def test_a_second_method_shares_what_the_first_made(bench: Bench) -> None:
    bench.keys(methods=["guided"])
    bench.run()
    bench.keys(methods={"guided": None, "longer": {"plugin": "guided", "steps": 9, "experts": 3}})
    assert bench.to_do() == {"prerequisite": 1, "coreset": 4, "predict": 8, "score": 8}


RECOMPUTED: dict[str, dict[str, int]] = {
    "right": {"score": 16},
    "centroid": {"predict": 16, "score": 16},
    "line": {"coreset": 8, "predict": 16, "score": 16},  # `net` of both methods is a line
    "pick": {"coreset": 4, "predict": 8, "score": 8},
    "means": {"prerequisite": 2, "coreset": 4, "predict": 8, "score": 8},
    "scale": {"prerequisite": 3, "coreset": 8, "predict": 16, "score": 16},
    "dots": {"prerequisite": 3, "coreset": 8, "predict": 16, "score": 16},
    "digits": {},
}


def test_recompute_reaches_everything_downstream_and_nothing_else(bench: Bench) -> None:
    bench.keys(methods=["pick", "guided"])
    bench.run()
    assert {name: bench.to_do(recompute=(name,)) for name in RECOMPUTED} == RECOMPUTED
    assert bench.to_do(recompute=("pick", "means")) == {"prerequisite": 2, "coreset": 8, "predict": 16, "score": 16}
    assert bench.to_do() == {}


def test_recompute_makes_results_again(bench: Bench) -> None:
    bench.run()
    store = Store.open(bench.out)
    marks = {address: (store.path(address) / "stage.json").stat().st_mtime_ns for address in store.addresses()}
    assert bench.run(recompute=["pick"]) == {"done": 20}
    renewed = {a.kind for a, mark in marks.items() if (store.path(a) / "stage.json").stat().st_mtime_ns != mark}
    assert renewed == {"coreset", "predict", "score"}
    assert bench.to_do() == {}


def costs(plan: Plan) -> dict[str, set[bool]]:
    result: dict[str, set[bool]] = {}
    for planned in plan.to_do():
        assert (planned.seconds is None) == (planned.bytes is None)
        result.setdefault(planned.stage.kind, set()).add(planned.seconds is not None)
    return result


def test_estimates_are_unknown_until_something_like_it_was_run(bench: Bench) -> None:
    assert set.union(*costs(bench.plan()).values()) == {False}
    bench.run()
    assert costs(bench.plan("seeds=3")) == {"coreset": {True}, "predict": {True}, "score": {True}}
    # Another number of images per class takes another time; scoring as many predictions does not.
    assert costs(bench.plan("ipc=[3]")) == {"coreset": {False}, "predict": {False}, "score": {True}}
    # Another option most likely does not.
    hotter = bench.plan("inferences.centroid.heat=2")
    assert costs(hotter) == {"predict": {True}, "score": {True}}
    assert {planned.kind for planned in hotter.to_do() if planned.similar} == {"predict"}
    known = [planned for planned in bench.plan("seeds=3").to_do() if planned.stage.kind == "coreset"]
    assert all(0 <= planned.seconds < 10 and 100 < planned.bytes < 100_000 for planned in known)


def test_results_of_changed_code_are_cached_and_marked(
    install: Callable[..., Registry], write_suite: Callable[..., str], tmp_path: Path, monkeypatch: Any
) -> None:
    file = tmp_path / "toys_that_change.py"
    shutil.copy(toys.__file__, file)
    monkeypatch.syspath_prepend(tmp_path)
    install(importlib.import_module("toys_that_change"))
    bench = Bench(write_suite, tmp_path / "out")
    bench.run()
    file.write_text(file.read_text() + "\n# a comment\n")
    source.clear()  # as a new process begins
    assert {planned.status for planned in bench.plan().stages} == {"cached"}
    file.write_text(file.read_text() + "\nANOTHER = 1\n")
    source.clear()
    plan = bench.plan()
    assert {planned.status for planned in plan.stages} == {"cached (code changed)"}
    assert plan.to_do() == []
    assert bench.run() == {}


METHOD = """
from dataclasses import dataclass
import bpcbench
import toys

BPCBENCH_API = 1

@dataclass(frozen=True)
class Edited(toys.Pick):
    name = "edited-method"

@bpcbench.hookimpl
def bpcbench_methods():
    return [Edited]
"""
NETWORK = """
from dataclasses import dataclass
import bpcbench
import toys

BPCBENCH_API = 1

@dataclass(frozen=True)
class Edited(toys.Line):
    name = "edited-network"

@bpcbench.hookimpl
def bpcbench_networks():
    return [Edited]
"""


@pytest.mark.parametrize(
    ("edited", "kind", "stale"),
    [("edited_method", "coreset", "edited-method"), ("edited_network", "predict", "centroid")],
)
def test_only_the_stages_behind_which_the_edited_module_is_are_marked(
    install: Callable[..., Registry],
    write_suite: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    edited: str,
    kind: str,
    stale: str,
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    modules = []
    for name, text in {"edited_method": METHOD, "edited_network": NETWORK}.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        modules.append(importlib.import_module(name))
    source.clear()
    install(toys, *modules)
    bench = Bench(write_suite, tmp_path / "out")
    bench.keys(methods=["edited-method"], networks=["edited-network"])
    bench.run()
    assert bench.plan().stale() == []
    file = tmp_path / f"{edited}.py"
    file.write_text(file.read_text() + "\nFACTOR = 2\n")
    source.clear()  # as a new process begins
    plan = bench.plan()
    assert plan.to_do() == []
    statuses = {(planned.kind, planned.status) for planned in plan.stages}
    kinds = ("prerequisite", "coreset", "predict", "score")
    assert statuses == {(one, "cached (code changed)" if one == kind else "cached") for one in kinds}
    assert plan.stale() == [stale]
    # What it names is what `recompute` takes, and then nothing is stale.
    bench.run(recompute=plan.stale())
    assert bench.plan().stale() == []


def test_a_damaged_result_is_made_again(bench: Bench) -> None:
    bench.run()
    (cell, *_) = bench.plan().cells
    store = Store.open(bench.out)
    member = next(a for a in store.addresses() if (a.kind, a.key) == ("predict", cell.predict))
    (store.path(cell.scores["right"]) / "stage.json").write_text("{}")
    (store.path(member) / "arrays.safetensors").write_bytes(b"nonsense")
    assert bench.to_do() == {"predict": 1, "score": 1}
    assert bench.run() == {"done": 2}


def test_cells_point_at_what_the_store_holds(bench: Bench) -> None:
    bench.keys(evaluators=["right", "elsewhere"])
    bench.run()
    store = Store.open(bench.out)
    for cell in bench.plan().cells:
        assert cell.coresets
        assert all(store.has(address) for address in cell.coresets)
        assert set(cell.scores) == {"right", "elsewhere"}
        assert all(store.has(address) for address in cell.scores.values())
        stage = ScoreStage.from_json(store.meta(cell.scores["elsewhere"])["stage"])
        assert len(stage.predictions) == 2
        assert {item.address.key for item in stage.predictions} == {cell.predict}
