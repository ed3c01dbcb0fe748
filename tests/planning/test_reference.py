"""Evaluators that compare with a reference, or look at the coreset, are given both; other keys stay as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
import yaml
from toys import TOYS

import bpcbench
from bpcbench import Ref, SplitRef, option
from bpcbench.planning.plan import Plan, make
from bpcbench.planning.stages import PredictStage, Stage
from bpcbench.records import Reference
from bpcbench.registry.discovery import Registry
from bpcbench.running.bodies import attempt
from bpcbench.running.run import make_task
from bpcbench.store.store import Store
from bpcbench.suite.files import load


@dataclass(frozen=True)
class Compared(bpcbench.Evaluator):
    """Compares with all images under another inference, and looks at the coreset."""

    name = "compared"
    uses_coreset = True
    heat: float = option(3.0, "of the reference")

    def splits(self, facts: Any) -> Any:
        return (SplitRef(), SplitRef("test", Ref("blobs")))

    def reference(self, facts: Any) -> Reference:
        return Reference(Ref("everything"), Ref("centroid", {"heat": self.heat}))

    def metrics(self) -> list[bpcbench.Metric]:
        return [bpcbench.Metric("apart", "lower"), bpcbench.Metric("rows", None)]

    def score(self, predictions: Any, inputs: Any) -> bpcbench.Scores:
        assert set(inputs.reference) == set(predictions) == set(self.splits(None))
        ours, theirs = predictions[SplitRef()], inputs.reference[SplitRef()]
        np.testing.assert_array_equal(ours.labels, theirs.labels)
        apart = float(np.abs(np.exp(ours.log_probs) - np.exp(theirs.log_probs)).mean())
        return bpcbench.Scores({"apart": apart, "rows": len(inputs.coreset)})


@pytest.fixture
def planning(install: Callable[..., Registry], write_suite: Callable[..., str], tmp_path: Path) -> Callable[..., Plan]:
    found = install(toys, Compared)

    def plan(*overrides: str, store: Store | None = None, **keys: Any) -> Plan:
        file = write_suite(yaml.safe_dump(yaml.safe_load(TOYS) | keys))
        return make(found, load(found, file, overrides), store, tmp_path)

    return plan


def everything(plan: Plan, folder: Path) -> Store:
    """Make every stage of a plan."""
    store = Store.open(folder / "store", create=True)
    for planned in plan.stages:
        outcome = attempt(make_task(planned, folder / "store", folder, log=folder / "log"))
        assert outcome.status in ("done", "cached"), outcome
    return store


def predicts(plan: Plan) -> list[PredictStage]:
    return [planned.stage for planned in plan.stages if isinstance(planned.stage, PredictStage)]


def scores(plan: Plan, plugin: str) -> list[Stage]:
    return [planned.stage for planned in plan.stages if (planned.kind, planned.plugin) == ("score", plugin)]


def test_a_reference_is_planned_once_and_predicts_what_its_evaluator_asks_for(planning: Callable[..., Plan]) -> None:
    plan = planning(evaluators=["right", "compared"])
    (reference,) = (stage for stage in predicts(plan) if stage.seed == "reference")
    assert len(reference.members) == 2
    assert reference.inference.reference() == {"plugin": "centroid", "heat": 3.0}
    assert len(scores(plan, "compared")) == len(scores(plan, "right")) == 8
    assert all(reference.id in stage.needs for stage in scores(plan, "compared"))
    assert not any(reference.id in stage.needs for stage in scores(plan, "right"))


def test_the_options_of_the_reference_are_part_of_the_score_alone(planning: Callable[..., Plan]) -> None:
    one, two = (planning(evaluators={"compared": {"heat": heat}}) for heat in (3.0, 4.0))
    keys = [{stage.key for stage in scores(plan, "compared")} for plan in (one, two)]
    assert keys[0].isdisjoint(keys[1])
    own = [{stage.key for stage in predicts(plan) if stage.seed != "reference"} for plan in (one, two)]
    assert own[0] == own[1]


def test_scores_see_the_reference_and_the_coreset(planning: Callable[..., Plan], tmp_path: Path) -> None:
    plan = planning("seeds=1", evaluators=["compared"], methods=["pick", "everything"])
    store = everything(plan, tmp_path)
    found = {(c.at.method, c.at.ipc): store.meta(c.scores["compared"])["metrics"] for c in plan.cells}
    assert [found["pick", ipc]["rows"] for ipc in (1, 2)] == [2, 4]
    assert found["everything", 1]["rows"] == 40
    # Two runs of one thing differ by their seeds; a few images by more than that.
    assert 0 < found["everything", 1]["apart"] < found["pick", 1]["apart"]
    # A coreset that was pruned is made again for an evaluator that looks at it, though its predictions are there.
    (cell,) = (c for c in plan.cells if (c.at.method, c.at.ipc) == ("pick", 2))
    (coreset,) = cell.coresets
    store.remove(coreset)
    store.remove(cell.scores["compared"])
    again = planning("seeds=1", evaluators=["compared"], methods=["pick", "everything"], store=store)
    assert sorted(p.stage.kind for p in again.stages if p.status == "to do") == ["coreset", "score"]
