"""The records that cross the border between harness and plugins: what is kept of them is all of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpcbench.records import Coreset, Facts, FittedRef, Recipe, Ref, Resources, Task, union

RECIPE = Recipe(
    preprocessing=FittedRef(Ref("scale"), "prerequisite:a@final"),
    network=Ref("line", {"width": 3}),
    inference=Ref("centroid"),
    scalars={"temperature": 0.5, "beta": 2.0},
)


def coreset(rows: int = 3, convention: Any = "class", start: float = 0.0, **fields: Any) -> Coreset:
    images = (start + np.arange(rows * 8, dtype=np.float32)).reshape(rows, 2, 2, 2)
    targets: Any = np.arange(rows) % 2 if convention == "class" else np.eye(2, dtype=np.float32)[np.arange(rows) % 2]
    return Coreset(images=images, targets=targets, classes=2, convention=convention, **fields)


def same(one: Coreset, two: Coreset) -> None:
    assert one.arrays().keys() == two.arrays().keys()
    for name, array in one.arrays().items():
        np.testing.assert_array_equal(array, two.arrays()[name])
        assert array.dtype == two.arrays()[name].dtype
    assert (one.classes, one.convention, one.recipe) == (two.classes, two.convention, two.recipe)


@pytest.mark.parametrize("convention", ["class", "probabilities", "centred"])
@pytest.mark.parametrize("weights", [None, np.array([0.5, 2.0, 1.0], np.float32)], ids=["equal", "weighted"])
@pytest.mark.parametrize("class_ids", [None, np.array([1, 1, 0])], ids=["derived", "given"])
def test_what_is_kept_of_a_coreset_restores_it(convention: str, weights: Any, class_ids: Any) -> None:
    made = coreset(convention=convention, weights=weights, class_ids=class_ids, recipe=RECIPE)
    assert ("weights" in made.arrays()) == (weights is not None)
    description = json.loads(json.dumps(made.description()))
    assert (description["rows"], description["bytes"]) == (3, made.nbytes)
    same(Coreset.restore(made.arrays(), description, RECIPE), made)
    # The recipe's scalars are the coreset's own; its references come from the stage.
    bare = Coreset.restore(made.arrays(), description)
    assert bare.recipe == Recipe(scalars=RECIPE.scalars)


def test_class_numbers_stand_for_themselves_and_rows_for_their_largest_target() -> None:
    assert coreset().class_ids.tolist() == [0, 1, 0]
    assert coreset().class_ids.dtype == np.int64
    soft = np.array([[0.4, 0.6], [0.9, 0.1]], np.float32)
    images = np.zeros((2, 1, 2, 2), np.float32)
    assert Coreset(images=images, targets=soft, classes=2, convention="probabilities").class_ids.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"images": np.zeros((3, 4), np.float32)}, r"float32 \(n, c, h, w\), got float32 \(3, 4\)"),
        ({"images": np.zeros((3, 2, 2, 2))}, "got float64"),
        ({"targets": np.zeros(2, np.int64)}, r"'class' targets must have shape \(3,\), got \(2,\)"),
        ({"convention": "centred"}, r"'centred' targets must have shape \(3, 2\), got \(3,\)"),
        ({"class_ids": np.zeros(4, np.int64)}, r"class_ids must have shape \(3,\), got \(4,\)"),
        ({"weights": np.ones(2, np.float32)}, r"weights must have shape \(3,\), got \(2,\)"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(coreset(), **fields)


def test_records_of_many_fields_are_written_with_names() -> None:
    made = coreset()
    with pytest.raises(TypeError):
        Coreset(made.images, made.targets, made.class_ids, 2)  # type: ignore[call-arg,misc]
    with pytest.raises(TypeError):
        Facts((1, 2, 2), 2, {})  # type: ignore[call-arg,misc]


def test_a_union_holds_the_rows_in_order() -> None:
    one, two = coreset(2, class_ids=np.array([1, 0]), recipe=RECIPE), coreset(3, start=100.0, recipe=RECIPE)
    both = union([one, two])
    np.testing.assert_array_equal(both.images, np.concatenate([one.images, two.images]))
    np.testing.assert_array_equal(both.targets, [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(both.class_ids, [1, 0, 0, 1, 0])
    assert (len(both), both.weights, both.recipe) == (5, None, RECIPE)
    assert union([one]) is one


def test_rows_without_weights_count_once_in_a_union() -> None:
    weighted = coreset(2, weights=np.array([3.0, 0.5], np.float32))
    np.testing.assert_array_equal(union([coreset(1), weighted, coreset(2)]).weights, [1.0, 3.0, 0.5, 1.0, 1.0])


def test_scalars_on_which_coresets_differ_are_left_out_of_their_union() -> None:
    others = [{"temperature": 0.5, "beta": 3.0}, {"temperature": 0.5}]
    parts = [coreset(recipe=RECIPE), *(coreset(recipe=replace(RECIPE, scalars=scalars)) for scalars in others)]
    assert union(parts).recipe == replace(RECIPE, scalars={"temperature": 0.5})


def test_coresets_of_different_targets_have_no_union() -> None:
    for other in (coreset(convention="probabilities"), replace(coreset(), classes=3)):
        with pytest.raises(ValueError, match="have no union"):
            union([coreset(), other])


words = st.text(min_size=1, max_size=6)


@given(
    stage=st.dictionaries(words, st.none() | st.integers() | words | st.lists(words)),
    threads=st.integers(1, 64),
    timeout=st.none() | st.floats(0, 1e6),
    gpus=st.floats(0, 8),
    memory=st.none() | st.floats(0, 1e3),
    preload=st.lists(words).map(tuple),
    visible=st.none() | words,
)
def test_a_task_survives_json(
    stage: dict[str, Any],
    threads: int,
    timeout: float | None,
    gpus: float,
    memory: float | None,
    preload: tuple[str, ...],
    visible: str | None,
) -> None:
    task = Task(
        id="coreset:ab", kind="coreset", key="ab", body_version=1, stage=stage, label="a label", store=Path("/a/store"),
        data=Path("data"), attempt="first", log=Path("a/log"), threads=threads, device="cpu", timeout=timeout, jobs=2,
        resources=Resources(gpus, memory), preload=preload, family="f", visible=visible,
        along=({"key": "cd", "label": "another", "stage": stage},),
    )  # fmt: skip
    again = Task.from_json(json.loads(json.dumps(task.to_json())))
    assert again == task
    assert (again.resources, again.preload, again.store) == (Resources(gpus, memory), preload, Path("/a/store"))


def test_marks_of_a_data_set() -> None:
    facts = Facts(shape=(1, 2, 2), classes=2, sizes={"train": 4})
    assert facts.marks == ()
    assert replace(facts, notes=("generated",)).marks == ("generated",)
    assert replace(facts, official=False).marks == ("subset",)
    assert replace(facts, official=False, notes=("generated",)).marks == ("subset", "generated")
