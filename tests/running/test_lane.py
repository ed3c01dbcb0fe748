"""A lane with a pool that does what a test says: timeouts, stops, busy neighbours, lost workers, full pools."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from plain_stages import MADE, planned

from bpcbench.errors import EngineError
from bpcbench.planning.planner import PlannedStage
from bpcbench.records import Ended, Requeued, Started, Task
from bpcbench.running import lane as lanes
from bpcbench.running.lane import Lane, StopRequest
from bpcbench.running.ownership import Ownership
from bpcbench.running.queue import Outcome, Queue
from bpcbench.running.run import _sweep, make_task
from bpcbench.store.store import Store

Event = Started | Requeued | Ended


@dataclass
class Clock:
    """The monotonic clock, and what it said last."""

    latest: float = 0.0

    def monotonic(self) -> float:
        self.latest = time.monotonic()
        return self.latest


@dataclass
class ScriptedPool:
    """Answers every submission as `answer` says, in the next `wait`."""

    answer: Callable[[Task], Iterable[Event]]
    slots: int = 2
    room: Callable[[Task], bool] = lambda task: True
    adopted: tuple[Task, ...] = ()
    asked: list[Task] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    news: list[Event] = field(default_factory=list)
    closed: bool = False
    ends_when_stopped: bool = True

    def adopt(self) -> Iterable[Task]:
        return self.adopted

    def submit(self, task: Task) -> bool:
        self.asked.append(task)
        if not self.room(task):
            return False
        self.tasks.append(task)
        self.news += self.answer(task)
        return True

    def wait(self, seconds: float) -> Iterable[Event]:
        if not self.news:
            time.sleep(seconds)
        news, self.news = self.news, []
        return news

    def stop(self, attempts: Collection[str]) -> None:
        self.stopped += attempts
        if self.ends_when_stopped:
            self.news += [Ended(attempt, "stopped") for attempt in attempts]

    def kill(self, attempts: Collection[str]) -> None:
        self.killed += attempts
        self.news += [Ended(attempt, "failed", "killed", lost=True) for attempt in attempts]

    def close(self) -> None:
        self.closed = True


@dataclass
class PlainHost:
    """Remembers what a lane told it."""

    store: Path
    queue: Queue
    timeout: float | None = None
    along: tuple[Mapping[str, Any], ...] = ()
    made: int = 0
    reports: list[str] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def task(self, planned: PlannedStage, jobs: int) -> Task:
        self.made += 1
        log = self.store / "log"
        return make_task(planned, self.store, self.store, log=log, timeout=self.timeout, jobs=jobs, along=self.along)

    def begun(self, planned: PlannedStage, task: Task) -> None:
        pass

    def released(self, planned: PlannedStage) -> None:
        pass

    def part(self, planned: PlannedStage) -> None:
        self.along = ()

    def finished(self, planned: PlannedStage, outcome: Outcome) -> None:
        self.outcomes[planned.label] = outcome
        self.queue.finish(planned, outcome.status)

    def report(self, text: str) -> None:
        self.reports.append(text)


@dataclass
class Scene:
    """A lane, its host and its pool."""

    lane: Lane
    host: PlainHost
    pool: ScriptedPool

    def run(self) -> dict[str, tuple[str, str]]:
        self.lane.run()
        return {name: (outcome.status, outcome.message) for name, outcome in self.host.outcomes.items()}


Make = Callable[..., Scene]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(lanes, "BUSY_SECONDS", (0.01, 0.05))
    store = Store.open(tmp_path / "store")

    def scene(answer: Callable[[Task], Iterable[Event]], *stages: PlannedStage, **more: object) -> Scene:
        queue = Queue(stages or [planned("a")])
        host = PlainHost(store.root, queue, timeout=more.pop("timeout", None))  # type: ignore[arg-type]
        retries, grace = int(str(more.pop("retries", 2))), float(str(more.pop("grace", 5)))
        pool = ScriptedPool(answer, **more)  # type: ignore[arg-type]
        lane = Lane("scripted", lambda: pool, queue, (True, False), host, store, StopRequest(), grace, retries)
        return Scene(lane, host, pool)

    return scene


def done(task: Task) -> list[Event]:
    return [Started(task.attempt), Ended(task.attempt, "done")]


def test_tasks_know_the_slots(make: Make) -> None:
    scene = make(done, planned("a"), planned("b", "a"), slots=7)
    assert scene.run() == {"a": ("done", ""), "b": ("done", "")}
    assert [task.jobs for task in scene.pool.tasks] == [7, 7]
    assert scene.pool.closed


def test_an_end_without_a_status_is_looked_up(make: Make) -> None:
    """In the outcome file, which is removed; else in the store; else the worker is lost."""

    def silent(task: Task) -> list[Event]:
        if task.label == "file":
            task.outcome_file.parent.mkdir(parents=True, exist_ok=True)
            ended = Ended(task.attempt, "failed", "of its own", 3.0, ("a note",))
            task.outcome_file.write_text(json.dumps(ended.to_json()))
        if task.label == "store":
            Store.open(task.store).commit(planned("store").stage.addresses[0], MADE, {})
        return [Ended(task.attempt)]

    scene = make(silent, planned("file"), planned("store"), planned("nothing"))
    assert scene.run() == {
        "file": ("failed", "of its own"),
        "store": ("done", ""),
        "nothing": ("failed", "the worker left no outcome, 3 times"),
    }
    assert scene.host.outcomes["file"].seconds == 3.0
    assert scene.host.outcomes["file"].messages == ("a note",)
    assert list((scene.host.store / "scratch" / "outcomes").iterdir()) == []
    assert len(scene.pool.tasks) == 5
    assert len({task.attempt for task in scene.pool.tasks}) == 5


def test_only_a_lost_worker_is_replaced(make: Make) -> None:
    def lost(task: Task) -> list[Event]:
        return [Ended(task.attempt, "failed", "gone", lost=task.label == "lost")]

    scene = make(lost, planned("lost"), planned("raises"), retries=1)
    assert scene.run() == {"lost": ("failed", "gone, 2 times"), "raises": ("failed", "gone")}
    assert [task.label for task in scene.pool.tasks].count("lost") == 2
    assert scene.host.reports == ["worker lost: coreset lost: gone; attempt 2 of 2"]


ALONG = ({"key": "b", "label": "b", "stage": {}},)
TOGETHER = "coreset a: 2 seeds are fitted one by one, not together: "


@pytest.mark.parametrize(
    ("ended", "why"),
    [({"lost": True, "message": "gone"}, "gone"), ({"out_of_memory": True, "message": "of its job"}, "of its job")],
)
def test_a_stage_that_lost_its_worker_with_others_is_tried_without(make: Make, ended: Any, why: str) -> None:
    """Also if there are no retries, and once: then it is a stage like any other."""
    scene = make(lambda task: [Ended(task.attempt, "failed", **ended)], retries=0)
    scene.host.along = ALONG
    assert scene.run() == {"a": ("failed", why)}
    assert [len(task.along) for task in scene.pool.tasks] == [1, 0]
    assert scene.host.reports == [TOGETHER + why]


def test_a_stage_that_is_late_with_others_is_tried_without(make: Make) -> None:
    scene = make(lambda task: [Started(task.attempt)] if task.along else done(task), timeout=0.05)
    scene.host.along = ALONG
    assert scene.run() == {"a": ("done", "")}
    assert scene.host.reports == [TOGETHER + "it took longer than its timeout of 0.05 s"]


def test_what_cannot_be_ended_is_not_tried_without(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It still works on the stage, so another attempt would wait for it."""
    monkeypatch.setattr(lanes, "KILL_SECONDS", 0.05)
    scene = make(lambda task: [Started(task.attempt)], timeout=0.05, grace=0.01, ends_when_stopped=False)
    scene.host.along = ALONG
    scene.pool.kill = lambda attempts: None  # type: ignore[method-assign]
    assert scene.run()["a"][0] == "failed"
    assert len(scene.pool.tasks) == 1


def test_a_stage_that_fails_or_is_stopped_with_others_is_not(make: Make) -> None:
    """What it says itself is its own failure, and a signal takes nothing away but time."""

    def answer(task: Task) -> list[Event]:
        if len(scene.pool.tasks) == 1:
            return [Ended(task.attempt, "stopped", "stopped", 1.0)]
        return [Ended(task.attempt, "failed", "of its own", 1.0, out_of_memory=True)]

    scene = make(answer)
    scene.host.along = ALONG
    assert scene.run() == {"a": ("failed", "of its own")}
    assert [len(task.along) for task in scene.pool.tasks] == [1, 1]


def test_a_worker_that_was_lost_after_its_commit_has_done_its_work(make: Make) -> None:
    def commits(task: Task) -> list[Event]:
        Store.open(task.store).commit(planned("a").stage.addresses[0], MADE, {})
        return [Ended(task.attempt, "failed", "gone", lost=True)]

    scene = make(commits)
    assert scene.run() == {"a": ("done", "")}


def test_a_worker_that_is_killed_for_its_memory_again_is_out_of_memory(make: Make) -> None:
    def answer(task: Task) -> list[Event]:
        return [Ended(task.attempt, "failed", "out of memory", lost=True, out_of_memory=True)]

    scene = make(answer, planned("a"), retries=1)
    assert scene.run() == {"a": ("failed", "out of memory, 2 times")}
    assert scene.host.outcomes["a"].out_of_memory
    assert len(scene.pool.tasks) == 2


def test_what_was_killed_for_its_timeout_is_not_out_of_memory(make: Make) -> None:
    def answer(task: Task) -> list[Event]:
        return [Started(task.attempt)]

    scene = make(answer, planned("a"), timeout=0.01, grace=0.01, ends_when_stopped=False)
    kill = scene.pool.kill

    def killed(attempts: Collection[str]) -> None:
        kill([])
        scene.pool.news += [Ended(name, "failed", "killed", lost=True, out_of_memory=True) for name in attempts]

    scene.pool.kill = killed  # type: ignore[method-assign]
    assert scene.run()["a"][0] == "failed"
    assert not scene.host.outcomes["a"].out_of_memory


def test_a_busy_stage_is_tried_again_ever_later(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []
    put_back, clock = Queue.put_back, Clock()

    def note(queue: Queue, stage: PlannedStage, due: float) -> None:
        delays.append(due - clock.latest)
        put_back(queue, stage, due)

    monkeypatch.setattr(lanes, "time", clock)
    monkeypatch.setattr(Queue, "put_back", note)
    scene = make(lambda task: [Ended(task.attempt, "busy" if len(scene.pool.tasks) < 6 else "done")])
    assert scene.run() == {"a": ("done", "")}
    assert delays == pytest.approx([0.01, 0.02, 0.04, 0.05, 0.05])


def test_what_another_process_has_made_meanwhile_is_not_submitted_again(make: Make) -> None:
    def busy(task: Task) -> list[Event]:
        Store.open(task.store).commit(planned("a").stage.addresses[0], MADE, {})
        return [Ended(task.attempt, "busy")]

    scene = make(busy)
    assert scene.run() == {"a": ("cached", "")}
    assert len(scene.pool.tasks) == 1


def test_a_timeout_counts_from_the_start(make: Make) -> None:
    """`late` has started and is stopped; `queued` waits in the engine's own queue for as long, and is not."""

    def slow(task: Task) -> list[Event]:
        return [Started(task.attempt)] if task.label == "late" else []

    scene = make(slow, planned("late"), planned("queued"), timeout=0.1)
    begin = time.monotonic()
    stop = ScriptedPool.stop

    def then_release(attempts: Collection[str]) -> None:
        stop(scene.pool, attempts)
        (queued,) = (task for task in scene.pool.tasks if task.label == "queued")
        scene.pool.news += done(queued)

    scene.pool.stop = then_release  # type: ignore[method-assign]
    assert scene.run() == {"late": ("failed", "it took longer than its timeout of 0.1 s"), "queued": ("done", "")}
    assert time.monotonic() - begin >= 0.1
    assert len(scene.pool.stopped) == 1
    assert "it took longer than its timeout of 0.1 s" in (scene.host.store / "log").read_text()


def test_what_does_not_stop_is_killed_after_the_grace(make: Make) -> None:
    scene = make(lambda task: [Started(task.attempt)], ends_when_stopped=False, grace=0.2)
    scene.lane.stop = StopRequest()

    def request(task: Task) -> list[Event]:
        scene.lane.stop.requested = True
        return [Started(task.attempt)]

    scene.pool.answer = request
    begin = time.monotonic()
    assert scene.run() == {"a": ("stopped", "stopped")}
    assert 0.2 <= time.monotonic() - begin < 2
    assert scene.pool.killed == scene.pool.stopped == [scene.pool.tasks[0].attempt]


def test_an_engine_that_cannot_end_an_attempt_does_not_hold_the_run(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "KILL_SECONDS", 0.1)
    scene = make(lambda task: [Started(task.attempt)], ends_when_stopped=False, grace=0.1, timeout=0.1)
    scene.pool.kill = lambda attempts: None  # type: ignore[method-assign]
    assert scene.run() == {"a": ("failed", "it took longer than its timeout of 0.1 s")}
    assert scene.host.reports == ["engine scripted cannot end coreset a"]


def test_a_full_pool_is_asked_for_one_stage_of_each_class(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until an attempt ends; meanwhile a poll makes no task."""
    monkeypatch.setattr(lanes, "FULL_SECONDS", math.inf)
    stages = [planned(f"cpu{i}") for i in range(50)] + [planned(f"gpu{i}", gpus=1.0) for i in range(50)]
    scene = make(lambda task: [], *stages, slots=1000, room=lambda task: task.label == "cpu0")
    scene.lane._pool = scene.pool
    scene.lane.poll()
    assert [task.label for task in scene.pool.asked] == ["cpu0", "cpu1", "gpu0"]
    made = scene.host.made
    for _ in range(3):
        scene.lane.poll()
    assert scene.host.made == made
    scene.pool.news.append(Ended(scene.pool.tasks[0].attempt, "done"))
    scene.lane.poll()
    scene.lane.poll()
    assert [task.label for task in scene.pool.asked][3:] == ["cpu1", "gpu0"]


def test_no_more_than_the_slots_are_submitted(make: Make) -> None:
    scene = make(lambda task: [], *(planned(str(i)) for i in range(10)), slots=3)
    scene.lane._pool = scene.pool
    for _ in range(2):
        scene.lane.poll()
    assert len(scene.pool.asked) == scene.host.made == 3


def test_an_attempt_of_an_earlier_run_is_adopted(make: Make, tmp_path: Path) -> None:
    scene = make(done, planned("a"), planned("b", "a"))
    left, other = (
        make_task(planned(name), scene.host.store, tmp_path, log=tmp_path / "log") for name in ("a", "of another plan")
    )
    scene.pool.adopted = (left, other)
    scene.pool.news = [Ended(other.attempt, "done"), Ended(left.attempt, "done"), Ended(left.attempt, "failed")]
    assert scene.run() == {"a": ("done", ""), "b": ("done", "")}
    assert [task.label for task in scene.pool.tasks] == ["b"]


@pytest.mark.parametrize("call", ["adopt", "submit", "wait", "stop"])
def test_an_engine_that_raises_is_named(make: Make, call: str) -> None:
    def fail(*arguments: object) -> None:
        raise OSError("no such host")

    scene = make(lambda task: [Started(task.attempt)], timeout=0.01)
    setattr(scene.pool, call, fail)
    with pytest.raises(EngineError, match=f"engine scripted failed in {call}: OSError: no such host"):
        scene.run()
    assert scene.pool.closed


def test_an_engine_cannot_skip_a_stage(make: Make) -> None:
    """What depends on it would wait for ever."""
    scene = make(lambda task: [Ended(task.attempt, "skipped")], planned("a"), planned("b", "a"))
    with pytest.raises(EngineError, match=r"failed in wait: ValueError: an attempt cannot end with status .skipped."):
        scene.run()


@pytest.mark.parametrize("text", ["{", "[]", '{"attempt": "other", "status": "done", "messages": []}'])
def test_an_outcome_file_that_says_nothing_is_passed_over(make: Make, text: str) -> None:
    def odd(task: Task) -> list[Event]:
        task.outcome_file.parent.mkdir(parents=True, exist_ok=True)
        task.outcome_file.write_text(text)
        return [Ended(task.attempt)]

    assert make(odd, retries=0).run() == {"a": ("failed", "the worker left no outcome")}


def test_outcomes_that_nobody_reads_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    for file in (old, new):
        file.write_text("{}")
    os.utime(old, (0, 0))
    _sweep(tmp_path)
    _sweep(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == [new]


def test_a_requeued_attempt_counts_its_timeout_anew(make: Make) -> None:
    """It waits for longer than its timeout, and is not stopped."""
    scene = make(lambda task: [Started(task.attempt), Requeued(task.attempt)], timeout=0.1)
    scene.lane._pool = scene.pool
    begin = time.monotonic()
    while time.monotonic() - begin < 0.3:
        scene.lane.poll()
    assert scene.pool.stopped == []
    scene.pool.news += [Started(task.attempt) for task in scene.pool.tasks]
    while not scene.pool.stopped:
        scene.lane.poll()
        assert time.monotonic() - begin < 10


@pytest.mark.parametrize("further", [True, False])
def test_stops_from_outside_count_only_without_progress(make: Make, further: bool) -> None:
    """A time limit ends many attempts; as long as each gets further than the last, there is another one."""

    def limited(task: Task) -> list[Event]:
        number = len(scene.pool.tasks)
        if number == 6:
            return done(task)
        step = number if further else 1
        (Store.open(task.store).scratch(task.id) / task.attempt / f"checkpoint-000000-{step:012d}").mkdir(parents=True)
        return [Ended(task.attempt, "stopped")]

    scene = make(limited, retries=1)
    (outcome,) = scene.run().values()
    assert outcome[0] == ("done" if further else "failed")
    assert len(scene.pool.tasks) == (6 if further else 2)


@pytest.mark.parametrize("when", ["submitted", "asked"])
def test_leaving_stops_nothing(make: Make, tmp_path: Path, when: str) -> None:
    def ask(task: Task) -> list[Event]:
        scene.lane.stop.requested = scene.lane.stop.leave = when == "asked"
        return [Started(task.attempt)]

    scene = make(ask, planned("a"), planned("b"), planned("c", "a"))
    scene.lane.stop.when_submitted = when == "submitted"
    scene.lane.ownership = Ownership(tmp_path / "owners", "me")
    assert scene.run() == {}
    assert (scene.pool.stopped, scene.pool.killed, scene.pool.closed) == ([], [], True)
    assert scene.lane.left == len(scene.pool.tasks) == 2
    assert not list((tmp_path / "owners" / "runs").iterdir()), "others may take over at once"


def test_a_run_that_detaches_waits_until_its_stages_are_handed_on(make: Make, tmp_path: Path) -> None:
    """A cluster whose controller is away has not got them, and they would go with this process."""

    @dataclass
    class Slow(ScriptedPool):
        waits: int = 0

        @property
        def undelivered(self) -> int:
            return len(self.tasks) if self.waits < 3 else 0

        def wait(self, seconds: float) -> Iterable[Event]:
            self.waits += 1
            return super().wait(0)

    scene = make(lambda task: [], planned("a"), planned("b"))
    pool = scene.pool = Slow(scene.pool.answer)
    scene.lane.open = lambda: pool
    scene.lane.stop.when_submitted = True
    scene.lane.ownership = Ownership(tmp_path / "owners", "me")
    scene.run()
    assert pool.waits == 3
    assert (scene.lane.left, pool.stopped) == (2, [])
