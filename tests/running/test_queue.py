"""Which stages are ready, in which order, and what becomes of those that depend on them."""

from __future__ import annotations

import time

import pytest
from plain_stages import planned

from bpcbench.planning.planner import PlannedStage
from bpcbench.records import Resources, Status
from bpcbench.running.queue import Queue, ResourceClass

ALL = (True, False)
STAGES = (False,)
SCORES = (True,)


def names(stages: list[PlannedStage]) -> list[str]:
    return [stage.label for stage in stages]


def take(queue: Queue, lane: tuple[bool, ...] = ALL, now: float = 0.0) -> PlannedStage:
    chosen = queue.first(lane, now)
    assert chosen is not None
    queue.take(chosen)
    return chosen


def test_hands_out_what_is_ready() -> None:
    queue = Queue([planned("a"), planned("b", "a"), planned("c", "a", "b"), planned("s", "c", score=True)])
    for name in "abc":
        chosen = take(queue, STAGES)
        assert chosen.label == name
        assert queue.first(ALL, 0.0) is None
        assert queue.finish(chosen, "done") == []
    assert not queue.left(STAGES)
    assert queue.left(SCORES)
    assert queue.first(STAGES, 0.0) is None
    assert take(queue, SCORES).label == "s"


def test_what_is_ready_longest_comes_first_whatever_its_class() -> None:
    queue = Queue([planned("a"), planned("g", gpus=1.0), planned("b"), planned("h", gpus=1.0)])
    big = ResourceClass(False, Resources(gpus=1.0))
    assert names([take(queue), take(queue)]) == ["a", "g"]
    chosen = queue.first(ALL, 0.0, {big})
    assert chosen is not None
    assert chosen.label == "b"
    queue.take(chosen)
    assert queue.first(ALL, 0.0, {big}) is None
    assert take(queue).label == "h"


def test_a_stage_that_is_put_back_is_due_later() -> None:
    queue = Queue([planned("a"), planned("b", score=True)])
    chosen = take(queue, STAGES)
    queue.put_back(chosen, 5.0)
    assert queue.left(STAGES)
    assert queue.next_due(STAGES) == 5.0
    assert queue.next_due(SCORES) is None
    assert queue.first(STAGES, 4.9) is None
    assert queue.first(STAGES, 5.0) is chosen


@pytest.mark.parametrize("status", ["failed", "stopped"])
def test_what_depends_on_a_failure_is_skipped(status: Status) -> None:
    queue = Queue([planned("a"), planned("b", "a"), planned("c", "b", score=True), planned("d")])
    skipped = queue.finish(take(queue), status)
    assert names(skipped) == (["b", "c"] if status == "failed" else [])
    assert queue.left(SCORES) == (status == "stopped")
    queue.finish(take(queue), "done")
    assert queue.left(STAGES) == (status == "stopped")


@pytest.mark.parametrize("status", ["done", "cached", "failed"])
def test_a_stage_that_comes_after_another_does_not_need_it(status: Status) -> None:
    stages = [planned("a"), planned("b", "a"), planned("c", "a"), planned("d", "c", score=True)]
    queue = Queue(stages, after={stages[2].id: stages[1].id, "unknown": stages[0].id, stages[0].id: "elsewhere"})
    queue.finish(take(queue), "done")
    first = take(queue)
    assert first.label == "b"
    assert queue.first(ALL, 0.0) is None
    assert queue.finish(first, status) == []
    assert take(queue).label == "c"


def test_a_stage_that_comes_after_another_is_skipped_with_what_both_need() -> None:
    stages = [planned("a"), planned("b", "a"), planned("c", "a")]
    queue = Queue(stages, after={stages[2].id: stages[1].id})
    assert names(queue.finish(take(queue), "failed")) == ["b", "c"]
    assert not queue.left(ALL)


def test_a_stage_that_runs_already_is_not_handed_out() -> None:
    queue = Queue([planned("a"), planned("b", "a"), planned("c")])
    assert queue.adopt(planned("unknown").id) is None
    adopted = queue.adopt(planned("b").id)
    assert adopted is not None
    assert queue.adopt(planned("b").id) is None
    assert queue.adopt(planned("a").id) is not None
    assert take(queue).label == "c"
    queue.finish(adopted, "done")
    assert queue.first(ALL, 0.0) is None


def test_looking_for_the_next_stage_does_not_depend_on_how_many_are_ready() -> None:
    queue = Queue([planned(str(i), gpus=float(i % 3)) for i in range(10_000)])
    begin = time.perf_counter()
    for _ in range(1000):
        assert queue.first(ALL, 0.0) is not None
    # About 2 microseconds each; to look at every stage would take a hundred times this limit.
    assert (time.perf_counter() - begin) / 1000 < 1e-4
