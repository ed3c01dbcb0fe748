"""Processes: what fails fails alone, what is stopped goes on later, and nothing is left alive."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from detached_engine import Detached
from toy_runs import HERE, Toy, until

from bpcbench.running.engines import Inline, Local
from bpcbench.running.run import choose_engine

BAD = ("raise", "exit", "sysexit", "segfault", "kill", "memory", "nan", "sleep", "deaf")
BAD_METHODS = "{good: {plugin: toy-real}, " + ", ".join(f"{how}: {{plugin: toy-bad, how: {how}}}" for how in BAD) + "}"
REASONS = {
    "raise": ("LookupError: nothing of the kind", "raise LookupError"),
    "exit": ("the worker ended with code 3", "ended with code 3"),
    "sysexit": ("SystemExit: bye", "sys.exit("),
    "segfault": ("the worker was killed by SIGSEGV", "in _segfault"),
    "kill": (r"the worker was killed by SIGKILL", "killed by SIGKILL"),
    "memory": ("out of memory", "raise MemoryError"),
    "nan": ("loss is nan at step 7", "NotFinite"),
    "sleep": ("it took longer than its timeout of 4 s", "longer than its timeout"),
    "deaf": ("it took longer than its timeout of 4 s", "longer than its timeout"),
}
RUN = """
import json, sys, bpcbench
result = bpcbench.run(sys.argv[1], out=sys.argv[2], jobs=3, track=False)
for failure in result.failures:
    print(json.dumps([failure.stage.label, failure.message, str(failure.log)]))
print(json.dumps(result.counts))
sys.exit(result.exit_code)
"""


def python(toy: Toy, script: str, *arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """Run a script that uses the Python interface."""
    path = toy.folder / "script.py"
    path.write_text(script)
    command = [sys.executable, str(path), str(toy.suite), str(toy.out), *arguments]
    environment = toy.environment(**settings)
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=toy.folder)


def test_every_way_to_fail(toy: Toy) -> None:
    """Each fails alone, is named with its reason and its log; what depends on it is skipped; the rest is done."""
    done = python(toy.write(BAD_METHODS, "timeout: 4"), RUN)
    assert done.returncode == 1, done.stdout + done.stderr
    *lines, counts = done.stdout.splitlines()
    failures = {(found := json.loads(line))[0].split()[3]: found[1:] for line in lines}
    assert set(failures) == set(BAD)
    for how, (message, logged) in REASONS.items():
        assert re.search(message, failures[how][0]), how
        assert logged in Path(failures[how][1]).read_text(), how
    assert json.loads(counts) == {"done": 4, "failed": len(BAD), "skipped": 2 * len(BAD)}
    executions = Counter(line[0] for line in toy.counted("bad"))
    assert executions == {how: 2 if how == "kill" else 1 for how in BAD}, "only a lost worker is replaced, once"
    for how in BAD:
        assert f"skipped: predict toy-data ipc 2 {how} / toy-nearest / toy-net seed 0.0: it needs " in done.stderr
    assert len(list(toy.members("score"))) == 1
    assert toy.all_gone()


def test_failure_in_this_process_has_a_log_too(toy: Toy) -> None:
    script = RUN.replace("jobs=3", "inline=True")
    done = python(toy.write("{bad: {plugin: toy-bad}, good: {plugin: toy-real}}"), script)
    assert done.returncode == 1
    _, message, log = json.loads(done.stdout.splitlines()[-2])
    assert message == "LookupError: nothing of the kind"
    assert "raise LookupError" in Path(log).read_text()
    assert len(list(toy.members("score"))) == 1


def wait_for_checkpoint(toy: Toy) -> None:
    until(lambda: toy.scratch("*/*/checkpoint-*"))


@pytest.mark.parametrize(
    ("number", "jobs", "group"),
    [(signal.SIGINT, 2, False), (signal.SIGHUP, 2, False), (signal.SIGTERM, 2, True), (signal.SIGINT, 0, False)],
)
def test_signals_stop_cleanly(toy: Toy, number: signal.Signals, jobs: int, group: bool) -> None:
    """Checkpoints are written though none is due, nothing lives on, and the next run goes on from there.

    `group`: a batch system sends the signal to every process of the run, the fork server among them. No jobs:
    everything is in one process.
    """
    toy.write("{a: {plugin: toy-loop, steps: 100}, b: {plugin: toy-loop, steps: 101}}")
    running = toy.start(jobs=jobs, group=True, pace=0.05, checkpoint=1000)
    until(lambda: len(toy.counted("from", "coreset")) == (jobs or 1))
    until(lambda: all(path.stat().st_size for path in toy.scratch("coreset*/*/events.jsonl")))
    assert not toy.scratch("*/*/checkpoint-*")
    (os.killpg if group else os.kill)(running.pid, number)
    assert running.wait(30) == 128 + number, toy.output()
    assert toy.all_gone()
    assert len(toy.scratch("coreset*/*/checkpoint-*")) == (jobs or 1)
    assert "Traceback" not in toy.output()
    toy.run(jobs=jobs)
    assert len([step for _, step in toy.counted("from", "coreset") if int(step) > 0]) == (jobs or 1)
    assert not list((toy.out / "scratch").rglob("*-*/*")), "scratch is removed once results are committed"


def test_a_second_signal_ends_at_once(toy: Toy) -> None:
    toy.write("{deaf: {plugin: toy-bad, how: deaf}}")
    running = toy.start()
    until(lambda: toy.counted("bad", "deaf"))
    running.send_signal(signal.SIGINT)
    until(lambda: "stopping" in toy.output())
    assert running.poll() is None
    running.send_signal(signal.SIGINT)
    assert running.wait(10) == 130
    assert toy.all_gone()


def test_a_stage_in_this_process_stops_outside_of_a_loop_too(toy: Toy) -> None:
    toy.write("{bad: {plugin: toy-bad, how: sleep}}")
    running = toy.start(jobs=0)
    until(lambda: toy.counted("bad", "sleep"))
    running.send_signal(signal.SIGINT)
    assert running.wait(10) == 130, toy.output()
    assert "Traceback" not in toy.output()


def test_jobs_are_set_on_any_engine() -> None:
    assert choose_engine(None, jobs=3) == Local(jobs=3)
    assert choose_engine(Detached(jobs=1), jobs=3) == Detached(jobs=3)
    assert choose_engine(Detached(jobs=1)) == Detached(jobs=1)
    assert choose_engine(Detached(), inline=True) == Inline()


@pytest.mark.parametrize("how", ["sleep", "deaf", "hold"])
def test_no_orphans(toy: Toy, how: str) -> None:
    """Whatever a worker is busy with: it does not outlive its parent."""
    toy.write(f"{{bad: {{plugin: toy-bad, how: {how}}}}}")
    running = toy.start()
    until(lambda: toy.counted("bad", how))
    assert len(toy.processes()) >= 3
    running.kill()
    running.wait()
    assert toy.all_gone(), toy.processes()


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGKILL, "the worker was killed by SIGKILL"), (signal.SIGTERM, "the worker was told to stop by a signal")],
)
def test_a_lost_worker_is_replaced(toy: Toy, number: signal.Signals, reason: str) -> None:
    """Killed, or stopped by someone else: the same run resumes from the checkpoint; nothing else is disturbed."""
    toy.write("{a: {plugin: toy-loop, steps: 60}, b: {plugin: toy-real}}")
    running = toy.start(pace=0.03)
    wait_for_checkpoint(toy)
    (worker,) = toy.counted("worker", 60)[0]
    os.kill(int(worker), number)
    assert running.wait(60) == 0, toy.output()
    assert re.search(f"worker lost: coreset .*: {reason}.*; attempt 2 of 2", toy.output())
    (_, first), (_, second) = toy.counted("from", "coreset")
    assert (int(first), int(second) > 0) == (0, True)
    assert len(list(toy.members("score"))) == 2
    alone = Toy(toy.folder / "alone").write("{a: {plugin: toy-loop, steps: 60}, b: {plugin: toy-real}}")
    alone.run()
    assert toy.results() == alone.results()


def test_scores_share_a_process(toy: Toy) -> None:
    """All in one process, each with the same draws; one that crashes fails alone and costs the process only."""
    methods = "{a: {plugin: toy-real}, b: {plugin: toy-loop, steps: 2}, c: {plugin: toy-loop, steps: 9}}"
    toy.write(methods, "seeds: {distil: 2}", evaluators="classification, toy-shifted").run(jobs=1)
    found = [meta["metrics"] for _, meta, _ in toy.members("score") if "pid" in meta["metrics"]]
    assert len(found) == 6
    assert len({metrics["pid"] for metrics in found}) == 1
    assert len({metrics["draw"] for metrics in found}) == 1
    values = sorted(metrics["shifted"] for metrics in found)
    output = toy.run(f"evaluators.toy-shifted.crash_above={(values[-1] + values[-2]) / 2}", jobs=1, expect=1)
    assert "the worker ended with code 9" in output
    assert "ended with code 9" in (toy.out / "logs" / "scores.log").read_text()
    again = toy.counted("score")[6:]
    assert len(again) == 6
    after = [pid for pid, value in again]
    assert len(set(after)) == (1 if float(again[-1][1]) == values[-1] else 2)
    assert len([meta for _, meta, _ in toy.members("score") if "pid" in meta["metrics"]]) == 6 + 5


def test_script_without_main_guard(toy: Toy) -> None:
    """Workers do not import the caller's script again."""
    script = "from pathlib import Path\nPath('imported.txt').open('a').write('x')\n" + RUN
    done = python(toy.write("[toy-real]"), script)
    assert done.returncode == 0, done.stderr
    assert (toy.folder / "imported.txt").read_text() == "x"


def test_rerun_executes_nothing(toy: Toy) -> None:
    toy.write("[toy-real]").run()
    before = toy.count.read_text()
    assert "no stages were run" in toy.run()
    assert toy.count.read_text() == before


def test_workers_start_in_parallel_threads() -> None:
    """`__main__` and the environment are as before when two threads start workers at the same time."""
    script = """
import os, sys, threading
from bpcbench.running.worker import Worker
before, main = dict(os.environ), sys.modules["__main__"]
made = []
threads = [threading.Thread(target=lambda: made.extend(Worker(()) for _ in range(4))) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert sys.modules["__main__"] is main and dict(os.environ) == before and len(made) == 16
[worker.close() for worker in made]
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, env=environment)
    assert time.monotonic() - begin < 60
