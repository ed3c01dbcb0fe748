"""What is kept and what is lost when the classes come step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bpcbench.api import Evaluator, option
from bpcbench.figures import Curves, Matrix, Series
from bpcbench.records import Array, EvaluatorInputs, LearnedTask, Metric, Predictions, Scores, SplitRef


def restricted_hits(log_probs: Array, labels: Array, seen: Sequence[int]) -> Array:
    """Return for every example whether its label is the most probable of the classes `seen`; the first wins ties."""
    columns = np.asarray(seen)
    return np.asarray(columns[log_probs[:, columns].argmax(1)] == labels)


def accuracy_matrix(tasks: Sequence[LearnedTask], split: SplitRef) -> tuple[Array, Array]:
    """Return a and A: a[t, i] is the accuracy after step t on the classes of step i, A[t] that on all seen by then.

    Predictions after step t are the most probable of the classes of steps 0 ... t; a[t, i] is NaN for i > t. Raises
    ValueError if a step's classes have no examples in the split.
    """
    by_step = np.full((len(tasks), len(tasks)), np.nan)
    seen_so_far = np.empty(len(tasks))
    seen: list[int] = []
    for t, task in enumerate(tasks):
        seen = sorted({*seen, *task.classes})
        predicted = task.predictions[split]
        if predicted.labels is None:
            raise ValueError("continual needs a split with labels")
        rows = np.isin(predicted.labels, seen)
        labels = np.asarray(predicted.labels)[rows]
        hits = restricted_hits(predicted.log_probs[rows], labels, seen)
        for i, earlier in enumerate(tasks[: t + 1]):
            mine = np.isin(labels, earlier.classes)
            if not mine.any():
                raise ValueError(f"the split has no examples of the classes {list(earlier.classes)}")
            by_step[t, i] = hits[mine].mean()
        seen_so_far[t] = hits.mean()
    return by_step, seen_so_far


def forgetting(by_step: Array) -> float:
    """Return the mean over all steps but the last of max_t a[t, i] - a[T, i], over t from i to T - 1.

    In [-1, 1], lower is better; negative where later steps helped. Chaudhry et al., "Riemannian walk for incremental
    learning", ECCV 2018.
    """
    best = np.array([by_step[i:-1, i].max() for i in range(len(by_step) - 1)])
    return float(np.mean(best - by_step[-1, :-1]))


def backward_transfer(by_step: Array) -> float:
    """Return the mean over all steps but the last of a[T, i] - a[i, i].

    In [-1, 1], higher is better; negative where later steps cost accuracy on earlier classes. Lopez-Paz & Ranzato,
    "Gradient episodic memory for continual learning", NIPS 2017.
    """
    return float(np.mean(by_step[-1, :-1] - np.diag(by_step)[:-1]))


@dataclass(frozen=True)
class Continual(Evaluator):
    """Class-incremental learning: the classes come in T steps, and after each one all classes seen so far are tested.

    Let A_t be the accuracy after step t on the test images of all classes seen by then, and a_ti that on the classes
    of step i alone. A prediction is the most probable of the classes seen, never one that is still to come. Metrics:

    - `after-t/acc`: A_t, for the first `steps` steps;
    - `last_acc`: A_T, the accuracy on all classes in the end;
    - `average_acc`: the mean of A_1 ... A_T (average incremental accuracy; Rebuffi et al., iCaRL, CVPR 2017);
    - `forgetting`: the mean over i < T of max_t a_ti - a_Ti, over t from i to T - 1 (Chaudhry et al., ECCV 2018);
    - `backward_transfer`: the mean over i < T of a_Ti - a_ii (Lopez-Paz & Ranzato, NIPS 2017).

    With a choice among more classes a_ti falls even if nothing is forgotten, so that `forgetting` is above 0 for the
    upper bound too, which keeps all data: compare the two. Figures: A_t by classes seen, and all a_ti.
    """

    name: ClassVar[str] = "continual"
    uses_tasks: ClassVar[bool] = True

    steps: int = option(10, "the accuracies after so many first steps are metrics of their own")

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")

    def score(self, predictions: Mapping[SplitRef, Predictions], inputs: EvaluatorInputs) -> Scores:
        """Return the metrics, the curve and the matrix."""
        if len(inputs.tasks) < 2:
            raise ValueError("continual needs predictions after at least two steps")
        by_step, seen = accuracy_matrix(inputs.tasks, SplitRef())
        values = {f"after-{t}/acc": float(value) for t, value in enumerate(seen[: self.steps], 1)}
        values["last_acc"] = float(seen[-1])
        values["average_acc"] = float(seen.mean())
        values["forgetting"] = forgetting(by_step)
        values["backward_transfer"] = backward_transfer(by_step)
        counts = np.cumsum([len(task.classes) for task in inputs.tasks]).tolist()
        names = [str(number) for number in range(1, len(seen) + 1)]
        curve = Curves("", "classes seen", "accuracy", {"all classes seen": Series(counts, seen.tolist())})
        matrix = Matrix("", names, names, by_step.tolist(), x="classes of step", y="after step")
        return Scores(values, {"accuracy_by_classes_seen": curve, "accuracy_by_step": matrix})

    def metrics(self) -> tuple[Metric, ...]:
        """Return the declared metrics."""
        after = (
            Metric(f"after-{t}/acc", "higher", "percent", f"accuracy after step {t} on the classes seen by then")
            for t in range(1, self.steps + 1)
        )
        return (
            *after,
            Metric("last_acc", "higher", "percent", "accuracy on all classes after the last step"),
            Metric("average_acc", "higher", "percent", "mean over steps of the accuracy on the classes seen by then"),
            Metric("forgetting", "lower", "percent", "mean loss of accuracy on a step's classes since their best"),
            Metric("backward_transfer", "higher", "percent", "mean change of accuracy on a step's classes since then"),
        )
