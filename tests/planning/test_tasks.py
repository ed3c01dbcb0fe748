"""Class-incremental learning: what is distilled of which classes, what is shared, what is predicted and scored when."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
import yaml
from toys import TOYS, Dots, Guided

import bpcbench
from bpcbench.cli import main
from bpcbench.errors import Mistakes, UserError
from bpcbench.planning.plan import Plan
from bpcbench.planning.stages import CoresetStage, PredictStage, PrerequisiteStage, ScoreStage
from bpcbench.records import SplitRef
from bpcbench.registry.discovery import Registry
from bpcbench.reporting.anytime import points
from bpcbench.reporting.leaderboard import Source, leaderboard
from bpcbench.reporting.pairs import pairs
from bpcbench.session import Session
from bpcbench.store.address import Address
from bpcbench.store.manifest import read_manifest
from bpcbench.store.store import Store
from bpcbench.store.verification import verify
from bpcbench.suite.schema import suite_schema
from bpcbench.suite.tasks import class_order, task_classes
from bpcbench.tracking.cell import read_cell
from bpcbench.tracking.names import cell_name
from bpcbench.tracking.summary import summaries
from bpcbench.tracking.views import saved_views

CLASSES, PER_CLASS = 6, 8


@dataclass(frozen=True)
class Hues(Dots):
    """Six classes of noisy images, far enough apart that means of a few tell most of them apart."""

    name = "hues"

    def facts(self, root: Path) -> bpcbench.Facts:
        sizes = {"train": CLASSES * PER_CLASS, "test": CLASSES * 5}
        return bpcbench.Facts(shape=(1, 4, 4), classes=CLASSES, sizes=sizes)

    def load(self, root: Path, split: str) -> bpcbench.Split:
        rng = np.random.default_rng(len(split))
        labels = np.arange(self.facts(root).sizes[split]) % CLASSES
        images = rng.integers(0, 90, (len(labels), 1, 4, 4)) + 25 * labels[:, None, None, None]
        return bpcbench.Split(images.astype(np.uint8), labels)


@dataclass(frozen=True)
class Steps(bpcbench.Evaluator):
    """Accuracy over the classes seen, after the first and after the last step."""

    name = "steps"
    uses_tasks = True

    def metrics(self) -> Sequence[bpcbench.Metric]:
        return [bpcbench.Metric("first", "higher"), bpcbench.Metric("last", "higher")]

    def score(self, predictions: Any, inputs: Any) -> bpcbench.Scores:
        assert inputs.tasks[-1].predictions[SplitRef()].log_probs.tolist() == predictions[SplitRef()].log_probs.tolist()
        values = []
        for number in (1, len(inputs.tasks)):
            seen = sorted(label for task in inputs.tasks[:number] for label in task.classes)
            found = inputs.tasks[number - 1].predictions[SplitRef()]
            rows = np.isin(found.labels, seen)
            best = np.asarray(seen)[found.log_probs[rows][:, seen].argmax(1)]
            values.append(float((best == found.labels[rows]).mean()))
        return bpcbench.Scores({"first": values[0], "last": values[1]})


@dataclass(frozen=True)
class Slow(toys.Pick):
    """Takes steps, keeps snapshots, logs."""

    name = "slow"

    def distil(self, data: Any, ipc: int, inputs: Any, ctx: Any) -> bpcbench.Coreset:
        made = super().distil(data, ipc, inputs, ctx)
        for _ in ctx.steps(2, state={"images": made.images}, snapshot=lambda: made):
            made.images[:] += 0.001
            ctx.log(level=float(made.images.mean()))
        return made


class Bench:
    """The toy suite in three steps of two classes, a store, and what one does with them."""

    def __init__(self, write_suite: Callable[..., str], out: Path) -> None:
        self.write_suite, self.out = write_suite, out

    def session(self, *overrides: str, recompute: tuple[str, ...] = (), **keys: Any) -> Session:
        base = {
            "datasets": ["hues"],
            "ipc": [2],
            "tasks": {"steps": 3, "orders": [0]},
            "evaluators": ["right", "steps"],
        }
        base["methods"] = {"pick": {"rate": 0.0}}
        text = yaml.safe_dump(yaml.safe_load(TOYS) | base | {"seeds": 1, "metrics": ["first", "last", "right"]} | keys)
        options: Any = {"inline": True, "track": False, "quiet": True, "recompute": recompute}
        return Session(self.write_suite(text), overrides, out=self.out, **options)

    def plan(self, *overrides: str, **keys: Any) -> Plan:
        return self.session(*overrides, **keys).plan()

    def run(self, *overrides: str, **keys: Any) -> dict[str, int]:
        result = self.session(*overrides, **keys).run()
        assert result.failures == ()
        return dict(result.counts)

    def to_do(self, **keys: Any) -> dict[str, int]:
        return dict(Counter(planned.kind for planned in self.plan(**keys).to_do()))

    @property
    def store(self) -> Store:
        return Store.open(self.out)


@pytest.fixture
def bench(install: Callable[..., Registry], write_suite: Callable[..., str], tmp_path: Path) -> Bench:
    install(toys, Hues, Steps, Slow)
    return Bench(write_suite, tmp_path / "out")


def stages(plan: Plan, cls: type) -> list[Any]:
    return [planned.stage for planned in plan.stages if isinstance(planned.stage, cls)]


def orders_that_share_a_step() -> tuple[int, int]:
    """Return two seeds whose orders have a set of classes in common, at different steps."""
    for a in range(40):
        for b in range(a):
            one, other = task_classes(a, CLASSES, 3), task_classes(b, CLASSES, 3)
            if one != other and any(one.index(s) != other.index(s) for s in set(one) & set(other)):
                return b, a
    raise AssertionError


def test_orders_are_the_published_ones() -> None:
    """The first ten and the last four classes of order 0 of CIFAR-100, as DSA's and FRePo's code draws them."""
    order = class_order(0, 100)
    assert order[:10] == (26, 86, 2, 55, 75, 93, 16, 73, 54, 95)
    assert order[-4:] == (67, 64, 47, 44)
    assert sorted(order) == list(range(100))
    assert class_order("natural", 5) == (0, 1, 2, 3, 4)


def test_classes_come_in_equal_steps_each_once() -> None:
    steps = task_classes(3, 100, 5)
    assert [len(step) for step in steps] == [20] * 5
    assert sorted(label for step in steps for label in step) == list(range(100))
    assert set(steps[1]) == set(class_order(3, 100)[20:40])
    with pytest.raises(ValueError, match=r"10 classes cannot come in 3 equal steps \(allowed: 2, 5, 10\)"):
        task_classes(0, 10, 3)


def test_a_coreset_per_step_and_a_prediction_after_each(bench: Bench) -> None:
    plan = bench.plan()
    wanted = task_classes(0, CLASSES, 3)
    coresets = {stage.data.classes: stage.addresses[0] for stage in stages(plan, CoresetStage)}
    assert set(coresets) == set(wanted)
    predictions = sorted(stages(plan, PredictStage), key=lambda stage: len(stage.coresets))
    memories = [stage.coresets for stage in predictions]
    assert memories == [tuple(coresets[step] for step in wanted[:number]) for number in (1, 2, 3)]
    (cell,) = plan.cells
    assert cell.coresets == memories[-1]
    assert cell.order == "0"
    assert [stage.data.classes for stage in stages(plan, PrerequisiteStage)] == [None], "preprocessing sees all classes"
    scored = {stage.evaluator.name: stage for stage in stages(plan, ScoreStage)}
    assert scored["right"].tasks == ()
    assert [task.classes for task in scored["steps"].tasks] == list(wanted)
    assert scored["right"].predictions[0].address.key == cell.predict == predictions[-1].key


def test_only_evaluators_of_steps_cost_predictions_after_earlier_steps(bench: Bench) -> None:
    plan = bench.plan(evaluators=["right"], metrics=["right"])
    assert len(stages(plan, PredictStage)) == 1
    assert len(stages(plan, CoresetStage)) == 3


def test_orders_share_what_is_made_of_equal_sets_of_classes(bench: Bench) -> None:
    one, other = orders_that_share_a_step()
    both = bench.plan(tasks={"steps": 3, "orders": [one, other]})
    sets = {step for order in (one, other) for step in task_classes(order, CLASSES, 3)}
    assert len(sets) < 6
    assert {stage.data.classes for stage in stages(both, CoresetStage)} == sets
    assert len(stages(both, CoresetStage)) == len(sets)
    assert [cell.order for cell in both.cells] == [str(one), str(other)]
    bench.run(tasks={"steps": 3, "order": one})
    left = bench.to_do(tasks={"steps": 3, "orders": [one, other]})
    assert left["coreset"] == len(sets) - 3, "a shared coreset is distilled once"
    assert left["score"] == 2, "the scores of the first order are there"


def test_prerequisites_of_a_method_see_the_classes_of_the_step(bench: Bench) -> None:
    plan = bench.plan(methods=["guided"])
    experts = [s for s in stages(plan, PrerequisiteStage) if s.plugin.name == "means"]
    assert Counter(stage.data.classes for stage in experts) == dict.fromkeys(task_classes(0, CLASSES, 3), 2)
    assert Guided.name == "guided"


def test_a_suite_without_tasks_has_neither_steps_nor_orders(bench: Bench) -> None:
    plan = bench.plan(tasks=None, evaluators=["right"], metrics=["right"])
    assert [stage.data.classes for stage in stages(plan, CoresetStage)] == [None]
    assert [(cell.order, cell.earlier) for cell in plan.cells] == [("", ())]


def test_a_step_of_all_classes_is_the_data_set_itself(bench: Bench) -> None:
    plain = bench.plan(tasks=None, evaluators=["right"], metrics=["right"])
    in_steps = bench.plan(methods=["guided"])
    last = max(stages(in_steps, PredictStage), key=lambda stage: len(stage.coresets))
    assert last.prerequisites == stages(plain, PredictStage)[-1].prerequisites


def test_steps_that_do_not_divide_the_classes_are_one_message(bench: Bench) -> None:
    with pytest.raises(Mistakes, match=r"tasks.steps: data set hues: 6 classes cannot come in 4 equal steps") as caught:
        bench.plan(tasks={"steps": 4})
    assert "(allowed: 2, 3, 6)" in str(caught.value)
    assert not bench.out.exists()


def test_numbers_are_those_of_a_naive_loop(bench: Bench) -> None:
    """Whoever distils, fits and predicts by hand, step by step, gets the same accuracies."""
    bench.run()
    rows = {row.metric: row.value for row in bench.session().rows()}
    data, test = Hues().load(Path(), "train"), Hues().load(Path(), "test")
    top = data.images.max()
    found = {}
    memory: dict[int, Any] = {}
    coresets = [bench.store.read(address).arrays for address in bench.plan().cells[0].coresets]
    for number, (classes, coreset) in enumerate(zip(task_classes(0, CLASSES, 3), coresets, strict=True), 1):
        assert set(np.asarray(coreset["targets"]).tolist()) == set(classes)
        for label in classes:
            memory[label] = np.asarray(coreset["images"])[np.asarray(coreset["targets"]) == label].mean(0)
        seen = sorted(memory)
        rows_seen = np.isin(test.labels, seen)
        distance = ((test.images[rows_seen, None] / top - np.stack([memory[c] for c in seen])) ** 2).mean((2, 3, 4))
        found[number] = float((np.asarray(seen)[distance.argmin(1)] == test.labels[rows_seen]).mean())
    # The toy inference jitters its means a little.
    assert rows["first"] == pytest.approx(found[1], abs=0.11)
    assert rows["last"] == pytest.approx(found[3], abs=0.11) == rows["right"]
    assert 1 / CLASSES < rows["last"] <= rows["first"]


def test_what_is_missing_is_made_again_and_nothing_else(bench: Bench) -> None:
    assert bench.run() == {"done": 1 + 3 + 3 + 2}
    assert bench.run() == {}
    cell = bench.plan().cells[0]
    store = bench.store
    for address in list(store.addresses()):
        if address.kind == "score" or address.key == cell.earlier[1]:
            store.remove(address)
    assert bench.to_do() == {"predict": 1, "score": 2}
    store.remove(cell.coresets[0])
    assert bench.to_do() == {"predict": 1, "score": 2, "coreset": 1}, "the memory after step 2 is made of both"
    assert bench.run() == {"done": 4}


def test_recompute_makes_every_step_again(bench: Bench) -> None:
    bench.run()
    assert Counter(p.kind for p in bench.plan(recompute=("pick",)).to_do()) == {"coreset": 3, "predict": 3, "score": 2}
    assert bench.run(recompute=("centroid",)) == {"done": 3 + 2}


def test_keys_are_derived_again_from_the_store_alone(bench: Bench) -> None:
    bench.run(methods=["guided"])
    assert list(verify(bench.out)) == []


def test_a_method_that_returns_other_classes_fails(
    install: Callable[..., Registry], write_suite: Callable[..., str], tmp_path: Path
) -> None:
    @dataclass(frozen=True)
    class Stray(toys.Pick):
        """Says of every image that it is of class 0."""

        name = "stray"

        def rows_per_class(self, ipc: int) -> None:
            return None

        def distil(self, data: Any, ipc: int, inputs: Any, ctx: Any) -> bpcbench.Coreset:
            made = super().distil(data, ipc, inputs, ctx)
            return bpcbench.Coreset(images=made.images, targets=np.zeros_like(made.targets), classes=made.classes)

    install(toys, Hues, Steps, Stray)
    result = Bench(write_suite, tmp_path / "out").session(methods=["stray"]).run()
    messages = {failure.message for failure in result.failures}
    assert messages == {"ValueError: stray returned images of classes that its training data lack: [0]"}
    assert result.counts["failed"] == 2, "the step that has class 0 is fine"


def test_a_manifest_holds_orders_and_earlier_predictions(bench: Bench) -> None:
    bench.run(tasks={"steps": 3, "orders": [0, "natural"]})
    session = bench.session(tasks={"steps": 3, "orders": [0, "natural"]})
    planned, view = session.plan(), session.view()
    assert read_manifest(view.invocation.path).digest == view.manifest.digest == view.invocation.path.name
    for cell, record in zip(planned.cells, view.manifest.cells, strict=True):
        assert (record.order, record.earlier, record.predict) == (cell.order, cell.earlier, cell.predict)
        assert len(record.earlier) == 2
        assert [record.task(stage) for stage in record.stages] == ["task-1", "task-2", "task-3"] * 2
        assert all(bench.store.has(Address("predict", key, s)) for key in record.earlier for s in record.earlier_splits)
    assert len({record.key for record in view.manifest.cells}) == 2
    assert [record.label.partition(" order ")[2] for record in view.manifest.cells] == [
        "0 seed 0.0",
        "natural seed 0.0",
    ]


def test_a_table_has_a_line_per_method_and_says_what_its_coresets_are(bench: Bench) -> None:
    keys: dict[str, Any] = {"tasks": {"steps": 3, "orders": [0, 1]}, "methods": ["pick", "guided"], "seeds": 2}
    bench.run(**keys)
    view = bench.session(**keys).view()
    table = view.table()
    assert [line.method for line in table.lines] == ["pick", "guided"]
    assert {cell.summary.n for line in table.lines for cell in line.cells if cell.summary} == {4}, (
        "two orders, two seeds"
    )
    assert view.progress.complete
    assert (
        "Class-incremental: the classes come in 3 steps, 2 class orders (0, 1). A coreset is here the memory of one "
        "order and distil seed: the union of those of all steps."
    ) in table.footnotes
    (pair,) = pairs(view.rows(), "pick", ["last"])
    assert pair.difference.n == 4, "equal orders and equal seeds are paired"
    assert {row.order for row in view.rows()} == {"0", "1"}


def test_snapshots_of_all_steps_are_evaluated_together(bench: Bench) -> None:
    gallery_keys: dict[str, Any] = {"methods": {"slow": {"rate": 0.0}}}
    view, result = bench.session(**gallery_keys).anytime()
    assert result.failures == ()
    assert view is not None
    by_step = {cell.step: cell for cell in view.manifest.cells}
    assert set(by_step) == {None, 0, 1, 2}
    assert [address.member for address in by_step[1].coresets] == ["step-1"] * 3
    found = points(view.manifest, view.store, ("last",))
    assert [point.step for point in found] == [0, 1, 2, None]
    parts = [view.store.meta(address)["seconds"] for address in by_step[None].coresets]
    assert found[-1].seconds == pytest.approx(sum(parts)), "the time of a memory is that of all its coresets"


def test_mlflow_tells_the_steps_apart(bench: Bench) -> None:
    bench.run(methods={"slow": {"rate": 0.0}})
    view = bench.session(methods={"slow": {"rate": 0.0}}).view()
    (cell,) = view.manifest.cells
    run = read_cell(cell, view.store)
    assert run.params["class_order"] == "0"
    assert {name for name, _, _ in run.points} == {f"trace/coreset/task-{number}/level" for number in (1, 2, 3)}
    sizes = [view.store.meta(address)["coreset"]["bytes"] for address in cell.coresets]
    assert run.metrics["usage/coreset_bytes"] == sum(sizes) == 3 * sizes[0]
    (summary,) = summaries(view.manifest, view.store)
    assert list(summary.coresets) == ["order 0 seed 0"]
    assert cell_name(cell, ("method",)) == "slow order 0 seed 0.0"
    cells = next(view for view in saved_views(view.manifest) if view.name == "Cells")
    assert "class_order" in json.dumps(cells.state)


def test_a_leaderboard_keeps_classes_in_steps_apart_from_classes_at_once(bench: Bench) -> None:
    keys: dict[str, Any] = {"evaluators": ["right"], "metrics": ["right"]}
    views = []
    for name, tasks in (("steps", {"steps": 3, "orders": [0, 1]}), ("at-once", None)):
        bench.run(name=name, tasks=tasks, **keys)
        views.append(Source(name, bench.session(name=name, tasks=tasks, **keys).view()))
    board = leaderboard(views)
    assert [block.title for block in board.blocks] == [
        "hues (classes in steps: 3), 2 per class",
        "hues (all examples), 2 per class",
    ]


def test_a_memory_is_read_as_one_coreset(bench: Bench) -> None:
    keys: dict[str, Any] = {"tasks": {"steps": 3, "orders": [0, "natural"]}}
    result = bench.session(**keys).run()
    memory = result.coreset("pick", order="natural")
    assert memory.class_ids.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    other = result.coreset("pick", order=0)
    assert other.class_ids.tolist() == [label for step in task_classes(0, CLASSES, 3) for label in step for _ in "12"]
    with pytest.raises(UserError, match="which order"):
        result.coreset("pick")


def test_a_plan_says_that_classes_come_in_steps(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    session = bench.session(tasks={"steps": 3, "orders": [0, 1]})
    assert main(["plan", str(session.suite), "--out", str(bench.out), "--all"]) == 0
    text = capsys.readouterr().out
    assert "  classes come in 3 steps, class orders 0, 1: a cell has 3 coresets\n" in text
    first, second = (",".join(map(str, step)) for step in task_classes(0, CLASSES, 3)[:2])
    assert f"hues ipc 2 pick seed 0 classes {first}  [" in text
    assert f"hues ipc 2 pick seed 0 classes {second}  [" in text
    assert "hues ipc 2 pick / centroid / line order 0 seed 0.0 after task 2 of 3  [" in text


def test_the_schema_of_suites_knows_tasks(registry: Registry) -> None:
    nothing, steps = suite_schema(registry)["properties"]["tasks"]["anyOf"]
    assert nothing == {"type": "null"}
    assert set(steps["properties"]) == {"steps", "order", "orders"}
    assert (steps["required"], steps["additionalProperties"]) == (["steps"], False)
    assert steps["properties"]["steps"]["minimum"] == 2
    assert {"enum": ["natural"]} in steps["properties"]["order"]["anyOf"]
    assert steps["not"] == {"required": ["order", "orders"]}
