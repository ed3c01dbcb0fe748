"""Splits: validation is held out, fixed and stratified; methods never see test data; bad data sets are told so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
from toys import TOYS, Centroid, Dots, Pick

import bpcbench
from bpcbench.data.splits import VALIDATION, check_split, load_split, planning_facts, training_data
from bpcbench.errors import UserError
from bpcbench.records import Facts, Split
from bpcbench.registry.discovery import Registry

ROOT = Path("/none")


@dataclass(frozen=True)
class Numbered(bpcbench.Dataset):
    """Three unequal classes; every image holds its own number, so that it can be recognised."""

    name = "numbered"

    def facts(self, root: Path) -> Facts:
        return Facts(shape=(1, 1, 2), classes=3, sizes={"train": 400, "test": 30})

    def fingerprint(self, root: Path, split: str) -> str:
        return split

    def load(self, root: Path, split: str) -> Split:
        first, last = (0, 400) if split == "train" else (400, 430)
        numbers = np.arange(first, last)
        labels = np.digitize(numbers % 10, [1, 4])  # shares of 1, 3 and 6 tenths
        return Split(np.stack([numbers // 256, numbers % 256], 1).astype(np.uint8).reshape(-1, 1, 1, 2), labels)


def numbers(split: Split) -> list[int]:
    return [256 * int(image[0, 0, 0]) + int(image[0, 0, 1]) for image in split.images]


def test_validation_and_the_rest_of_train_are_disjoint_and_complete() -> None:
    held, kept, train, test = (
        load_split(Numbered(), ROOT, VALIDATION),
        load_split(Numbered(), ROOT, "train", holdout=True),
        load_split(Numbered(), ROOT, "train"),
        load_split(Numbered(), ROOT, "test", holdout=True),
    )
    assert set(numbers(held)).isdisjoint(numbers(kept))
    assert sorted(numbers(held) + numbers(kept)) == numbers(train) == list(range(400))
    assert numbers(test) == list(range(400, 430))
    for split in (held, kept):
        assert split.labels is not None
        np.testing.assert_array_equal(split.labels, np.digitize(np.array(numbers(split)) % 10, [1, 4]))


def test_validation_is_a_tenth_of_every_class() -> None:
    held = load_split(Numbered(), ROOT, VALIDATION)
    assert held.labels is not None
    assert np.bincount(held.labels).tolist() == [4, 12, 24]


def test_validation_is_always_the_same() -> None:
    first, again = (numbers(load_split(Numbered(), ROOT, VALIDATION, holdout=h)) for h in (True, False))
    assert first == again
    # Settings that were tuned on other rows are not comparable: a change must be deliberate.
    assert first[:12] == [9, 22, 27, 30, 48, 50, 64, 85, 87, 89, 103, 113]


def test_methods_are_told_what_they_get() -> None:
    whole, less = (training_data(Numbered(), ROOT, holdout=h) for h in (False, True))
    assert (len(whole.train), whole.facts.sizes["train"]) == (400, 400)
    assert (len(less.train), less.facts.sizes["train"]) == (360, 360)
    for holdout, size in ((False, 400), (True, 360)):
        assert planning_facts(Numbered().facts(ROOT), holdout=holdout).sizes == {"train": size, "test": 30}


def test_unknown_splits_are_refused_with_what_there_is() -> None:
    with pytest.raises(
        UserError, match=r"data set numbered: unknown split 'tset'; did you mean 'test'\? \(allowed: test, t"
    ):
        load_split(Numbered(), ROOT, "tset")
    assert check_split(Numbered(), ROOT, VALIDATION).classes == 3


@dataclass(frozen=True)
class OnlyTest(Numbered):
    name = "test-only"

    def facts(self, root: Path) -> Facts:
        return Facts(shape=(1, 1, 2), classes=3, sizes={"test": 30})


@dataclass(frozen=True)
class Unlabelled(Numbered):
    name = "unlabelled"

    def load(self, root: Path, split: str) -> Split:
        return Split(super().load(root, split).images, None)


def test_a_data_set_without_train_can_be_evaluated_but_not_distilled() -> None:
    assert len(load_split(OnlyTest(), ROOT, "test")) == 30
    message = r"data set test-only: unknown split 'train' \(allowed: test\)"
    with pytest.raises(UserError, match=message):
        check_split(OnlyTest(), ROOT, "train")
    with pytest.raises(UserError, match="unknown split 'validation'"):
        load_split(OnlyTest(), ROOT, VALIDATION)


def test_without_labels_nothing_can_be_held_out() -> None:
    assert load_split(Unlabelled(), ROOT, "test").labels is None
    with pytest.raises(UserError, match="unlabelled has no training labels, so no validation split can be held out"):
        load_split(Unlabelled(), ROOT, VALIDATION)
    with pytest.raises(ValueError, match="no training labels"):
        _ = training_data(Unlabelled(), ROOT, holdout=False).labels


def changed(**changes: Callable[[Any], Any]) -> bpcbench.Dataset:
    @dataclass(frozen=True)
    class Changed(Numbered):
        name = "changed"

        def load(self, root: Path, split: str) -> Split:
            found = super().load(root, split)
            parts = {"images": found.images, "labels": found.labels}
            return Split(**{name: changes.get(name, lambda x: x)(value) for name, value in parts.items()})

    return Changed()


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (changed(images=lambda x: x.astype(np.float32)), r"images must be uint8 \(n, 1, 1, 2\), got float32"),
        (changed(images=lambda x: x.transpose(0, 3, 1, 2)), r"images must be uint8 \(n, 1, 1, 2\), got uint8 \(3"),
        (changed(images=lambda x: x[:5], labels=lambda y: y[:5]), "5 images, but its facts say 30"),
        (changed(labels=lambda y: y[:-1]), r"30 images but labels \(29,\)"),
        (changed(labels=lambda y: y.astype(float)), "labels must be int64, got float64"),
        (changed(labels=lambda y: y + 1), r"labels must lie in 0 ... 2, got 1 ... 3"),
        (changed(labels=lambda y: y - 1), r"labels must lie in 0 ... 2, got -1 ... 1"),
    ],
    ids=["dtype", "channels last", "sizes", "lengths", "label dtype", "labels from 1", "labels below 0"],
)  # fmt: skip
def test_a_data_set_that_breaks_its_contract_is_told_so(dataset: bpcbench.Dataset, message: str) -> None:
    with pytest.raises(ValueError, match="data set changed, split test: " + message):
        load_split(dataset, ROOT, "test")


def test_bad_data_fail_their_stages_with_that_message(
    install: Callable[..., Registry], write_suite: Callable[..., str], tmp_path: Path
) -> None:
    install(toys, type(changed(labels=lambda y: y + 1)))
    suite = write_suite(TOYS.replace("[dots]", "[changed]"))
    result = bpcbench.run(suite, ["seeds=1", "ipc=1"], out=tmp_path / "out", inline=True, track=False, quiet=True)
    assert result.exit_code == 1
    (failure,) = result.failures
    assert "data set changed, split train: labels must lie in 0 ... 2, got 1 ... 3" in failure.message
    assert result.counts == {"failed": 1, "skipped": 3}


SEEN: dict[str, list[Any]] = {}


@dataclass(frozen=True)
class Spy(Pick):
    """A method that notes everything it is handed."""

    name = "spy"

    def distil(self, data: Any, ipc: int, inputs: Any, ctx: Any) -> Any:
        SEEN["data"] = [data]
        SEEN["arrays"] = [*vars(data.train).values(), *inputs.transform.arrays.values()]
        return super().distil(data, ipc, inputs, ctx)


@dataclass(frozen=True)
class SpyInference(Centroid):
    """An inference that notes the images it has to predict."""

    name = "spy-inference"

    def fit(self, coreset: Any, network: Any, inputs: Any, ctx: Any) -> Any:
        SEEN["coreset"] = [coreset]
        return super().fit(coreset, network, inputs, ctx)


@pytest.mark.parametrize(("split", "seen"), [("test", 40), ("validation", 36)])
def test_methods_and_inferences_are_never_handed_test_data(
    install: Callable[..., Registry], write_suite: Callable[..., str], tmp_path: Path, split: str, seen: int
) -> None:
    SEEN.clear()
    install(toys, Spy, SpyInference)
    suite = write_suite(TOYS.replace("[pick]", "[spy]").replace("[centroid]", "[spy-inference]"))
    overrides = ["seeds=1", "ipc=1", f"split={split}"]
    result = bpcbench.run(suite, overrides, out=tmp_path / "out", inline=True, track=False, quiet=True)
    assert result.exit_code == 0
    (data,) = SEEN["data"]
    assert set(vars(data)) == {"facts", "train"}
    assert len(data.train) == data.facts.sizes["train"] == seen
    evaluated = load_split(Dots(), tmp_path, split)
    rows = {image.tobytes() for image in evaluated.images}
    assert len(rows) == len(evaluated)
    assert rows.isdisjoint(image.tobytes() for image in data.train.images)
    assert all(isinstance(array, np.ndarray) and len(array) in (1, seen) for array in SEEN["arrays"])
    (coreset,) = SEEN["coreset"]
    assert coreset.weights is None
    kept = {type(value) for name, value in vars(coreset).items() if name != "weights"}
    assert kept == {np.ndarray, int, str, bpcbench.Recipe}
    assert len(SEEN["coreset"][0]) == 2
