"""The pool of the engine `slurm` with a controller that does what a test says: no Slurm is needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from plain_stages import planned

from bpcbench import Ended, Requeued, RunInfo, Started, Task
from bpcbench.errors import EngineError
from bpcbench.running.run import make_task
from bpcbench_slurm import pool as pools
from bpcbench_slurm.controller import Away, Controller, Full, Job
from bpcbench_slurm.engine import Slurm
from bpcbench_slurm.pool import SlurmPool
from bpcbench_slurm.request import environment, options, script, slurm_time, words


@dataclass
class Scripted(Controller):
    """A queue that a test writes."""

    queue: list[Job] = field(default_factory=list)
    away: bool = False
    full: bool = False
    submitted: list[Path] = field(default_factory=list)
    cancelled: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)

    def submit(self, words: Sequence[str], script: Path) -> None:
        if self.away:
            raise Away("connect failure")
        if self.full:
            raise Full("QOSMaxSubmitJobPerUserLimit")
        self.submitted.append(script)
        self.queue.append(Job(str(len(self.submitted)), "PENDING", "Priority", str(script)))

    def jobs(self) -> list[Job]:
        if self.away:
            raise Away("connect failure")
        return self.queue

    def cancel(self, jobs: Collection[str], *options: str) -> None:
        if self.away:
            raise Away("connect failure")
        if jobs:
            self.cancelled.append((tuple(jobs), options))

    def say(self, state: str, reason: str = "None") -> None:
        """Give all jobs that state."""
        self.queue = [Job(job.id, state, reason, job.script) for job in self.queue]


@dataclass
class Scene:
    """A pool, its controller and a task."""

    pool: SlurmPool
    controller: Scripted
    task: Task
    reports: list[str]

    def events(self) -> list[object]:
        self.pool._next_look = 0.0
        return list(self.pool.wait(0))

    def outcome(self, status: str) -> None:
        self.task.outcome_file.parent.mkdir(parents=True, exist_ok=True)
        self.task.outcome_file.write_text(json.dumps(Ended(self.task.attempt, status).to_json()))  # type: ignore[arg-type]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(pools, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(pools, "MISSING_SECONDS", 0.0)
    reports: list[str] = []
    controller = Scripted()
    pool = SlurmPool(Slurm(), RunInfo(store=tmp_path, run="r", report=reports.append), controller, 5)
    task = make_task(planned("a"), tmp_path, tmp_path, log=tmp_path / "logs" / "a.log")
    return Scene(pool, controller, task, reports)


def test_a_job_waits_runs_and_ends(scene: Scene) -> None:
    assert scene.pool.submit(scene.task)
    assert scene.events() == []
    scene.controller.say("RUNNING")
    assert scene.events() == [Started(scene.task.attempt)]
    assert scene.events() == []
    scene.outcome("done")
    assert scene.events() == [Ended(scene.task.attempt)], "before the queue says so"
    assert not list(scene.pool._folder.glob("*.*"))


def test_a_preempted_job_has_not_ended(scene: Scene) -> None:
    scene.pool.submit(scene.task)
    scene.controller.say("RUNNING")
    scene.events()
    scene.outcome("stopped")
    assert scene.events() == []
    scene.controller.say("PENDING", "BeginTime")
    assert scene.events() == [Requeued(scene.task.attempt)]
    assert not scene.task.outcome_file.exists(), "it is not that of the next start"
    scene.controller.say("RUNNING")
    assert scene.events() == [Started(scene.task.attempt)]


@pytest.mark.parametrize(
    ("state", "lost", "said"),
    [
        ("NODE_FAIL", True, "its node failed"),
        ("TIMEOUT", True, "time limit"),
        ("FAILED", True, "ended as FAILED without an outcome"),
        ("OUT_OF_MEMORY", False, "more memory than it had asked for"),
        ("CANCELLED", False, "was cancelled"),
    ],
)
def test_a_job_that_leaves_no_word(scene: Scene, state: str, lost: bool, said: str) -> None:
    scene.pool.submit(scene.task)
    scene.controller.say(state)
    events = [*scene.events(), *scene.events()]
    (ended,) = events
    assert isinstance(ended, Ended)
    assert (ended.status, ended.lost) == ("failed", lost)
    assert said in ended.message


def test_a_job_that_cannot_be_started_is_not_waited_for(scene: Scene) -> None:
    scene.pool.submit(scene.task)
    scene.controller.say("PENDING", "launch failed requeued held")
    (ended,) = scene.events()
    assert isinstance(ended, Ended)
    assert ended.lost
    assert scene.controller.cancelled == [(("1",), ())]


def test_a_controller_that_is_away_says_nothing_about_jobs(scene: Scene) -> None:
    scene.pool.submit(scene.task)
    scene.controller.say("RUNNING")
    scene.events()
    scene.controller.away = True
    assert scene.events() == scene.events() == []
    scene.controller.away = False
    assert scene.events() == []
    assert [report.partition(" (")[0] for report in scene.reports] == [
        "Slurm's controller does not answer; waiting for it",
        "Slurm's controller answers again",
    ]


def test_what_could_not_be_submitted_is_submitted_when_the_controller_answers(scene: Scene) -> None:
    scene.controller.away = True
    assert scene.pool.submit(scene.task)
    assert scene.events() == []
    scene.controller.away = False
    scene.events()
    assert len(scene.controller.submitted) == 1
    scene.controller.say("RUNNING")
    assert scene.events() == [Started(scene.task.attempt)]


def test_what_was_taken_though_the_answer_was_lost_is_not_submitted_twice(scene: Scene) -> None:
    scene.controller.away = True
    scene.pool.submit(scene.task)
    scene.controller.away = False
    scene.controller.queue = [Job("7", "RUNNING", "None", str(scene.pool._file(scene.task, "sh")))]
    assert scene.events() == [Started(scene.task.attempt)]
    assert scene.controller.submitted == []


def test_a_job_that_the_controller_has_forgotten_is_lost(scene: Scene) -> None:
    """And another one that now has its number is not taken for it."""
    scene.pool.submit(scene.task)
    scene.controller.queue = [Job("1", "RUNNING", "None", "/somewhere/else.sh")]
    events = [*scene.events(), *scene.events(), *scene.events()]
    assert events == [Ended(scene.task.attempt, message="its job is not in Slurm's queue any more")]


@dataclass
class Neighbour:
    """The pool of another run on the same store, which finds what the first has submitted."""

    pool: SlurmPool
    controller: Scripted

    def events(self) -> list[object]:
        self.pool._next_look = 0.0
        return list(self.pool.wait(0))


def neighbour(scene: Scene, *, owner_lives: bool) -> Neighbour:
    info = RunInfo(store=scene.task.store, run="second", report=scene.reports.append, claim=lambda _: not owner_lives)
    return Neighbour(SlurmPool(Slurm(), info, scene.controller, 5), scene.controller)


def test_the_jobs_of_a_run_that_lives_are_left_alone(scene: Scene) -> None:
    """Whether they are held, out of the queue, or over: their own run decides, and needs their files."""
    scene.pool.submit(scene.task)
    files = sorted(scene.pool._folder.glob("*.*"))
    second = neighbour(scene, owner_lives=True)
    assert list(second.pool.adopt()) == []
    scene.controller.say("PENDING", "launch failed requeued held")
    assert second.events() == []
    assert scene.controller.cancelled == []
    kept, scene.controller.queue = scene.controller.queue, []
    assert [second.events() for _ in range(3)] == [[], [], []]
    scene.controller.queue = kept
    scene.outcome("done")
    assert second.events() == []
    second.pool.stop([scene.task.attempt])
    second.pool.kill([scene.task.attempt])
    assert scene.controller.cancelled == []
    assert sorted(scene.pool._folder.glob("*.*")) == files
    assert scene.events() == [Ended(scene.task.attempt)]


def test_the_jobs_of_a_run_that_is_gone_are_taken_over(scene: Scene) -> None:
    scene.pool.submit(scene.task)
    second = neighbour(scene, owner_lives=False)
    assert [task.attempt for task in second.pool.adopt()] == [scene.task.attempt]
    scene.controller.say("PENDING", "launch failed requeued held")
    (ended,) = second.events()
    assert isinstance(ended, Ended)
    assert ended.lost
    assert scene.controller.cancelled == [(("1",), ())]
    assert not list(scene.pool._folder.glob("*.*"))


def test_what_the_controller_has_not_got_is_undelivered(scene: Scene) -> None:
    scene.controller.away = True
    scene.pool.submit(scene.task)
    assert scene.pool.undelivered == 1
    scene.controller.away = False
    scene.events()
    assert scene.pool.undelivered == 0
    assert len(scene.controller.submitted) == 1


def test_a_full_cluster_is_asked_again(scene: Scene) -> None:
    scene.controller.full = True
    assert not scene.pool.submit(scene.task)
    assert not list(scene.pool._folder.glob("*.*"))
    scene.controller.full = False
    assert scene.pool.submit(scene.task)


def test_a_stop_reaches_what_runs_and_what_waits(scene: Scene) -> None:
    scene.pool.submit(scene.task)
    scene.pool.stop([scene.task.attempt])
    assert scene.controller.cancelled == [(("1",), ("--state=PENDING",)), (("1",), ("--batch", "--signal=TERM"))]
    scene.controller.say("CANCELLED")
    assert [*scene.events(), *scene.events()] == [Ended(scene.task.attempt, "stopped", "stopped")]


def test_a_stop_while_the_controller_is_away_is_sent_later(scene: Scene) -> None:
    scene.pool.submit(scene.task)
    scene.controller.say("RUNNING")
    scene.events()
    scene.controller.away = True
    scene.pool.stop([scene.task.attempt])
    assert scene.controller.cancelled == []
    scene.controller.away = False
    scene.events()
    assert (("1",), ("--batch", "--signal=TERM")) in scene.controller.cancelled


def test_the_next_run_takes_up_what_is_left(scene: Scene) -> None:
    scene.pool.submit(scene.task)
    scene.controller.say("RUNNING")
    later = SlurmPool(Slurm(), scene.pool._run, scene.controller, 5)
    (adopted,) = later.adopt()
    assert adopted.attempt == scene.task.attempt
    later._next_look = 0.0
    assert list(later.wait(0)) == [Started(scene.task.attempt)]


def chosen(engine: Slurm, task: Task) -> list[str]:
    return words(options(engine, task, 30.0))


def test_options_of_a_job(scene: Scene) -> None:
    engine = Slurm(
        partition="gpu",
        time="4h",
        memory="16G",
        sbatch={"qos": "long", "exclusive": True, "gpu_bind": None},
        overrides={"toy": {"time": "2d", "gpus": 2, "sbatch": {"qos": "short", "mem": 0}}},
    )
    task = Task.from_json({**scene.task.to_json(), "plugin": "toy", "threads": 3})
    assert {"--partition=gpu", "--time=2-00:00:00", "--gres=gpu:2", "--qos=short", "--mem=0", "--exclusive"} <= set(
        chosen(engine, task)
    )
    assert {"--cpus-per-task=3", "--requeue", "--dependency=singleton"} <= set(chosen(engine, task))
    other = chosen(engine, scene.task)
    assert {"--time=0-04:00:00", "--mem=16G", "--qos=long"} <= set(other)
    assert not [word for word in other if word.startswith(("--gres", "--gpu", "--account"))]


def test_what_a_plugin_asks_for_is_the_default(scene: Scene) -> None:
    plain = {**scene.task.to_json(), "resources": {"gpus": 0.5, "memory": 6.5}}
    assert {"--gres=gpu:1", "--mem=6656M"} <= set(chosen(Slurm(), Task.from_json(plain)))
    assert not [word for word in chosen(Slurm(), Task.from_json({**plain, "device": "cpu"})) if "gres" in word]


def test_a_stage_without_a_gpu_sees_none(scene: Scene) -> None:
    scene.pool.submit(scene.task)
    assert json.loads(scene.pool._file(scene.task, "json").read_text())["visible"] == ""


def test_the_worker_takes_the_place_of_the_script(scene: Scene) -> None:
    text = script(Slurm(setup="module load cuda", python="/env/my python"), scene.task, Path("/store/a b.json"))
    assert "module load cuda\n" in text
    assert "exec '/env/my python' -m bpcbench.running.worker '/store/a b.json'\n" in text


def test_a_job_around_this_process_passes_nothing_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    assert "SLURM_MEM_PER_CPU" not in environment()
    assert environment()["SLURM_CONF"] == "/etc/slurm.conf"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("90s", "0-00:02:00"),
        ("30m", "0-00:30:00"),
        ("36h", "1-12:00:00"),
        ("1-12:00:00", "1-12:00:00"),
        ("4:00", "4:00"),
    ],
)
def test_times(text: str, wanted: str) -> None:
    assert slurm_time(text) == wanted


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"time": "tomorrow"}, "time: expected a duration such as 4h"),
        ({"gpus": -1}, "gpus: expected at least 0"),
        ({"overrides": {"vbpc": {"tme": "4h"}}}, "overrides.vbpc.unknown option 'tme'; did you mean 'time'?"),
        ({"overrides": {"vbpc": "4h"}}, "overrides.vbpc: expected a mapping"),
        ({"overrides": {"vbpc": {"time": 14400}}}, "overrides.vbpc.time: expected a duration such as 4h"),
        ({"sbatch": {"job-name": "x"}}, "sbatch.job-name: bpcbench sets it itself"),
        ({"sbatch": {"--qos": "x"}}, "sbatch.--qos: expected the long name"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("?", r"\?").replace(".", r"\.")):
        Slurm(**options)  # type: ignore[arg-type]


def test_a_machine_without_slurm_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="sbatch, squeue, scancel not found"):
        Slurm().open(RunInfo(store=tmp_path, run="r"))


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("squeue: error: Unable to contact slurm controller (connect failure)", Away),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", Away),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit", Full),
        ("sbatch: error: Batch job submission failed: Invalid partition name specified", EngineError),
    ],
)
def test_what_slurm_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, error: type[Exception]) -> None:
    command = tmp_path / "sbatch"
    command.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    call: Callable[..., None] = Controller().submit
    with pytest.raises(error, match=said.partition(": error: ")[2].replace("(", r"\(").replace(")", r"\)")):
        call(["--x"], tmp_path / "script")
