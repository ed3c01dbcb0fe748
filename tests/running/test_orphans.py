"""What a plugin leaves running ends with its worker, and a run leaves nothing behind however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from toy_runs import Toy, until

from bpcbench.running.processes import descendants, end_tree

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which processes descend from another")


def sleepers(toy: Toy) -> list[str]:
    return [command for command in toy.processes().values() if "sleep" in command]


def test_children_end_with_the_stage(toy: Toy) -> None:
    toy.write("[toy-parent]").run()
    assert len(toy.counted("left")) == 1
    assert toy.all_gone(5.0), toy.processes()


@pytest.mark.campaign
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_children_end_with_the_run(toy: Toy, number: signal.Signals) -> None:
    toy.write("{toy-parent: {wait: 100}}")
    run = toy.start()
    until(lambda: len(sleepers(toy)) >= 4)
    os.kill(run.pid, number)
    run.wait(60)
    if number == signal.SIGKILL:
        # Nobody is left to look for those that went into another session.
        ours = {int(pid) for line in toy.counted("left") for pid in line}
        until(lambda: len(sleepers(toy)) <= 1, 20.0)
        assert len(ours & set(toy.processes())) <= 1
    else:
        assert toy.all_gone(10.0), toy.processes()


def test_a_tree_of_processes() -> None:
    shell = subprocess.Popen(["sh", "-c", "sleep 600 & sh -c 'sleep 600; :' & wait"], start_new_session=True)
    until(lambda: len(descendants(shell.pid)) == 3)
    below = descendants(shell.pid)
    end_tree(shell.pid)
    assert shell.wait(10) == -signal.SIGKILL
    until(lambda: not any(_alive(pid) for pid in below), 10.0)
    assert descendants(shell.pid) == ()


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:  # noqa: PTH123
            return stream.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def test_ending_what_is_gone_does_no_harm() -> None:
    done = subprocess.Popen(["true"])
    done.wait()
    before = time.monotonic()
    end_tree(done.pid)
    assert time.monotonic() - before < 5
