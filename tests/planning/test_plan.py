"""From a suite to stages: equal ones are one, keys hold all that matters and nothing else, gaps have reasons."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import toys
import yaml
from toys import TOYS, Centroid, Guided, Means

from bpcbench.errors import PluginError, UserError
from bpcbench.planning.cells import Cell
from bpcbench.planning.plan import Plan, make
from bpcbench.records import Need, Ref
from bpcbench.registry.discovery import Registry
from bpcbench.store.address import digest
from bpcbench.suite.files import load

Planning = Callable[..., Plan]


@pytest.fixture
def planning(install: Callable[..., Registry], write_suite: Callable[..., str], tmp_path: Path) -> Planning:
    """Return a function that plans the toy suite with overrides, or with some keys replaced; there is no store."""

    def plan(*overrides: str, classes: tuple[type, ...] = (), skip_missing: bool = False, **keys: Any) -> Plan:
        found = install(toys, *classes)
        file = write_suite(yaml.safe_dump(yaml.safe_load(TOYS) | keys))
        return make(found, load(found, file, overrides), None, tmp_path / "data", skip_missing=skip_missing)

    (tmp_path / "data").mkdir()
    return plan


def ids(plan: Plan, *kinds: str) -> set[str]:
    return {planned.stage.id for planned in plan.stages if not kinds or planned.stage.kind in kinds}


def counts(plan: Plan) -> dict[str, int]:
    return Counter(planned.stage.kind for planned in plan.stages)


def changed(before: Plan, after: Plan) -> set[str]:
    """Return the kinds of stages of which no single one is the same."""
    kinds = ("prerequisite", "coreset", "predict", "score")
    return {kind for kind in kinds if not ids(before, kind) & ids(after, kind)}


def notes(cell: Cell) -> tuple[str, ...]:
    assert cell.choice is not None
    return cell.choice.notes


def test_a_plan_lists_every_stage_once_inputs_first(planning: Planning) -> None:
    plan = planning("methods=[pick, guided]")
    assert counts(plan) == {"prerequisite": 1 + 2, "coreset": 2 * 2 * 2, "predict": 16, "score": 16}
    assert len(ids(plan)) == len(plan.stages)
    seen: set[str] = set()
    for planned in plan.stages:
        assert set(planned.stage.needs) <= seen
        assert planned.status == "to do"
        seen.add(planned.stage.id)
    assert len(plan.cells) == 16
    assert {notes(cell) for cell in plan.cells} == {("toy",)}


def test_notes_of_a_method_stand_behind_those_of_the_data(planning: Planning) -> None:
    plan = planning("methods=[pick, guided]", "methods.pick.style=rough")
    assert {(cell.at.method, notes(cell)) for cell in plan.cells} == {("pick", ("toy", "rough")), ("guided", ("toy",))}


def test_keys_do_not_change_by_accident(planning: Planning) -> None:
    # All results in all stores are found by these; tests/planning/test_stages.py says what a change means.
    plan = planning(
        "methods=[pick, everything, guided]", "evaluators=[right, elsewhere]", "inferences=[native, centroid]"
    )
    assert digest(sorted(ids(plan))) == "59ede977a7cbe4ecce73bf2608cdf3bb"


def test_what_ignores_ipc_and_seed_is_made_once(planning: Planning) -> None:
    plan = planning("methods=[everything]")
    assert counts(plan) == {"prerequisite": 1, "coreset": 1, "predict": 2, "score": 2}
    assert len(plan.cells) == 8
    assert len({cell.coresets for cell in plan.cells}) == 1
    assert {cell.predict for cell in plan.cells if cell.evaluate_seed == 0} != {
        cell.predict for cell in plan.cells if cell.evaluate_seed == 1
    }


def test_prerequisites_are_shared_and_members_are_added_one_by_one(planning: Planning) -> None:
    two = planning(methods={"a": "guided", "b": {"plugin": "guided", "steps": 5}})
    assert counts(two)["prerequisite"] == 1 + 2
    three = planning(methods={"a": {"plugin": "guided", "experts": 3}})
    extra = ids(three, "prerequisite") - ids(two, "prerequisite")
    assert len(extra) == 1
    assert extra.pop().endswith("@002")


def test_one_plugin_under_two_labels_is_one(planning: Planning) -> None:
    one = planning()
    methods = {"a": {"plugin": "pick", "chunk": 1}, "b": {"plugin": "pick", "rate": 0.1}}
    two = planning(methods=methods, networks={"x": "line", "y": "line"})
    assert ids(two) == ids(one)
    assert len(two.cells) == 4 * len(one.cells)


def test_labels_are_not_part_of_keys(planning: Planning) -> None:
    other = planning(
        datasets={"v": "dots"}, methods={"z": "pick"}, networks={"y": "line"},
        inferences={"x": "centroid"}, evaluators={"w": "right"}, preprocessing={"u": "scale", "default": "scale"},
    )  # fmt: skip
    assert ids(other) == ids(planning())
    assert {cell.at.dataset for cell in other.cells} == {"v"}


@pytest.mark.parametrize(
    "overrides",
    [
        ["ipc=[2, 1]", "name=other", "description=other"],
        ["threads=2", "device=cpu", "timeout=5", "engine=inline"],
        ["methods.pick.chunk=1", "methods.pick.style=plain", "methods.pick.steps=2"],
        ["inferences.centroid.heat=1"],
        ["methods.pick.net={plugin: line, width: 3}"],
        ["preprocessing={default: {plugin: scale}}"],
        ["cases=[{when: {ipc: 1}, set: {methods.pick.rate: 0.1}}]"],
    ],
    ids=lambda overrides: overrides[0],
)  # fmt: skip
def test_what_is_not_part_of_a_key(planning: Planning, overrides: list[str]) -> None:
    assert ids(planning(*overrides)) == ids(planning())


ALL = {"prerequisite", "coreset", "predict", "score"}


@pytest.mark.parametrize(
    ("override", "kinds"),
    [
        ("methods.pick.steps=3", {"coreset", "predict", "score"}),
        ("methods.pick.style=new", {"coreset", "predict", "score"}),
        ("methods.pick.net={plugin: line, width: 4}", {"coreset", "predict", "score"}),
        ("methods.pick.plugin=guided", {"coreset", "predict", "score"}),
        ("inferences.centroid.heat=1.5", {"predict", "score"}),
        ("networks.line.width=5", {"predict", "score"}),
        ("evaluators.right.bonus=1", {"score"}),
        ("preprocessing=standardize", ALL),
        ("precision=bf16", ALL),
        ("datasets=[blobs]", ALL),
        ("split=validation", ALL),
    ],
)
def test_what_is_part_of_a_key(planning: Planning, override: str, kinds: set[str]) -> None:
    assert changed(planning(), planning(override)) == kinds


def test_seeds_are_part_of_keys_where_they_matter(planning: Planning) -> None:
    plan = planning("ipc=1")
    coresets = {cell.distil_seed: cell.coresets for cell in plan.cells}
    assert coresets[0] != coresets[1]
    assert len({cell.predict for cell in plan.cells}) == 4


def test_a_new_version_of_a_plugin_is_another_plugin(planning: Planning) -> None:
    @dataclass(frozen=True)
    class First(Centroid):
        name = "mine"

    @dataclass(frozen=True)
    class Second(First):
        version = 2

    first, second = (planning("inferences=[mine]", classes=(cls,)) for cls in (First, Second))
    assert changed(first, second) == {"predict", "score"}


def test_the_content_of_the_data_is_part_of_keys(planning: Planning, tmp_path: Path) -> None:
    file = tmp_path / "data" / "noise"
    plans = []
    for content in (b"one", b"two", b"one"):
        file.write_bytes(content)
        plans.append(planning("datasets.dots.file=noise"))
    assert changed(plans[0], plans[1]) == ALL
    assert ids(plans[0]) == ids(plans[2])


def test_speed_options_of_prerequisites_are_not_part_of_keys(planning: Planning) -> None:
    @dataclass(frozen=True)
    class Chained(Means):
        name = "chained"

        def prerequisites(self, facts: Any) -> Any:
            return {"means": Need(Ref("means", {"chunk": self.chunk, "noise": self.noise}), ("a", "b"))}

    @dataclass(frozen=True)
    class Deep(Guided):
        name = "deep"

        def prerequisites(self, facts: Any, ipc: int) -> Any:
            return {"experts": Need(Ref("chained", {"chunk": self.chunk_of_means, "noise": self.rate}))}

    def plan(**options: Any) -> Plan:
        return planning(methods={"guided": options, "deep": options}, classes=(Chained, Deep))

    first = plan(chunk_of_means=1)
    assert ids(first) == ids(plan(chunk_of_means=64))
    assert counts(first)["prerequisite"] == 1 + 2 + (1 + 2)
    assert len(ids(first, "prerequisite") & ids(plan(rate=0.5), "prerequisite")) == 1 + 2


def test_native_is_the_methods_own_choice(planning: Planning) -> None:
    native = planning("inferences=[native]", "networks=[native]")
    named = planning("inferences.centroid.heat=2")
    assert ids(native) == ids(named)
    assert {cell.at.inference for cell in native.cells} == {"native"}


def test_cells_that_are_not_possible_say_why(planning: Planning) -> None:
    tall, wide = {"plugin": "line", "height": 5}, {"plugin": "line", "width": 100}
    networks = {"native": None, "line": None, "tall": tall, "wide": wide}
    plan = planning(
        "ipc=[1, 16]", "seeds=1", "methods=[pick, everything]", "inferences=[native, centroid]", networks=networks
    )
    reasons = {(c.at.ipc, c.at.method, c.at.inference, c.at.network): c.skipped for c in plan.cells}
    assert reasons[1, "pick", "native", "native"] == ""
    assert reasons[16, "pick", "centroid", "line"] == "at most 15 per class"
    assert reasons[1, "everything", "native", "line"] == "everything has no native inference; name one"
    assert reasons[1, "everything", "centroid", "native"] == "everything has no native network; name one"
    assert reasons[1, "pick", "centroid", "tall"] == "images of 4 are too small"
    assert reasons[1, "pick", "centroid", "wide"] == "pick is too wide"
    assert reasons[16, "everything", "centroid", "line"] == "at most 15 per class"
    assert plan.skipped()["at most 15 per class"] == 16
    assert not any(cell.scores or cell.coresets for cell in plan.cells if cell.skipped)
    # pick: two inferences on native and line, which are one network; everything: centroid on line.
    assert counts(plan) == {"prerequisite": 1, "coreset": 2, "predict": 2 + 1, "score": 2 + 1}


def test_excluded_cells_are_not_cells(planning: Planning) -> None:
    plan = planning("exclude=[{ipc: 2, method: pick}]")
    assert {cell.at.ipc for cell in plan.cells} == {1}
    assert plan.skipped() == {}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["ipc=16"], "suite: the grid is empty: at most 15 per class"),
        (["exclude=[{method: pick}]"], "suite: the grid is empty: every cell is excluded"),
    ],
)
def test_an_empty_grid_is_an_error(planning: Planning, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        planning(*overrides)
    assert str(caught.value) == message


def test_the_garbage_collector_is_paused_and_goes_on_whatever_happens(planning: Planning) -> None:
    seen = []

    @dataclass(frozen=True)
    class Watching(Centroid):
        name = "watching"

        def accepts(self, offer: Any) -> str | None:
            seen.append(gc.isenabled())
            raise RuntimeError("no plan")

    assert gc.isenabled()
    with pytest.raises(PluginError, match="no plan"):
        planning(classes=(Watching,), inferences=["watching"])
    assert seen == [False]
    assert gc.isenabled()


def test_ten_thousand_cells_are_planned_in_seconds(planning: Planning) -> None:
    """In CPU seconds: what else the machine does hardly counts. The bound is generous: about one second is usual."""
    methods = {f"m{i}": {"plugin": "guided", "steps": i} for i in range(5)}
    networks = {f"n{i}": {"plugin": "line", "width": i} for i in range(5)}
    begin = time.process_time()
    plan = planning("ipc=[1, 2, 5, 10]", "seeds=10", methods=methods, networks=networks)
    took = time.process_time() - begin
    print(f"\n{len(plan.cells):,} cells, {len(plan.stages):,} stages planned in {took:.2f} CPU s")
    assert len(plan.cells) == 10_000
    assert counts(plan)["predict"] == 10_000
    assert took < 20
