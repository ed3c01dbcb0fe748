"""What evaluators are given: other data sets converted or left out, subsets of splits, and what tables say of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
import yaml
from toys import TOYS, Centroid, Dots

import bpcbench
from bpcbench import MissingData, Predictive, Session
from bpcbench.data.conversion import converted
from bpcbench.data.splits import load_split
from bpcbench.errors import Mistakes, UserError
from bpcbench.planning.plan import Plan, make
from bpcbench.planning.stages import PredictStage
from bpcbench.registry.discovery import Registry
from bpcbench.running.predictions import read_predictions
from bpcbench.store.address import Address
from bpcbench.store.store import Store
from bpcbench.suite.files import load
from bpcbench_evaluators.classification import NOT_HELD_OUT

Planning = Callable[..., Plan]


@dataclass(frozen=True)
class Tall(Dots):
    """Colour images of another size, of five classes; its notes must reach the tables of others."""

    name = "tall"

    def facts(self, root: Path) -> bpcbench.Facts:
        return bpcbench.Facts(shape=(3, 8, 8), classes=5, sizes={"train": 40, "test": 30}, notes=("generated",))

    def load(self, root: Path, split: str) -> bpcbench.Split:
        rng = np.random.default_rng(3)
        count = self.facts(root).sizes[split]
        return bpcbench.Split(rng.integers(0, 256, (count, 3, 8, 8), dtype=np.uint8), np.arange(count) % 5)


@dataclass(frozen=True)
class Gone(Dots):
    """Data that are there once a file is."""

    name = "gone"

    def _entropy(self, root: Path) -> bytes:
        if not (root / "gone.bin").exists():
            raise MissingData(f"place gone.bin in {root}")
        return b"gone"


@dataclass(frozen=True)
class Sampled(Centroid):
    """Two members, with a predictive variance."""

    name = "sampled"

    def fit(self, coreset: Any, network: Any, inputs: Any, ctx: Any) -> Any:
        near = super().fit(coreset, network, inputs, ctx)

        class Two(Predictive):
            def predict(self, images: Any) -> Any:
                both = np.stack([near.log_probs(images), near.log_probs(images * np.float32(0.5))])
                return bpcbench.Predicted(both, {"variance": images.mean((1, 2, 3))})

        return Two()


CLASSES = (Tall, Gone, Sampled)


@pytest.fixture
def planning(install: Callable[..., Registry], write_suite: Callable[..., str], tmp_path: Path) -> Planning:
    """Return a function that plans the toy suite with overrides, or with some keys replaced; there is no store."""

    def plan(*overrides: str, skip_missing: bool = False, **keys: Any) -> Plan:
        found = install(toys, *CLASSES)
        file = write_suite(yaml.safe_dump(yaml.safe_load(TOYS) | keys))
        return make(found, load(found, file, overrides), None, tmp_path / "data", skip_missing=skip_missing)

    (tmp_path / "data").mkdir()
    return plan


def ids(plan: Plan, *kinds: str) -> set[str]:
    return {planned.stage.id for planned in plan.stages if planned.stage.kind in kinds}


def members(plan: Plan) -> set[str]:
    return {member for planned in plan.stages if planned.stage.kind == "predict" for member in planned.stage.members}


def notes(plan: Plan) -> tuple[str, ...]:
    (found,) = {cell.choice.notes for cell in plan.cells if cell.choice is not None}
    return found


def test_a_set_that_is_not_there_does_not_sink_the_others(planning: Planning, tmp_path: Path) -> None:
    before = planning("evaluators={right: , ood: {sets: [blobs, gone]}}")
    assert {name.partition("/")[0] for name in members(before)} == {"dots", "blobs"}
    assert all(set(cell.scores) == {"right", "ood"} for cell in before.cells)
    assert notes(before) == ("toy", "blobs: toy", "gone: not there, left out")
    assert before.notes == (f"evaluators.ood does without a split: place gone.bin in {tmp_path / 'data'}",)
    (tmp_path / "data" / "gone.bin").write_bytes(b"")
    after = planning("evaluators={right: , ood: {sets: [blobs, gone]}}")
    assert members(after) > members(before)
    assert ids(after, "coreset", "predict") == ids(before, "coreset", "predict")
    assert after.notes == ()
    assert notes(after) == ("toy", "blobs: toy", "gone: toy")
    for old, new in zip(before.cells, after.cells, strict=True):
        assert old.scores["right"] == new.scores["right"]
        assert old.scores["ood"] != new.scores["ood"]


def test_an_evaluator_whose_every_other_data_set_is_missing_is_missing(planning: Planning) -> None:
    with pytest.raises(Mistakes, match=r"evaluators.ood: place gone.bin in .* \(or run with --skip-missing\)"):
        planning("evaluators={right: , ood: {sets: [gone]}}")
    plan = planning("evaluators={right: , ood: {sets: [gone]}}", skip_missing=True)
    assert all(set(cell.scores) == {"right"} for cell in plan.cells)
    assert notes(plan) == ("toy",)


def test_a_set_of_no_data_set_is_a_mistake(planning: Planning) -> None:
    with pytest.raises(UserError, match="unknown dataset 'blob'; did you mean 'blobs'"):
        planning("evaluators={ood: {sets: [blob]}}")
    with pytest.raises(UserError, match="no data set is out of distribution for 'dots'; name some"):
        planning("evaluators=[ood]")


def test_the_default_sets_go_by_the_plugin_and_not_by_its_label(registry: Registry, tmp_path: Path) -> None:
    suite = {"protocol": 1, "datasets": {"mine": "digits"}, "ipc": 1, "methods": ["random"], "inferences": ["network"]}
    file = tmp_path / "suite.yaml"
    file.write_text(yaml.safe_dump({**suite, "networks": ["conv-bn"], "evaluators": ["ood"]}))
    with pytest.raises(Mistakes, match=r"evaluators.ood: .*Fashion"):
        make(registry, load(registry, str(file)), None, tmp_path / "nothing")


def test_another_data_set_changes_no_coreset_and_no_other_prediction(planning: Planning) -> None:
    alone, beside = planning(), planning("evaluators={right: , ood: {sets: [blobs, tall]}}")
    assert ids(alone, "prerequisite", "coreset", "predict") == ids(beside, "prerequisite", "coreset", "predict")
    assert members(alone) < members(beside)
    assert ids(alone, "score") < ids(beside, "score")


def test_images_of_another_shape_are_converted_and_it_is_said(planning: Planning) -> None:
    plan = planning("evaluators={ood: {sets: [tall, blobs]}}")
    (stage, *_) = (planned.stage for planned in plan.stages if planned.stage.kind == "predict")
    assert isinstance(stage, PredictStage)
    shapes = {split.dataset.name: (split.member.partition("/")[0], split.shape) for split in stage.splits}
    assert shapes == {"dots": ("dots", None), "blobs": ("blobs", None), "tall": ("tall", (1, 4, 4))}
    assert notes(plan) == ("toy", "tall: generated", "tall: colour made grey, resized to 4x4", "blobs: toy")
    # The same images in another shape are other inputs.
    own = planning("datasets=[tall]", "evaluators=[right]")
    assert members(own).isdisjoint(members(plan))


def test_a_subset_is_named_in_keys_and_tables(planning: Planning) -> None:
    whole, part = planning(), planning("examples=6")
    assert ids(whole, "coreset", "predict") == ids(part, "coreset", "predict")
    assert ids(whole, "score").isdisjoint(ids(part, "score"))
    assert {name.partition("~")[0] for name in members(part)} == {"dots/test-6"}
    assert members(part).isdisjoint(members(planning("examples=7")))
    assert notes(part) == ("toy", "6 of 20 test images")
    beside = planning("examples=25", "evaluators={ood: {sets: [tall]}}")
    assert notes(beside)[-1] == "tall: 25 of 30 images"
    assert {name.partition("~")[0] for name in members(beside)} == {"dots/test", "tall/test-25"}


@pytest.mark.parametrize("override", ["examples=null", "examples=20", "examples=1000"])
def test_all_of_a_split_has_the_key_it_always_had(planning: Planning, override: str) -> None:
    plan = planning(override)
    kinds = ("prerequisite", "coreset", "predict", "score")
    assert ids(plan, *kinds) == ids(planning(), *kinds)
    assert members(plan) == members(planning())
    assert notes(plan) == ("toy",)


@pytest.mark.parametrize("value", ["0", "-5", "many", "true", "1.5", "[3]"])
def test_examples_must_be_a_number_of_images(planning: Planning, value: str) -> None:
    with pytest.raises(Mistakes, match="examples: expected an integer above 0, or null for all images, got"):
        planning(f"examples={value}")


def test_while_tuning_no_temperature_is_fitted_on_what_is_evaluated(planning: Planning) -> None:
    evaluators = "evaluators={classification: {temperature: true}}"
    final, tuning = planning(evaluators), planning(evaluators, "split=validation")
    assert {name.partition("~")[0] for name in members(final)} == {"dots/test", "dots/validation"}
    assert {name.partition("~")[0] for name in members(tuning)} == {"dots/validation"}
    reason = "nothing is held out beside the validation split, which is evaluated"
    assert notes(tuning) == ("toy", reason)
    assert tuning.notes == (f"evaluators.classification does without a split: {reason}",)
    assert notes(final) == ("toy", NOT_HELD_OUT)
    assert NOT_HELD_OUT not in notes(planning("evaluators={classification: {temperature: false}}"))
    with pytest.raises(UserError, match="no test split may be predicted, and an evaluator asks for 'test' of blobs"):
        planning("evaluators={ood: {sets: [blobs]}}", "split=validation")


def test_asking_for_a_temperature_changes_no_prediction_that_is_there(planning: Planning) -> None:
    plain, fitted = (planning(f"evaluators={{classification: {{temperature: {t}}}}}") for t in ("false", "true"))
    assert members(plain) < members(fitted)
    assert ids(plain, "coreset", "predict") == ids(fitted, "coreset", "predict")


def test_subsets_are_stratified_and_the_same_for_all(tmp_path: Path) -> None:
    whole = load_split(Tall(), tmp_path, "test")
    part = load_split(Tall(), tmp_path, "test", examples=10)
    assert part.labels is not None
    assert np.bincount(part.labels).tolist() == [2] * 5
    rows = [image.tobytes() for image in whole.images]
    places = [rows.index(image.tobytes()) for image in part.images]
    assert places == sorted(places)
    again = load_split(Tall(), tmp_path, "test", examples=10)
    np.testing.assert_array_equal(again.images, part.images)
    assert len(load_split(Tall(), tmp_path, "test", examples=99)) == 30

    @dataclass(frozen=True)
    class Unlabelled(Tall):
        def load(self, root: Path, split: str) -> bpcbench.Split:
            return bpcbench.Split(super().load(root, split).images, None)

    bare = load_split(Unlabelled(), tmp_path, "test", examples=10)
    assert (len(bare), bare.labels) == (10, None)


def test_a_run_predicts_what_the_plan_describes(
    install: Callable[..., Registry], write_suite: Callable[..., str], tmp_path: Path
) -> None:
    install(toys, *CLASSES)
    suite = yaml.safe_load(TOYS) | {
        "inferences": ["sampled"],
        "evaluators": {"classification": {"temperature": True}, "ood": {"sets": ["blobs", "tall", "gone"]}},
        "examples": 15,
        "metrics": ["acc", "nll_ts", "blobs/auroc", "tall/mutual_information/auroc", "tall/variance/fpr95"],
    }
    file = write_suite(yaml.safe_dump(suite))
    options: dict[str, Any] = {"out": tmp_path / "out", "data": str(tmp_path)}
    said: list[str] = []
    result = bpcbench.run(
        file, ["seeds=1", "ipc=1"], inline=True, track=False, quiet=True, report_to=said.append, **options
    )
    assert (result.exit_code, said) == (
        0, [f"note: evaluators.ood does without a split: place gone.bin in {tmp_path}"]
    )  # fmt: skip
    rows = Session(file, ["seeds=1", "ipc=1"], **options).rows()
    found = {row.metric: row.value for row in rows}
    assert set(suite["metrics"]) <= set(found)
    assert not any(metric.startswith("gone/") for metric in found)
    assert {row.notes for row in rows} == {
        ("toy", "15 of 20 test images", "blobs: toy", "blobs: 15 of 20 images", "tall: generated",
         "tall: colour made grey, resized to 4x4", "tall: 15 of 30 images", "gone: not there, left out", NOT_HELD_OUT)
    }  # fmt: skip
    store = Store.open(tmp_path / "out")
    plan = Session(file, ["seeds=1", "ipc=1"], out=tmp_path / "another", data=str(tmp_path)).plan()
    (stage,) = (planned.stage for planned in plan.stages if planned.stage.kind == "predict")
    stored = {}
    assert isinstance(stage, PredictStage)
    for split in stage.splits:
        artefact = store.read(Address("predict", stage.key, split.member))
        stored[split.member.partition("~")[0]] = read_predictions(artefact)
    assert {name: len(p.log_probs) for name, p in stored.items()} == {
        "dots/test-15": 15, "dots/validation": 4, "blobs/test-15": 15, "tall/test-15": 15
    }  # fmt: skip
    # Class numbers of another data set mean nothing here, unless it has as many classes.
    assert stored["tall/test-15"].labels is None
    assert stored["tall/test-15"].member_log_likelihood is None
    assert stored["tall/test-15"].expected_entropy is not None
    assert stored["blobs/test-15"].labels is not None
    images = converted(load_split(Tall(), tmp_path, "test", examples=15).images, (1, 4, 4))
    top = load_split(Dots(), tmp_path, "train").images.max()
    np.testing.assert_allclose(stored["tall/test-15"].extras["variance"], (images / top).mean((1, 2, 3)), rtol=1e-6)
