"""Runs on a real Ray while things die: the same numbers in the end, and nothing that was finished is run twice."""

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
from ray_cluster import Cluster
from toy_runs import Toy, until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_nodes"), pytest.mark.timeout(300)]

METHODS = "{a: {plugin: toy-loop, steps: 60}, b: {plugin: toy-loop, steps: 61}}"
MORE = f"{{{', '.join(f'{name}: {{plugin: toy-loop, steps: {60 + number}}}' for number, name in enumerate('abcd'))}}}"
TWO_AT_A_TIME = "{plugin: ray, cpus: 4}"
"""There is room for two stages of these on the two nodes."""


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


@pytest.fixture(scope="module")
def more_wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    alone = Toy(tmp_path_factory.mktemp("alone")).write(MORE)
    alone.run()
    return alone.results()


def start(toy: Toy, engine: str = "ray", *more: str, pace: float = 0.12) -> subprocess.Popen[str]:
    return toy.start(f"engine={engine}", *more, jobs=4, group=True, pace=pace)


def both_loop(toy: Toy) -> None:
    """Wait until both coresets have checkpoints."""
    until(lambda: len({path.parent for path in toy.scratch("coreset*/*/checkpoint-*")}) >= 2, 100)


def ended_well(toy: Toy, running: subprocess.Popen[str], wanted: dict[str, object], *, stages: int = 2) -> None:
    assert running.wait(200) == 0, toy.output()
    assert toy.results() == wanted
    assert len(toy.counted("fit")) == stages
    assert not list((toy.out / "scratch" / "stages").iterdir())
    assert not list((toy.out / "scratch" / "engines" / "ray").glob("*.json"))
    assert "Traceback" not in toy.output()
    assert until(lambda: not actors(), 30, fail=False), actors()


def actors() -> list[str]:
    """Return the names of all actors on the cluster, those that wait for room among them."""
    program = """
import json, logging, ray
ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
print(json.dumps([one["name"] for one in ray.util.list_named_actors(all_namespaces=True)]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


def left_alone(toy: Toy, engine: str, stages: int, pace: float = 0.12) -> None:
    """Submit the coresets and leave; what they need was left alone by a run before."""
    assert start(toy, engine, "--detach").wait(60) == 0, toy.output()
    assert "1 stage goes on without this run" in toy.output()
    until(lambda: list(toy.members("prerequisite")), 60)
    assert start(toy, engine, "--detach", pace=pace).wait(60) == 0, toy.output()
    assert f"{stages} stages go on without this run" in toy.output()


def begun_once(toy: Toy, stages: int) -> None:
    """Nothing was begun twice, and no run thought so."""
    assert len(toy.counted("from", "coreset")) == stages, toy.output()
    assert "worker lost" not in toy.output()


def resumed(toy: Toy) -> list[int]:
    """Return the steps at which coresets were begun, those from the beginning left out."""
    return [int(step) for _, step in toy.counted("from", "coreset") if int(step) > 0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_and_run_again(toy: Toy, wanted: dict[str, object], number: signal.Signals) -> None:
    running = start(toy)
    both_loop(toy)
    running.send_signal(number)
    assert running.wait(100) == 128 + number, toy.output()
    assert toy.all_gone(10)
    assert len(list(toy.scratch("coreset*/*/checkpoint-*"))) == 2
    ended_well(toy, start(toy, pace=0), wanted)
    assert len(resumed(toy)) == 2


def test_a_killed_worker_is_replaced_and_the_other_is_not_disturbed(toy: Toy, wanted: dict[str, object]) -> None:
    running = start(toy)
    both_loop(toy)
    ((pid,),) = toy.counted("worker", 60)
    os.kill(int(pid), signal.SIGKILL)
    ended_well(toy, running, wanted)
    assert toy.output().count("worker lost: coreset") == 1
    assert len(resumed(toy)) == 1


def test_a_killed_actor_takes_its_worker_with_it_but_not_the_work(toy: Toy, wanted: dict[str, object]) -> None:
    running = start(toy)
    both_loop(toy)
    ((pid,),) = toy.counted("worker", 60)
    actor = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(actor, signal.SIGKILL)
    ended_well(toy, running, wanted)
    assert toy.output().count("worker lost: coreset") <= 1
    assert len(resumed(toy)) == 1, "its worker has written a checkpoint when it was left alone"


def test_a_killed_driver_is_replaced_and_adopts(toy: Toy, wanted: dict[str, object]) -> None:
    running = start(toy, pace=0.4)
    both_loop(toy)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    ended_well(toy, start(toy), wanted)
    assert toy.output().count("still running: coreset") == 2
    assert len(toy.counted("from", "coreset")) == 2, "each coreset was begun once"


def test_a_lost_terminal_leaves_the_stages(toy: Toy, wanted: dict[str, object]) -> None:
    running = start(toy)
    both_loop(toy)
    running.send_signal(signal.SIGHUP)
    assert running.wait(30) == 128 + signal.SIGHUP, toy.output()
    assert "2 stages go on without this run" in toy.output()
    ended_well(toy, start(toy), wanted)
    begun_once(toy, 2)


def test_what_detach_leaves_goes_on_and_is_adopted(toy: Toy, wanted: dict[str, object]) -> None:
    left_alone(toy, "ray", 2, pace=0.4)
    # Nobody but the cluster is there.
    both_loop(toy)
    ended_well(toy, start(toy), wanted)
    assert toy.output().count("still running: coreset") == 2
    begun_once(toy, 2)


def test_what_detach_leaves_waiting_for_room_is_begun_without_a_run(toy: Toy, more_wanted: dict[str, object]) -> None:
    toy.write(MORE)
    left_alone(toy, TWO_AT_A_TIME, 4, pace=0.02)
    until(lambda: len(list(toy.members("coreset"))) == 4, 120)
    ended_well(toy, start(toy, TWO_AT_A_TIME), more_wanted, stages=4)
    begun_once(toy, 4)


def test_a_killed_driver_leaves_no_actor_that_waits_for_it(toy: Toy, more_wanted: dict[str, object]) -> None:
    """Two of four stages wait for room when it is killed."""
    toy.write(MORE)
    running = start(toy, TWO_AT_A_TIME)
    both_loop(toy)
    assert len(actors()) == 4
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    ended_well(toy, start(toy, TWO_AT_A_TIME), more_wanted, stages=4)
    # Those that ran may be over by now.
    assert 2 <= toy.output().count("still running: coreset") <= 4
    begun_once(toy, 4)


def test_a_run_that_finds_stages_of_another_does_not_end_them(toy: Toy, more_wanted: dict[str, object]) -> None:
    """Some run, some wait for room; the second run comes, waits for them like the first, and is stopped."""
    toy.write(MORE)
    first = start(toy, TWO_AT_A_TIME)
    both_loop(toy)
    second = start(toy, TWO_AT_A_TIME)
    until(lambda: toy.output().count("4 cells") >= 2)
    time.sleep(2)
    second.send_signal(signal.SIGINT)
    assert second.wait(60) == 130, toy.output()
    assert len(actors()) >= 2
    ended_well(toy, first, more_wanted, stages=4)
    begun_once(toy, 4)


def test_a_node_is_lost_while_its_workers_live_on(ray_nodes: Cluster, toy: Toy, wanted: dict[str, object]) -> None:
    """The stages are started again elsewhere; the lease keeps the second workers from writing while the first do."""
    running = start(toy, "{plugin: ray, overrides: {toy-loop: {resources: {second: 1}}}}", pace=0.15)
    both_loop(toy)
    ray_nodes.kill_node()
    try:
        until(lambda: toy.output().count("worker lost: coreset") == 2, 60)
    finally:
        ray_nodes.add_node()
    ended_well(toy, running, wanted)
    assert toy.output().count("worker lost: coreset") == 2


def test_two_runs_share_the_work_and_one_does_not_stop_the_other(toy: Toy, wanted: dict[str, object]) -> None:
    first = start(toy)
    both_loop(toy)
    second = start(toy)
    until(lambda: toy.output().count("2 cells") >= 2)
    second.send_signal(signal.SIGINT)
    assert second.wait(60) == 130, toy.output()
    ended_well(toy, first, wanted)
    assert len(toy.counted("from", "coreset")) == 2


def test_a_lost_head_node_is_one_message_and_the_next_run_completes(
    ray_nodes: Cluster, toy: Toy, wanted: dict[str, object]
) -> None:
    running = start(toy, pace=0.2)
    both_loop(toy)
    ray_nodes.kill_all()
    try:
        assert running.wait(90) == 1, toy.output()
    finally:
        ray_nodes.restart()
        os.environ["RAY_ADDRESS"] = ray_nodes.address
    assert toy.output().count("is gone; start the cluster again") == 1, toy.output()
    assert "to resume: bpcbench run" in toy.output()
    ended_well(toy, start(toy), wanted)
    assert "The program will terminate" not in toy.output()


def test_no_cluster_is_one_message(toy: Toy) -> None:
    running = start(toy, '{plugin: ray, address: "127.0.0.1:1"}')
    assert running.wait(120) == 1
    assert "no Ray cluster at address '127.0.0.1:1'" in toy.output()
    assert "to resume: bpcbench run" in toy.output()
    assert "Traceback" not in toy.output()


def test_doctor_runs_a_tiny_job(toy: Toy) -> None:
    command = [sys.executable, "-m", "bpcbench", "doctor", "--out", str(toy.out), "--data", str(toy.folder)]
    for gpus in ("0", "1"):
        done = subprocess.run(
            [*command, "--engine", "ray", "--gpus", gpus], capture_output=True, text=True, env=toy.environment()
        )
        assert "engine ray" in done.stdout
        # Ray has given it one, of make-believe; a stage that asks for none sees none.
        said = "ok: the node sees" if gpus == "0" else "PROBLEM: torch sees no GPU"
        assert said in done.stdout, done.stdout + done.stderr
        assert done.returncode == int(gpus)
        assert ("CUDA_VISIBLE_DEVICES is '" in done.stdout) == (gpus == "1")
