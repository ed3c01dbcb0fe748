"""The data of a plan: what is missing, which splits are predicted, and that tuning never sees the test split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import toys
import yaml
from toys import TOYS, Right

from bpcbench.errors import Mistakes, PluginError, UserError
from bpcbench.planning.plan import Plan, make
from bpcbench.records import Ref, SplitRef
from bpcbench.registry.discovery import Registry
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


def test_missing_data_are_named_together_or_skipped(planning: Planning, tmp_path: Path) -> None:
    wanted: dict[str, Any] = {
        "datasets": {"dots": None, "a": {"plugin": "dots", "file": "x"}, "b": {"plugin": "blobs", "file": "y"}},
        "evaluators": {"right": None, "elsewhere": {"file": "z"}},
    }
    with pytest.raises(Mistakes) as caught:
        planning(**wanted)
    assert {mistake.path for mistake in caught.value.mistakes} == {"evaluators.elsewhere", "datasets.a", "datasets.b"}
    assert f"datasets.a: place x in {tmp_path / 'data'} (or run with --skip-missing)" in str(caught.value)
    plan = planning(**wanted, skip_missing=True)
    assert set(plan.missing) == {"evaluators.elsewhere", "datasets.a", "datasets.b"}
    assert {cell.at.dataset for cell in plan.cells if not cell.skipped} == {"dots"}
    assert {tuple(cell.scores) for cell in plan.cells if not cell.skipped} == {("right",)}
    assert set(plan.skipped()) == {f"data are missing: place {f} in {tmp_path / 'data'}" for f in "xy"}
    with pytest.raises(UserError, match="the grid is empty: data are missing: place x in"):
        planning("datasets.dots.file=x", skip_missing=True)
    with pytest.raises(UserError, match="the grid is empty: data are missing: place z in"):
        planning("evaluators=[elsewhere]", "evaluators.elsewhere.file=z", skip_missing=True)


def members(plan: Plan) -> set[str]:
    return {member for planned in plan.stages if planned.stage.kind == "predict" for member in planned.stage.members}


def test_while_tuning_the_test_split_is_out_of_reach(planning: Planning) -> None:
    asks_by_name = "evaluators={right: , elsewhere: {own: dots}}"
    assert {member.partition("~")[0] for member in members(planning(asks_by_name))} == {"dots/test", "blobs/test"}
    assert {member.partition("~")[0] for member in members(planning("split=validation"))} == {"dots/validation"}
    with pytest.raises(UserError, match="no test split may be predicted, and an evaluator asks for 'test' of blobs"):
        planning(asks_by_name, "split=validation")


def test_another_data_sets_split_is_a_member_with_its_own_fingerprint(planning: Planning, tmp_path: Path) -> None:
    plans = []
    for content in (b"one", b"two"):
        (tmp_path / "data" / "noise").write_bytes(content)
        plans.append(planning("evaluators={right: , elsewhere: {file: noise}}"))
    assert ids(plans[0], "predict") == ids(plans[1], "predict")
    (own,) = members(plans[0]) & members(plans[1])
    assert own.startswith("dots/test~")
    assert all(member.startswith("blobs/test~") for member in members(plans[0]) ^ members(plans[1]))
    for before, after in zip(plans[0].cells, plans[1].cells, strict=True):
        assert before.scores["right"] == after.scores["right"]
        assert before.scores["elsewhere"] != after.scores["elsewhere"]


@pytest.mark.parametrize(
    ("splits", "error", "message"),
    [
        ([SplitRef("snow")], UserError, r"data set dots: unknown split 'snow' \(allowed: test, train, validation\)"),
        ([SplitRef("snow", Ref("blobs"))], UserError, "data set blobs: unknown split 'snow'"),
        ([SplitRef("test", Ref("blob"))], UserError, "unknown dataset 'blob'; did you mean 'blobs'"),
        ([], PluginError, "evaluator wants asks for no split"),
    ],
)
def test_evaluators_must_ask_for_what_there_is(planning: Planning, splits: Any, error: Any, message: str) -> None:
    @dataclass(frozen=True)
    class Wants(Right):
        name = "wants"

        def splits(self, facts: Any) -> Any:
            return splits

    with pytest.raises(error, match=message):
        planning("evaluators=[wants]", classes=(Wants,))
