"""VBPC and FRePo killed by SIGKILL while they distil, and an expert while it trains: the same bits in the end.

Pool networks, their optimisers, the optimiser of images and labels, the order of the real batches and three generators
are restored; the killed run differs from the other one only in that.
"""

from __future__ import annotations

import contextlib
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
EXPERTS = """
name: killed
protocol: 1
datasets: [digits]
ipc: [1]
methods:
  bpc-fkl:
    trajectories: {epochs: 30, lr: 0.1, batch: 64, momentum: 0.5, network: {width: 8}}
    experts: 2
    max_start: 5
    steps: 3
    inner_steps: 2
    draws: 2
inferences: {sghmc: {burn: 2, samples: 4, thin: 1}}
networks: {conv-in: {width: 8, growth: 1, order: conv-first, init: torch}}
seeds: {distil: 1, evaluate: 1}
threads: 1
"""


def _command(folder: Path, out: str) -> list[str]:
    words = ["run", str(folder / "killed.yaml"), "--out", str(folder / out), "--no-mlflow", "--quiet", "--jobs", "1"]
    return [sys.executable, "-m", "bpcbench", *words]


def _environment(seconds: str) -> dict[str, str]:
    return {**os.environ, "BPCBENCH_CHECKPOINT_SECONDS": seconds}


def _step(folder: Path, kind: str) -> int:
    """Return the last step of a checkpoint in the scratch of a run, or 0, also if a stage ends while this looks."""
    steps = [0]
    with contextlib.suppress(FileNotFoundError):
        for path in folder.glob(f"scratch/stages/{kind}-*/*/events.jsonl"):
            if list(path.parent.glob("checkpoint-*")):
                events = [json.loads(line) for line in path.read_text().splitlines()]
                steps += [event["done"] for event in events if "done" in event]
    return max(steps)


def _kill_inside(folder: Path, out: str, at: int, kind: str = "coreset") -> int:
    running = subprocess.Popen(_command(folder, out), env=_environment("0.05"), start_new_session=True)
    deadline = time.monotonic() + 240
    while _step(folder / out, kind) < at:
        assert running.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    return _step(folder / out, kind)


def _arrays(store: Path) -> dict[str, dict[str, np.ndarray]]:
    files = sorted(store.glob("stages/*/*/*/arrays.safetensors"))
    return {str(path.relative_to(store)): load_file(path) for path in files}


@pytest.mark.timeout(600)
@pytest.mark.campaign
@pytest.mark.parametrize("method", ["vbpc", "frepo"])
def test_killed_in_the_middle_it_ends_with_the_same_bits(method: str, tmp_path: Path) -> None:
    (tmp_path / "killed.yaml").write_text(SUITE.replace("METHOD", method))
    subprocess.run(_command(tmp_path, "whole"), env=_environment("60"), check=True, stdout=subprocess.DEVNULL)
    killed_at = [_kill_inside(tmp_path, "killed", at) for at in (40, 150)]
    ended = subprocess.run(
        _command(tmp_path, "killed"), env=_environment("60"), check=True, capture_output=True, text=True
    )
    print(f"{method} killed at about step {killed_at} of 300")
    assert "resumed at step" in ended.stderr
    assert any("step-200" in name for name in _same(tmp_path))


@pytest.mark.timeout(600)
@pytest.mark.campaign
def test_an_expert_killed_in_training_goes_on_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    (tmp_path / "killed.yaml").write_text(EXPERTS)
    subprocess.run(_command(tmp_path, "whole"), env=_environment("60"), check=True, stdout=subprocess.DEVNULL)
    killed_at = [_kill_inside(tmp_path, "killed", at, "prerequisite") for at in (100, 400)]
    kept = len(list((tmp_path / "killed").glob("stages/prerequisite/*/*/arrays.safetensors")))
    ended = subprocess.run(
        _command(tmp_path, "killed"), env=_environment("60"), check=True, capture_output=True, text=True
    )
    print(f"expert killed at about updates {killed_at} of 690, {kept} prerequisites done before the end")
    assert "resumed at step" in ended.stderr
    assert sum("prerequisite" in name for name in _same(tmp_path)) == 3, "the preprocessing and two experts"


def _same(folder: Path) -> list[str]:
    """Return the arrays of a run that was not killed, after a check that the killed one has the same bits."""
    wanted, found = _arrays(folder / "whole"), _arrays(folder / "killed")
    assert wanted.keys() == found.keys()
    for name, arrays in wanted.items():
        for key, array in arrays.items():
            np.testing.assert_array_equal(found[name][key], array, err_msg=f"{name} {key}")
    return list(wanted)
