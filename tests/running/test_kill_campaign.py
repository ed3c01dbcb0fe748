"""Anybody is killed, by any signal, at any time, again and again: runs end with the same bits and leave nothing behind.

The parent, a worker, the fork server, or all processes in the parent's group as a terminal does. BPCBENCH_KILLS says
how often, BPCBENCH_KILL_SEED where; what was done is printed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from toy_runs import Toy, until

from bpcbench.store.verification import verify

LIVES = 4
KILLS = int(os.environ.get("BPCBENCH_KILLS", "12"))
SEED = int(os.environ.get("BPCBENCH_KILL_SEED", "20240607"))
PACE = 0.02
METHODS = "{a: {plugin: toy-loop, steps: 80}, b: {plugin: toy-loop, steps: 81}, toy-real: {}}"
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
VICTIMS = ("parent", "parent", "group", "worker", "worker", "server", "server")
SPARED = 1
"""How many kills one run must survive that do not concern its parent: a stage is tried twice."""


def make(folder: Path) -> Toy:
    return Toy(folder).write(METHODS, evaluators="classification, toy-shifted")


def processes(toy: Toy, running: subprocess.Popen[str]) -> dict[str, list[int]]:
    """Return the processes of a run by what they are: a worker is a child of the server."""
    found: dict[str, list[int]] = {"parent": [running.pid], "server": [], "worker": []}
    marked = toy.processes()
    for pid, command in marked.items():
        if "forkserver" in (Path(f"/proc/{pid}/cmdline").read_text() if Path(f"/proc/{pid}").exists() else command):
            found["server" if parent(pid) == running.pid else "worker"].append(pid)
    return found


def parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


class Life:
    """Runs of one suite in one store after another, until one ends by itself; then the next store."""

    def __init__(self, folder: Path, seed: int, kills: int) -> None:
        self.folder, self.chance, self.left = folder, random.Random(seed), kills
        self.done: Counter[str] = Counter()
        self.toys: list[Toy] = []
        reference = make(folder / "reference")
        before = time.monotonic()
        reference.run(pace=PACE)
        self.seconds = time.monotonic() - before
        self.wanted = reference.results()

    def live(self) -> None:
        while self.left > 0:
            toy = make(self.folder / str(len(self.toys)))
            self.toys.append(toy)
            while not self.run(toy):
                pass
            self.check(toy)

    def run(self, toy: Toy) -> bool:
        """Run, kill somebody or nobody, and return whether the run came to its end."""
        before = toy.said()
        running = toy.start(pace=PACE, group=True)
        spared = 0
        while self.left > 0:
            try:
                running.wait(self.chance.uniform(0.0, self.seconds))
                break
            except subprocess.TimeoutExpired:
                victim, number = self.chance.choice(VICTIMS), self.chance.choice(SIGNALS)
            if victim in ("worker", "server"):
                spared += 1
                if spared > SPARED or not self.kill_one(toy, running, victim, number):
                    break
                continue
            if toy.said() == before:
                number = signal.SIGKILL  # before anything was printed, Python itself is still loading
            self.note(f"{victim} {number.name}")
            os.kill(running.pid, number) if victim == "parent" else os.killpg(running.pid, number)
            code = running.wait(90)
            assert code in (-number, 128 + number, 0), f"exit code {code} after {number.name}\n{toy.output()}"
            self.look(toy)
            return code == 0
        code = running.wait(180)
        assert code == 0, f"exit code {code}\n{toy.output()}"
        self.look(toy)
        return True

    def kill_one(self, toy: Toy, running: subprocess.Popen[str], victim: str, number: signal.Signals) -> bool:
        some = processes(toy, running)[victim]
        if not some:
            return True
        try:
            os.kill(self.chance.choice(some), number)
        except ProcessLookupError:
            return True
        self.note(f"{victim} {number.name}")
        return True

    def note(self, what: str) -> None:
        self.left -= 1
        self.done[what] += 1

    def look(self, toy: Toy) -> None:
        """Nothing runs on, what is in the store is whole, and all that was said is for people."""
        assert toy.all_gone(40), f"left alive: {toy.processes()}"
        assert "Traceback" not in toy.output(), toy.output()
        if (toy.out / "store.json").exists():
            assert [str(finding) for finding in verify(toy.out)] == []

    def end(self) -> None:
        """End whatever a failed test has left."""
        for toy in self.toys:
            toy.kill_all()

    def check(self, toy: Toy) -> None:
        """Everything is there, with the bits of a run that nobody disturbed, and nothing else is left."""
        found = toy.results()
        assert found.keys() == self.wanted.keys()
        assert [name for name in self.wanted if found[name] != self.wanted[name]] == []
        assert toy.scratch("*") == []
        assert not (toy.out / "damaged").exists()
        # Remains of commits under way, which the next run of another day removes, lie outside of what is listed.
        others = [path for path in toy.out.rglob("tmp-*") if path.parent.parent != toy.out / "scratch"]
        assert others == []


@pytest.mark.campaign
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("number", range(LIVES))
def test_whoever_is_killed_the_bits_are_the_same(number: int, tmp_path: Path) -> None:
    kills = KILLS // LIVES + (number < KILLS % LIVES)
    life = Life(tmp_path, SEED + number, kills)
    try:
        life.live()
    finally:
        print(f"\nseed {SEED + number}: {life.done.total()} kills in {len(life.toys)} stores: {dict(life.done)}")
        life.end()
    assert life.done.total() >= kills


@pytest.mark.campaign
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_fork_server_that_is_killed_is_replaced(number: signal.Signals, tmp_path: Path) -> None:
    """Its workers are lost, not failed; only SIGKILL ends it at all."""
    toy = make(tmp_path / "toy")
    running = toy.start(pace=PACE)
    until(lambda: toy.scratch("coreset-*/*/checkpoint-*"))
    (server,) = processes(toy, running)["server"]
    os.kill(server, number)
    assert running.wait(90) == 0, toy.output()
    assert ("the process that starts workers was killed" in toy.output()) == (number == signal.SIGKILL)
    assert "failed" not in toy.output()
    assert toy.all_gone(20)
    alone = make(tmp_path / "alone")
    alone.run()
    assert toy.results() == alone.results()


@pytest.mark.campaign
def test_a_terminal_that_closes_leaves_checkpoints(tmp_path: Path) -> None:
    """SIGHUP goes to all processes of its group, the fork server included. No checkpoint is due before."""
    toy = make(tmp_path / "toy")
    running = toy.start(pace=0.05, group=True, checkpoint=1000)
    until(lambda: any(path.stat().st_size for path in toy.scratch("coreset-*/*/events.jsonl")))
    assert not toy.scratch("*/*/checkpoint-*")
    os.killpg(running.pid, signal.SIGHUP)
    assert running.wait(60) == 128 + signal.SIGHUP, toy.output()
    assert toy.all_gone(20)
    assert "was killed" not in toy.output()
    assert "to resume: bpcbench run" in toy.output()
    assert toy.scratch("coreset-*/*/checkpoint-*")


@pytest.mark.campaign
def test_a_run_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    toy = make(tmp_path / "toy")
    running = toy.start(pace=PACE, group=True, prefix=["nohup"])
    until(lambda: toy.scratch("coreset-*/*/checkpoint-*"))
    os.killpg(running.pid, signal.SIGHUP)
    assert running.wait(90) == 0, toy.output()
    assert toy.all_gone(20)
