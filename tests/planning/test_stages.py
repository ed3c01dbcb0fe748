"""Stages are plain data: any process rebuilds them, derives the same key, and refuses what does not fit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toys
import yaml
from toys import TOYS, Blobs, Centroid, Dots, Guided, Line, Means, Pick, Right, Scale

from bpcbench.planning.plan import Plan, make
from bpcbench.planning.spec import Spec
from bpcbench.planning.stages import (
    STAGES,
    CoresetStage,
    Fitted,
    PredictStage,
    PrerequisiteStage,
    RoleInput,
    ScoreInput,
    ScoreStage,
    SplitUse,
    Stage,
    TaskInput,
    TrainingData,
    stage_from_json,
)
from bpcbench.records import Ref, SplitRef
from bpcbench.registry.discovery import Registry
from bpcbench.store.address import KINDS, UNKEYED, Address, canonical, keyed, stage_key
from bpcbench.suite.files import load

CHANGED = (
    "keys changed: results of every user get new names. If that is intended before 0.1, update these; afterwards never"
)
GOLDEN = {
    "prerequisite dots scale": "prerequisite:512a8b409adb4442dcd90c811764b077@final",
    "coreset dots ipc 1 pick seed 0": "coreset:eb1326a4056231c8f7846b08903138dc",
    "predict dots ipc 1 pick / centroid / line seed 0.0": "predict:66bd9db26f474362f407024f161ddbae",
    "score dots ipc 1 pick / centroid / line seed 0.0 right": "score:51cc1511e0a5f51056263e73209e50be",
    "score dots ipc 1 pick / centroid / line seed 0.0 elsewhere": "score:665ed5f8896cf38e33b71fdce4b2830f",
    "prerequisite dots means 000": "prerequisite:df8fb5576837c96d71620ac588d05bf0@000",
    "prerequisite dots means 001": "prerequisite:df8fb5576837c96d71620ac588d05bf0@001",
    "coreset dots ipc 1 guided seed 0": "coreset:88201f07fd5703504a747d02fcf642b0",
    "predict dots ipc 1 guided / centroid / line seed 0.0": "predict:bb15f5f760f595923d79c2afce7e8863",
    "score dots ipc 1 guided / centroid / line seed 0.0 right": "score:4982cbee5eb840c03bc6bea96a69a489",
    "score dots ipc 1 guided / centroid / line seed 0.0 elsewhere": "score:fa2624f3c58c34c64ceacab47a0f668b",
}


def address(kind: str, digit: str, member: str = "final") -> Address:
    return Address(kind, digit * 32, member)


def role(digit: str, *members: str) -> RoleInput:
    return RoleInput(Spec.of(Means()), tuple(address("prerequisite", digit, member) for member in members))


DATA = TrainingData(Spec.of(Dots()), "fingerprint", False)
SCALED = Fitted(Spec.of(Scale()), address("prerequisite", "a"))
NET = Line(width=3)
BLOBS = SplitRef("test", Ref("blobs", {"file": "noise"}))
OWN_SPLIT = SplitUse("dots/test~12345678", Spec.of(Dots()), "test", "content", SplitRef())
OTHER_SPLIT = SplitUse("blobs/test-5~87654321", Spec.of(Blobs("noise")), "test", "other", BLOBS, 5, (1, 4, 4))
OWN, OTHER = (address("predict", "c", split.member) for split in (OWN_SPLIT, OTHER_SPLIT))

PREREQUISITE = PrerequisiteStage(Spec.of(Means()), DATA, SCALED, {"role": role("b", "000")}, "float32", "001")
CORESET = CoresetStage(Spec.of(Guided(net=NET)), DATA, SCALED, {"experts": role("b", "000", "001")}, "float32", 2, 1)
PREDICT = PredictStage(
    CORESET.addresses, Spec.of(Centroid()), Spec.of(NET), SCALED, {"role": role("b", "000")}, "float32", 1,
    (OWN_SPLIT, OTHER_SPLIT),
)  # fmt: skip
SCORE = ScoreStage(
    Spec.of(Right()), 1, (ScoreInput(OWN, SplitRef()), ScoreInput(OTHER, BLOBS)),
    (ScoreInput(address("predict", "d", OWN.member), SplitRef()),), {"role": role("b", "000")}, SCALED,
    CORESET.addresses,
)  # fmt: skip
FITTING = PrerequisiteStage(Spec.of(Scale()), DATA, None, {}, "float32")
PART = replace(DATA, classes=(0, 3))
TASK = TaskInput((0, 3), SCORE.predictions)
ALL = [
    FITTING, PREREQUISITE, CORESET, PREDICT, SCORE,
    replace(PREREQUISITE, data=PART), replace(CORESET, data=PART), replace(SCORE, tasks=(TASK, TASK)),
]  # fmt: skip

MORE_SCALED = Fitted(SCALED.plugin, address("prerequisite", "e"))
MORE_ROLES: Any = {"role": role("b", "002")}
MORE_DATA = [
    replace(DATA, dataset=Spec.of(Blobs())), replace(DATA, fingerprint="other"), replace(DATA, holdout=True),
    PART, replace(DATA, classes=(0, 4)),
]  # fmt: skip
KEYED: dict[str, tuple[Any, dict[str, list[Any]]]] = {
    "prerequisite": (
        PREREQUISITE,
        {
            "plugin": [Spec.of(Means(noise=0.2)), replace(PREREQUISITE.plugin, version=2)],
            "data": MORE_DATA,
            "transform": [None, MORE_SCALED, Fitted(replace(SCALED.plugin, version=2), SCALED.address)],
            "prerequisites": [{}, MORE_ROLES, {"another": role("b", "000")}],
            "precision": ["tf32"],
        },
    ),
    "coreset": (
        CORESET,
        {
            "method": [
                Spec.of(Guided(net=NET, steps=3)), Spec.of(Guided(net=Line(width=4))), Spec.of(Pick(net=NET)),
                replace(CORESET.method, version=2), replace(CORESET.method, package="other"),
            ],
            "data": MORE_DATA,
            "transform": [MORE_SCALED],
            "prerequisites": [{}, MORE_ROLES, {"experts": role("b", "001", "000")}],
            "precision": ["tf32"],
            "ipc": [1, None],
            "seed": [0, None],
        },
    ),
    "predict": (
        PREDICT,
        {
            "coresets": [(address("coreset", "0"),), (*PREDICT.coresets, address("coreset", "0"))],
            "inference": [Spec.of(Centroid(heat=2.0))],
            "network": [Spec.of(Line())],
            "transform": [MORE_SCALED],
            "prerequisites": [{}, MORE_ROLES],
            "precision": ["tf32"],
            "seed": [0, "reference"],
        },
    ),
    "score": (
        SCORE,
        {
            "evaluator": [Spec.of(Right(bonus=1.0))],
            "metrics": [2],
            "predictions": [SCORE.predictions[:1], SCORE.predictions[::-1]],
            "reference": [(), SCORE.predictions],
            "prerequisites": [{}, MORE_ROLES],
            "transform": [MORE_SCALED],
            "coresets": [()],
            "tasks": [
                (TASK,), (TASK, replace(TASK, classes=(1,))), (replace(TASK, predictions=SCORE.predictions[:1]),)
            ],
        },
    ),
}  # fmt: skip
UNKEYED_CHANGES: dict[str, tuple[Stage, Stage]] = {
    "member of a prerequisite": (PREREQUISITE, replace(PREREQUISITE, member="007")),
    "option of a prerequisite": (PREREQUISITE, replace(PREREQUISITE, plugin=Spec.of(Means(chunk=1)))),
    "option of a method": (CORESET, replace(CORESET, method=Spec.of(Guided(net=NET, chunk=1, chunk_of_means=9)))),
    "option of a role": (
        CORESET,
        replace(CORESET, prerequisites={
            "experts": replace(CORESET.prerequisites["experts"], plugin=Spec.of(Means(chunk=1)))
        }),
    ),
    "splits": (PREDICT, replace(PREDICT, splits=())),
    "what the evaluator asked for": (
        SCORE, replace(SCORE, predictions=tuple(replace(item, wanted=SplitRef("x")) for item in SCORE.predictions))
    ),
}  # fmt: skip


def carried(value: Any) -> Any:
    """Return what another process gets: JSON text, read again."""
    return json.loads(canonical(value))


def test_the_table_covers_all_stages_and_fields() -> None:
    assert tuple(STAGES) == KINDS == tuple(KEYED)
    left_out = {"prerequisite": {"member"}, "coreset": set(), "predict": {"splits"}, "score": set()}
    for kind, (stage, changes) in KEYED.items():
        assert {field.name for field in dataclasses.fields(stage)} - set(changes) == left_out[kind]


@pytest.mark.parametrize("stage", ALL, ids=lambda stage: f"{stage.kind} {len(stage.inputs())}")
def test_a_stage_survives_json(stage: Any) -> None:
    description = carried(stage.to_json())
    again = stage_from_json(stage.kind, stage.body_version, stage.key, description)
    assert type(again) is type(stage)
    assert again.to_json() == stage.to_json()
    assert (again.key, again.id, again.members) == (stage.key, stage.id, stage.members)
    assert (again.addresses, again.inputs(), again.needs) == (stage.addresses, stage.inputs(), stage.needs)
    assert [spec.digest for spec in again.specs()] == [spec.digest for spec in stage.specs()]


@pytest.mark.parametrize("stage", ALL, ids=lambda stage: f"{stage.kind} {len(stage.inputs())}")
def test_the_store_derives_the_same_key_from_the_description_alone(stage: Any) -> None:
    assert stage.key == stage_key(stage.kind, stage.body_version, carried(stage.to_json()))
    assert carried(stage.payload()) == keyed(carried(stage.to_json()))


@pytest.mark.parametrize(("stage", "other"), UNKEYED_CHANGES.values(), ids=UNKEYED_CHANGES)
def test_what_cannot_change_a_result_is_not_part_of_its_key(stage: Stage, other: Stage) -> None:
    assert other.to_json() != stage.to_json()
    assert other.key == stage.key == stage_key(other.kind, other.body_version, carried(other.to_json()))


@pytest.mark.parametrize("kind", KEYED)
def test_every_other_field_is_part_of_the_key(kind: str) -> None:
    stage, changes = KEYED[kind]
    others = [replace(stage, **{name: value}) for name, values in changes.items() for value in values]
    keys = [other.key for other in (stage, *others)]
    assert len(set(keys)) == len(keys)
    assert keys[1:] == [stage_key(kind, stage.body_version, carried(other.to_json())) for other in others]


def test_kind_and_version_are_part_of_the_key() -> None:
    description = CORESET.to_json()
    keys = {stage_key(kind, version, description) for kind in KINDS for version in (1, 2)}
    assert len(keys) == 8


@pytest.mark.parametrize("stage", ALL, ids=lambda stage: f"{stage.kind} {len(stage.inputs())}")
def test_another_version_of_the_body_is_refused(stage: Any) -> None:
    later = stage.body_version + 1
    key = stage_key(stage.kind, later, stage.to_json())
    for planned in (key, stage.key):
        with pytest.raises(ValueError, match=rf"planned by another version of bpcbench: .*{stage.key}; plan again"):
            stage_from_json(stage.kind, later, planned, carried(stage.to_json()))


def tampered(stage: Stage, change: Callable[[Any], object]) -> Any:
    description = carried(stage.to_json())
    change(description)
    assert description != carried(stage.to_json())
    return description


TAMPERED: dict[str, tuple[Stage, Callable[[Any], object]]] = {
    "seed": (CORESET, lambda d: d.update(seed=7)),
    "option": (CORESET, lambda d: d["method"]["$plugin"]["options"].update(steps=7)),
    "nested option": (
        CORESET,
        lambda d: d["method"]["$plugin"]["options"]["net"]["$plugin"]["options"].update(width=7),
    ),
    "version": (PREDICT, lambda d: d["inference"]["$plugin"].update(version=7)),
    "data": (PREREQUISITE, lambda d: d["data"].update(fingerprint="mine")),
    "input": (SCORE, lambda d: d["predictions"].reverse()),
}


@pytest.mark.parametrize(("stage", "change"), TAMPERED.values(), ids=TAMPERED)
def test_a_tampered_description_is_refused(stage: Stage, change: Callable[[Any], object]) -> None:
    description = tampered(stage, change)
    with pytest.raises(ValueError, match=f"{stage.kind}:{stage.key} was planned by another version"):
        stage_from_json(stage.kind, stage.body_version, stage.key, description)


UNREADABLE: dict[str, tuple[Stage, Callable[[Any], object]]] = {
    "missing field": (CORESET, lambda d: d.pop("transform")),
    "missing splits": (PREDICT, lambda d: d.pop(UNKEYED)),
    "no plugin": (SCORE, lambda d: d.update(evaluator="right")),
    "no address": (PREDICT, lambda d: d.update(coresets=["nothing"])),
    "no mapping": (PREREQUISITE, lambda d: d.update(data=3)),
    "fewer splits than predictions": (SCORE, lambda d: d[UNKEYED]["wanted"].pop()),
}


@pytest.mark.parametrize(("stage", "change"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_description_that_cannot_be_read_is_refused(stage: Stage, change: Callable[[Any], object]) -> None:
    with pytest.raises(ValueError, match=r"cannot be read|not the description of a plugin|not an address|shorter"):
        stage_from_json(stage.kind, stage.body_version, stage.key, tampered(stage, change))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no kind of stage 'guess'"):
        stage_from_json("guess", 1, "0" * 32, {})


@pytest.fixture
def small(install: Callable[..., Registry], write_suite: Callable[..., str], tmp_path: Path) -> Plan:
    """A plan with every kind of stage, of one cell for each of two methods."""
    registry = install(toys)
    keys = {"methods": ["pick", "guided"], "ipc": [1], "seeds": 1, "evaluators": ["right", "elsewhere"]}
    file = write_suite(yaml.safe_dump(yaml.safe_load(TOYS) | keys))
    return make(registry, load(registry, file), None, tmp_path)


def test_the_keys_of_a_small_suite_never_change(small: Plan) -> None:
    found = {f"{planned.kind} {planned.label}": planned.id for planned in small.stages}
    assert len(found) == len(small.stages)
    assert found == GOLDEN, CHANGED
