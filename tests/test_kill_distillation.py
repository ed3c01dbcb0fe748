"""VBPC and FRePo killed by SIGKILL in the middle of distilling, through the command line: the same bits in the end.

Pool networks, their optimisers, the optimiser of images and labels, the order of the real batches and three generators
are restored; the killed run differs from the other one only in that.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

SUITE = """
name: killed
protocol: 1
datasets: [digits]
ipc: [1]
methods:
  METHOD: {steps: 300, batch: 64, network: {plugin: conv-bn, width: 8}, pool: 3, updates: 7, augmentation: paper}
inferences: {vi: {steps: 5}}
networks: {conv-bn: {width: 8}}
seeds: {distil: 1, evaluate: 1}
threads: 1
"""


def _command(folder: Path, out: str) -> list[str]:
    words = ["run", str(folder / "killed.yaml"), "--out", str(folder / out), "--no-mlflow", "--quiet", "--jobs", "1"]
    return [sys.executable, "-m", "bpcbench", *words]


def _environment(seconds: str) -> dict[str, str]:
    return {**os.environ, "BPCBENCH_CHECKPOINT_SECONDS": seconds}


def _step(folder: Path) -> int:
    """Return the last step of a checkpoint in the scratch of a run, or 0."""
    steps = [0]
    for path in folder.glob("scratch/stages/coreset-*/*/events.jsonl"):
        if list(path.parent.glob("checkpoint-*")):
            steps += [event["done"] for line in path.read_text().splitlines() if "done" in (event := json.loads(line))]
    return max(steps)


def _kill_inside(folder: Path, out: str, at: int) -> int:
    running = subprocess.Popen(_command(folder, out), env=_environment("0.05"), start_new_session=True)
    deadline = time.monotonic() + 240
    while _step(folder / out) < at:
        assert running.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    return _step(folder / out)


def _arrays(store: Path) -> dict[str, dict[str, np.ndarray]]:
    files = sorted(store.glob("stages/*/*/*/arrays.safetensors"))
    return {str(path.relative_to(store)): load_file(path) for path in files}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", ["vbpc", "frepo"])
def test_killed_in_the_middle_it_ends_with_the_same_bits(method: str, tmp_path: Path) -> None:
    (tmp_path / "killed.yaml").write_text(SUITE.replace("METHOD", method))
    subprocess.run(_command(tmp_path, "whole"), env=_environment("60"), check=True, stdout=subprocess.DEVNULL)
    killed_at = [_kill_inside(tmp_path, "killed", at) for at in (40, 150)]
    ended = subprocess.run(
        _command(tmp_path, "killed"), env=_environment("60"), check=True, capture_output=True, text=True
    )
    print(f"{method} killed at about step {killed_at} of 300")
    assert "went on from step" in ended.stderr
    wanted, found = _arrays(tmp_path / "whole"), _arrays(tmp_path / "killed")
    assert wanted.keys() == found.keys()
    assert any("step-200" in name for name in wanted)
    for name, arrays in wanted.items():
        for key, array in arrays.items():
            np.testing.assert_array_equal(found[name][key], array, err_msg=f"{name} {key}")
