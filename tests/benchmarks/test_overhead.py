"""What the machinery costs. Nothing here fails because of time; the numbers are printed.

Run with `pytest tests/benchmarks -s -m benchmark`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from toy_runs import Toy

from bpcbench.testing import context

pytestmark = pytest.mark.benchmark

STAGES = """
import sys, time, bpcbench
begin = time.monotonic()
result = bpcbench.run(sys.argv[1], ["seeds.distil=" + sys.argv[3]], out=sys.argv[2], jobs=1, track=False, quiet=True)
print(time.monotonic() - begin, sum(result.counts.values()))
"""


def run(toy: Toy, seeds: int) -> tuple[float, int]:
    """Run a suite of trivial stages and return the seconds and the stages it took."""
    command = [sys.executable, "-c", STAGES, str(toy.suite), str(toy.out), str(seeds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=toy.environment(), cwd=toy.folder)
    seconds, count = done.stdout.split()
    return float(seconds), int(count)


def test_seconds_per_stage(toy: Toy) -> None:
    """The start of the server is paid once, so the price of a stage is the slope between few and many."""
    toy.write("[toy-real]")
    few, many = run(toy, 1), run(toy, 11)
    again, executed = run(toy, 11)
    assert (few[1], many[1], executed) == (4, 30, 0)
    coresets, scores = 10, 10
    print(f"\nfirst run, 4 stages, server included: {few[0]:.2f} s")
    print(f"10 more coresets, predictions and scores: {many[0] - few[0] * 0:.2f} s with a new server")
    per = many[0] / (coresets + coresets)
    print(f"at most {per:.3f} s per process of a stage (aim < 0.5), {scores} scores included")
    print(f"rerun of the finished suite: {executed} stages executed, {again:.2f} s")


STEPS = 400


def train(steps: Callable[[int], Iterable[int]], log: Callable[..., None]) -> float:
    """Train a small network on the CPU and return the seconds it took; a step takes about a millisecond."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    adam = torch.optim.Adam(model.parameters())
    x, y = torch.randn(256, 256), torch.randint(0, 10, (256,))
    begin = time.perf_counter()
    for _ in steps(STEPS):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        adam.zero_grad()
        loss.backward()
        adam.step()
        log(loss=loss)
    return time.perf_counter() - begin


def test_overhead_of_steps(tmp_path: Path) -> None:
    """A bare loop against the same loop in `ctx.steps` with `log` at every step, alternating, in one process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    ratios, bare = [], []

    def nothing(**metrics: object) -> None:
        pass

    try:
        train(range, nothing)
        for repetition in range(12):
            ctx = context(tmp_path / str(repetition))
            plain = train(range, nothing)
            inside = train(lambda total, ctx=ctx: ctx.steps(total), ctx.log)
            ratios.append(inside / plain)
            bare.append(plain)
    finally:
        torch.set_num_threads(before)
    step = 1e6 * statistics.median(bare) / STEPS
    print(f"\nbare step {step:.0f} us; ratio of ctx.steps and log: median {statistics.median(ratios):.4f} (aim < 1.02)")
    print("ratios: " + " ".join(f"{ratio:.3f}" for ratio in sorted(ratios)), f"load {os.getloadavg()[0]:.1f}")
