"""The evaluator of class-incremental learning against a naive count, and on cases whose values are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpcbench.records import Array, Coreset, EvaluatorInputs, LearnedTask, Predictions, Recipe, SplitRef, union
from bpcbench.testing import toy_evaluator_inputs
from bpcbench_evaluators.continual import Continual

OWN = SplitRef()


def predictions(logits: Array, labels: Array) -> Predictions:
    log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return Predictions(log_probs.astype(np.float32), labels)


def inputs(tasks: Sequence[Sequence[int]], after: Sequence[Predictions]) -> EvaluatorInputs:
    learned = (LearnedTask(tuple(classes), {OWN: found}) for classes, found in zip(tasks, after, strict=True))
    return replace(toy_evaluator_inputs(), tasks=tuple(learned))


def scored(tasks: Sequence[Sequence[int]], after: Sequence[Predictions], **options: Any) -> dict[str, float]:
    made = Continual(**options).score({OWN: after[-1]}, inputs(tasks, after))
    return dict(made.metrics)


def naive(tasks: Sequence[Sequence[int]], after: Sequence[Predictions]) -> dict[str, float]:
    """Count example by example, with the definitions as they stand in the papers."""
    table: dict[tuple[int, int], float] = {}
    overall = []
    for t, found in enumerate(after):
        assert found.labels is not None
        seen = [label for classes in tasks[: t + 1] for label in classes]
        right: dict[int, list[bool]] = {i: [] for i in range(t + 1)}
        for row, label in zip(found.log_probs, found.labels, strict=True):
            for i in range(t + 1):
                if label in tasks[i]:
                    guess = max(seen, key=lambda c, row=row: row[c])  # type: ignore[misc]
                    right[i].append(guess == label)
        for i, hits in right.items():
            table[t, i] = sum(hits) / len(hits)
        every = [hit for hits in right.values() for hit in hits]
        overall.append(sum(every) / len(every))
    last = len(tasks) - 1
    lost = [max(table[t, i] for t in range(i, last)) - table[last, i] for i in range(last)]
    moved = [table[last, i] - table[i, i] for i in range(last)]
    return {
        **{f"after-{t}/acc": value for t, value in enumerate(overall, 1)},
        "last_acc": overall[-1],
        "average_acc": sum(overall) / len(overall),
        "forgetting": sum(lost) / len(lost),
        "backward_transfer": sum(moved) / len(moved),
    }


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(2, 1), (2, 3), (3, 2), (5, 2)]), st.floats(0, 3))
def test_numbers_are_those_of_a_naive_count(seed: int, sizes: tuple[int, int], skill: float) -> None:
    steps, each = sizes
    rng = np.random.default_rng(seed)
    tasks = rng.permutation(steps * each).reshape(steps, each).tolist()
    labels = rng.permutation(np.arange(7 * steps * each) % (steps * each))
    signal = skill * np.eye(steps * each)[labels]
    after = [predictions(rng.normal(size=signal.shape) + signal, labels) for _ in tasks]
    found, wanted = scored(tasks, after), naive(tasks, after)
    assert found == pytest.approx(wanted, abs=1e-12)


def test_a_class_that_is_still_to_come_is_never_predicted() -> None:
    """All probability lies on the class of the second step, and still the first step is without error."""
    labels = np.array([0, 0, 1, 1])
    confident = predictions(np.array([[5.0, 0.0, 9.0, 0.0]] * 2 + [[0.0, 5.0, 9.0, 0.0]] * 2), labels)
    later = predictions(np.eye(4)[[0, 0, 1, 1, 2, 3]], np.array([0, 0, 1, 1, 2, 3]))
    found = scored([[0, 1], [2, 3]], [replace(confident), later])
    assert found["after-1/acc"] == 1.0
    assert (found["last_acc"], found["forgetting"], found["backward_transfer"]) == (1.0, 0.0, 0.0)


def test_who_predicts_the_latest_classes_only_forgets_everything() -> None:
    labels = np.arange(6)
    steps = [[0, 1], [2, 3], [4, 5]]
    after = []
    for classes in steps:
        logits = np.eye(6)
        logits[:, classes] += 10.0
        logits += 5.0 * np.eye(6)
        after.append(predictions(logits, labels))
    found = scored(steps, after)
    assert [found[f"after-{t}/acc"] for t in (1, 2, 3)] == pytest.approx([1, 1 / 2, 1 / 3])
    assert found["average_acc"] == pytest.approx(11 / 18)
    assert (found["forgetting"], found["backward_transfer"]) == (1.0, -1.0)


def test_the_best_accuracy_counts_for_forgetting_and_the_first_for_backward_transfer() -> None:
    labels = np.array([0, 0, 1, 2])
    tasks = [[0], [1], [2]]

    def guessing(*guesses: int) -> Predictions:
        return predictions(5.0 * np.eye(3)[list(guesses)], labels)

    found = scored(tasks, [guessing(0, 0, 1, 2), guessing(0, 1, 1, 2), guessing(1, 1, 2, 2)])
    # a = [[1], [1/2, 1], [0, 0, 1]]
    assert found["forgetting"] == 1.0
    assert found["backward_transfer"] == -1.0
    better = scored(tasks, [guessing(0, 0, 1, 2), guessing(1, 1, 0, 2), guessing(0, 1, 1, 2)])
    # a = [[1], [0, 0], [1/2, 1, 1]]: what came later helped the second step.
    assert better["forgetting"] == pytest.approx((1 / 2 - 1) / 2)
    assert better["backward_transfer"] == pytest.approx((-1 / 2 + 1) / 2)


def test_figures_and_declared_steps() -> None:
    labels = np.arange(4)
    after = [predictions(5.0 * np.eye(4), labels)] * 4
    made = Continual(steps=2).score({OWN: after[-1]}, inputs([[3], [1], [0], [2]], after))
    assert set(made.metrics) == {m.name for m in Continual(steps=2).metrics()}
    curve: Any = made.figures["accuracy_by_classes_seen"]
    assert list(curve.series["all classes seen"].x) == [1.0, 2.0, 3.0, 4.0]
    matrix: Any = made.figures["accuracy_by_step"]
    assert np.isnan(np.asarray(matrix.values)[np.triu_indices(4, 1)]).all()


def test_what_cannot_be_scored_is_said() -> None:
    labels = np.array([0, 0])
    found = predictions(np.eye(2)[labels], labels)
    with pytest.raises(ValueError, match=r"no examples of the classes \[1\]"):
        scored([[0], [1]], [found, found])
    with pytest.raises(ValueError, match="at least two steps"):
        scored([[0, 1]], [found])
    with pytest.raises(ValueError, match="steps must be at least 1"):
        Continual(steps=0)


@pytest.mark.parametrize("own", [None, 7.0])
def test_beta_s_of_a_memory_is_its_number_of_rows_unless_the_user_sets_it(own: float | None) -> None:
    """VBPC leaves the number of rows out of its recipe, so that a union of coresets counts its own."""
    from bpcbench_vbpc.inference import VariationalInference
    from bpcbench_vbpc.method import VBPC

    def part(rows: int) -> Coreset:
        images, labels = np.zeros((rows, 1, 2, 2), np.float32), np.arange(rows) % 2
        scalars = VBPC(beta_s=own).scalars(rows)
        return Coreset(images=images, targets=labels, classes=4, recipe=Recipe(scalars=scalars))

    memory = union([part(4), part(4), part(6)])
    assert VariationalInference().scalar(memory, "beta_s", len(memory)) == (14.0 if own is None else own)
    assert VariationalInference().scalar(memory, "gamma", 0.0) == 100.0
