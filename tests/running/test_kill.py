"""THE KILL TEST: killed by SIGKILL at random points and run again, a suite ends with the same bits.

Two methods share a prerequisite; each runs two checkpointed loops with Adam, torch and NumPy generators and draws
from the global ones, and everything downstream is made from that. The points are random but seeded, and printed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from toy_runs import Toy, until

SEED = int(os.environ.get("BPCBENCH_KILL_SEED", "20240607"))
STEPS = 80
PACE = 0.01
MEMBERS = 30
METHODS = f"{{a: {{plugin: toy-adam, steps: {STEPS}}}, b: {{plugin: toy-adam, steps: {STEPS}, lr: 0.1}}}}"
RATE = {"a": "0.05", "b": "0.1"}


@dataclass
class Scenario:
    """A run that is killed: its parent, once, or its workers, each once.

    When a method has come to a certain step of its loops; or when so many members have been committed.
    """

    kind: str
    points: dict[str, tuple[int, int]] = field(default_factory=dict)
    commits: int = 0
    found: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        where = ", ".join(f"{name} loop {loop} step {step}" for name, (loop, step) in self.points.items())
        point = where or f"{self.commits} commits"
        return f"kill {self.kind} at {point}: had {self.found or 'no checkpoint'}; went on from {self.resumed}"


def scenarios(rng: random.Random) -> list[Scenario]:
    """Return ten points: seven inside loops, three anywhere, of which one is early and one is late."""

    def point() -> tuple[int, int]:
        return rng.randrange(2), rng.randrange(3, STEPS - 15)

    inside = [Scenario("parent", {rng.choice("ab"): point()}) for _ in range(3)]
    workers = [Scenario("worker", {"a": point(), "b": point()}) for _ in range(2)]
    anywhere = [Scenario("parent", commits=rng.randrange(*span)) for span in ((0, 3), (3, 21), (21, MEMBERS))]
    return [*inside, *workers, *anywhere]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory if there is one: there a checkpoint costs so little that many are written."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


def make(folder: Path) -> Toy:
    return Toy(folder).write(METHODS, evaluators="classification, toy-shifted")


def reached(toy: Toy, name: str, point: tuple[int, int]) -> int | None:
    """Return the worker of a method once it is at a point, or beyond, and has a checkpoint."""
    for (pid,) in toy.counted("worker", RATE[name])[-1:]:
        for attempt in toy.scratch("coreset-*/*"):
            # Which folder is whose is not said by its name, but by the process that writes in it.
            if _writes(int(pid), attempt) and list(attempt.glob("checkpoint-*")) and _progress(attempt) >= point:
                return int(pid)
    return None


def _writes(pid: int, attempt: Path) -> bool:
    try:
        return any(link.readlink().parent == attempt for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def _progress(attempt: Path) -> tuple[int, int]:
    lines = (attempt / "events.jsonl").read_text().splitlines()
    done = [event for line in lines if "done" in (event := json.loads(line))]
    return (done[-1]["loop"], done[-1]["done"]) if done else (-1, 0)


def kill(toy: Toy, scenario: Scenario) -> None:
    running = toy.start(pace=PACE)
    left = dict(scenario.points)

    def kill_those_there() -> bool:
        assert running.poll() is None, f"the run ended before {left}\n{toy.output()}"
        for name, point in list(left.items()):
            if pid := reached(toy, name, point):
                scenario.found += [path.name.removeprefix("checkpoint-") for path in toy.scratch("*/*/checkpoint-*")]
                os.kill(pid if scenario.kind == "worker" else running.pid, signal.SIGKILL)
                del left[name]
        return not left

    if scenario.points:
        until(kill_those_there)
    else:
        until(lambda: len(list(toy.out.glob("stages/*/*/*/stage.json"))) >= scenario.commits and toy.out.exists())
        running.kill()
    # A worker that is killed is replaced in the same run.
    assert running.wait(60) in ((0,) if scenario.kind == "worker" else (-signal.SIGKILL, 0)), toy.output()
    # Workers go at once; the server, if it is just loading torch, when it has done so.
    assert toy.all_gone(30), f"left alive: {toy.processes()}"


def play(folder: Path, scenario: Scenario) -> Toy:
    toy = make(folder)
    kill(toy, scenario)
    toy.run()
    scenario.resumed = [" ".join(line) for line in toy.counted("from") if line[-1] != "0"]
    return toy


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_killed_and_run_again_ends_with_the_same_bits(folder: Path) -> None:
    reference = make(folder / "reference")
    reference.run()
    played = scenarios(random.Random(SEED))
    wanted = reference.results()
    assert len(wanted) == MEMBERS
    kinds = [name.partition("/")[0] for name in wanted]
    assert (kinds.count("coreset"), kinds.count("predict"), kinds.count("score")) == (2 * 9, 2 * 3, 4)
    assert len(reference.counted("prerequisite")) == 1
    try:
        with ThreadPoolExecutor(2) as pool:
            folders = [folder / str(i) for i in range(len(played))]
            toys = list(pool.map(play, folders, played))
    finally:
        print(f"\nseed {SEED}", *played, sep="\n")
    for toy, scenario in zip(toys, played, strict=True):
        found = toy.results()
        assert found.keys() == wanted.keys(), scenario
        assert [name for name in wanted if found[name] != wanted[name]] == [], scenario
        assert not list((toy.out / "scratch").glob("stages/*")), scenario
        # The prerequisite is made once, or twice if it was just that which was killed.
        assert len(toy.counted("prerequisite")) <= 2
    assert sum(len(scenario.points) or 1 for scenario in played) >= 10
    inside = [scenario for scenario in played if scenario.points]
    assert sum(len(scenario.points) for scenario in inside) >= 6
    for scenario in inside:
        assert len(scenario.found) >= len(scenario.points), scenario
        # A lost worker is replaced within the run; what the next run resumes is what was left when that ended.
        assert len(scenario.resumed) >= (1 if scenario.kind == "worker" else len(scenario.points)), scenario
