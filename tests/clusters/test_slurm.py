"""Runs on a real Slurm while things die: the same numbers in the end, and nothing that was finished is run twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import Cluster, until
from toy_runs import Toy

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

METHODS = "{a: {plugin: toy-loop, steps: 60}, b: {plugin: toy-loop, steps: 61}}"
SLURM = "engine={plugin: slurm, partition: PARTITION, memory: 500M}"
MAIN = SLURM.replace("PARTITION", "main")
LOW = SLURM.replace("PARTITION", "low")


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Toy]:
    made = Toy(tmp_path / "toy").write(METHODS)
    yield made
    made.kill_all()


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What an undisturbed run on this machine alone gives."""
    alone = Toy(tmp_path_factory.mktemp("alone")).write(METHODS)
    alone.run()
    return alone.results()


def start(toy: Toy, engine: str = MAIN, *, pace: float = 0.12) -> subprocess.Popen[str]:
    return toy.start(engine, jobs=4, group=True, pace=pace)


def both_loop(toy: Toy) -> None:
    """Wait until both coresets have checkpoints."""
    until(lambda: len({path.parent for path in toy.scratch("coreset*/*/checkpoint-*")}) >= 2, 100)


def ended_well(toy: Toy, running: subprocess.Popen[str], wanted: dict[str, object]) -> None:
    assert running.wait(200) == 0, toy.output()
    assert toy.results() == wanted
    assert len(toy.counted("fit")) == 2
    assert not list((toy.out / "scratch" / "stages").iterdir())
    assert "Traceback" not in toy.output()


def resumed(toy: Toy) -> list[int]:
    """Return the steps at which coresets were begun, those from the beginning left out."""
    return [int(step) for _, step in toy.counted("from", "coreset") if int(step) > 0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_and_run_again(slurm: Cluster, toy: Toy, wanted: dict[str, object], number: signal.Signals) -> None:
    running = start(toy)
    both_loop(toy)
    running.send_signal(number)
    assert running.wait(100) == 128 + number, toy.output()
    until(lambda: not slurm.jobs(), 20, "the end of the jobs")
    assert toy.all_gone(5)
    assert len(list(toy.scratch("coreset*/*/checkpoint-*"))) == 2
    ended_well(toy, start(toy, pace=0), wanted)
    assert len(resumed(toy)) == 2


def test_preempted_jobs_are_requeued_and_go_on(slurm: Cluster, toy: Toy, wanted: dict[str, object]) -> None:
    running = start(toy, LOW)
    both_loop(toy)
    slurm.call(
        "sbatch", "--partition=main", "--nodes=2", "--exclusive", "--mem=0", "--output=/dev/null", "--wrap=sleep 1"
    )
    ended_well(toy, running, wanted)
    assert "was requeued by Slurm" in toy.output()
    assert "worker lost" not in toy.output()
    assert len(resumed(toy)) == 2


def test_a_killed_worker_is_replaced_and_the_other_is_not_disturbed(
    slurm: Cluster, toy: Toy, wanted: dict[str, object]
) -> None:
    running = start(toy)
    both_loop(toy)
    ((pid,),) = toy.counted("worker", 60)
    os.kill(int(pid), signal.SIGKILL)
    ended_well(toy, running, wanted)
    assert toy.output().count("worker lost: coreset") == 1
    assert len(resumed(toy)) == 1


def test_a_node_is_lost_while_its_worker_lives_on(slurm: Cluster, toy: Toy, wanted: dict[str, object]) -> None:
    """Slurm runs the stages again elsewhere; the lease keeps the second workers from writing while the first do."""
    running = start(toy, pace=0.3)
    both_loop(toy)
    lost = [job for job in slurm.jobs("RUNNING").values() if job[2] == "n1"]
    assert lost
    slurm.kill("slurmd-n1")
    try:
        # The node is down when it has not answered for SlurmdTimeout; then its jobs are requeued.
        for number, *_ in lost:
            until(lambda number=number: "Restarts=1" in slurm.call("scontrol", "show", "job", number), 60)
        # Not before the end: a node that comes back ends what it finds there.
        ended_well(toy, running, wanted)
    finally:
        slurm.start_node("n1")
    assert resumed(toy) == [], "the first workers were alive, and nobody took their place"


def test_a_killed_driver_is_replaced_and_adopts(slurm: Cluster, toy: Toy, wanted: dict[str, object]) -> None:
    running = start(toy)
    both_loop(toy)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert len(slurm.jobs()) == 2
    ended_well(toy, start(toy), wanted)
    assert toy.output().count("still running: coreset") == 2
    assert len(toy.counted("from", "coreset")) == 2, "each coreset was begun once"


def test_a_lost_terminal_and_detach_leave_the_jobs(slurm: Cluster, toy: Toy, wanted: dict[str, object]) -> None:
    # Slow enough to be there when the second run, which takes a while to start, has come and gone.
    running = start(toy, pace=0.5)
    both_loop(toy)
    running.send_signal(signal.SIGHUP)
    assert running.wait(30) == 128 + signal.SIGHUP, toy.output()
    assert "2 stages go on without this run" in toy.output()
    assert len(slurm.jobs()) == 2
    begin = time.monotonic()
    left = toy.start(MAIN, "--detach", jobs=4, pace=0.12)
    assert left.wait(60) == 0, toy.output()
    assert time.monotonic() - begin < 60
    assert slurm.jobs()
    ended_well(toy, start(toy), wanted)
    assert len(toy.counted("from", "coreset")) == 2


def test_a_controller_is_killed_and_comes_back(slurm: Cluster, toy: Toy, wanted: dict[str, object]) -> None:
    running = start(toy)
    both_loop(toy)
    slurm.kill("slurmctld")
    until(lambda: "controller does not answer" in toy.output(), 60)
    time.sleep(1)
    slurm.start_controller()
    ended_well(toy, running, wanted)
    assert "controller answers again" in toy.output()
    # What Slurm tries to start before its nodes answer again gets another job.
    assert "worker lost: coreset" not in toy.output()
    assert len(toy.counted("from", "coreset")) == 2


def test_two_runs_share_the_work_and_one_does_not_stop_the_other(
    slurm: Cluster, toy: Toy, wanted: dict[str, object]
) -> None:
    first = start(toy)
    both_loop(toy)
    second = start(toy)
    until(lambda: toy.output().count("1 cell, ") + toy.output().count("2 cells") >= 2)
    until(lambda: any(job[1] == "PENDING" for job in slurm.jobs().values()) or second.poll() is not None, 60)
    second.send_signal(signal.SIGINT)
    assert second.wait(60) == 130, toy.output()
    ended_well(toy, first, wanted)
    assert len(toy.counted("from", "coreset")) == 2
    assert "still running" not in toy.output()


def test_what_slurm_refuses_is_one_message_and_the_usual_summary(slurm: Cluster, toy: Toy) -> None:
    running = start(toy, SLURM.replace("PARTITION", "nowhere"))
    assert running.wait(60) == 1
    assert "engine slurm failed in submit: sbatch:" in toy.output()
    assert "nvalid partition" in toy.output()
    assert "to resume: bpcbench run" in toy.output()
    assert "Traceback" not in toy.output()
    assert not list((toy.out / "scratch" / "engines" / "slurm").glob("*.*"))


def test_an_interpreter_that_is_not_on_the_node_is_named(slurm: Cluster, toy: Toy) -> None:
    running = start(toy, "engine={plugin: slurm, python: /nowhere/python}")
    assert running.wait(60) == 1
    assert "/nowhere/python cannot be started on the node" in toy.output()
    assert "worker lost" not in toy.output()


def test_a_time_limit_is_no_failure_as_long_as_jobs_get_further(
    slurm: Cluster, toy: Toy, wanted: dict[str, object]
) -> None:
    """A minute before the limit Slurm sends SIGTERM to the worker; here it does so more often than `retries` allows."""
    toy.write("{a: {plugin: toy-loop, steps: 60}}")
    running = start(toy, "engine={plugin: slurm, time: 1m}", pace=0.1)
    for ends in range(4):
        until(lambda ends=ends: len(resumed(toy)) >= ends and toy.scratch("coreset*/*/checkpoint-*"), 60)
        (job,) = (job[0] for name, job in slurm.jobs("RUNNING").items() if name.startswith("bpc-coreset"))
        slurm.call("scancel", "--batch", "--signal=TERM", job)
        until(lambda ends=ends: len(resumed(toy)) > ends, 60)
    assert running.wait(100) == 0, toy.output()
    assert len(resumed(toy)) == 4
    assert {name: wanted[name] for name in toy.results()} == toy.results()


def test_resources_reach_the_job(slurm: Cluster, toy: Toy) -> None:
    """By suite, and by method: CPUs, memory, comment and a free option."""
    overrides = "overrides: {toy-loop: {cpus: 3, memory: 300M, sbatch: {nice: 7, hold: true}}}"
    running = start(toy, f"engine={{plugin: slurm, memory: 200M, {overrides}}}")
    held = until(lambda: [job for name, job in slurm.jobs().items() if name.startswith("bpc-coreset")], 60)
    shown = json.loads(json.dumps(slurm.call("scontrol", "show", "job", held[0][0])))
    assert "NumCPUs=3" in shown
    assert "MinMemoryNode=300M" in shown
    assert "Nice=7" in shown
    assert "Comment=coreset toy-data ipc 2" in shown
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    assert not slurm.jobs()


def test_doctor_runs_a_tiny_job(slurm: Cluster, toy: Toy) -> None:
    toy.write(METHODS, "engine: {plugin: slurm, partition: main, gpus: 1}")
    command = [sys.executable, "-m", "bpcbench", "doctor", "--out", str(toy.out), "--data", str(toy.folder)]
    command += ["--wait", "100", "--engine"]
    for chosen, more in (("slurm", []), (str(toy.suite), [])):
        done = subprocess.run([*command, chosen, *more], capture_output=True, text=True, env=toy.environment())
        assert done.returncode == 0, done.stdout + done.stderr
        assert "engine slurm" in done.stdout
        assert "ok: the node sees the same store, versions and plugins as this machine" in done.stdout
    done = subprocess.run([*command, "slurm", "--gpus", "1"], capture_output=True, text=True, env=toy.environment())
    assert done.returncode == 1
    assert "PROBLEM: torch sees no GPU" in done.stdout
    assert "CUDA_VISIBLE_DEVICES is '0'" in done.stdout, "Slurm has given it one, of make-believe"
    done = subprocess.run([*command, "slrum"], capture_output=True, text=True, env=toy.environment())
    assert done.returncode == 2
    assert "did you mean 'slurm'?" in done.stderr
