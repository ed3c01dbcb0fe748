"""What the machinery costs. Nothing here fails because of time; the numbers are printed.

Run with `pytest tests/benchmarks -s -m benchmark`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
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
    slope = (many[0] - few[0]) / (20 - 3)
    print(f"\nfirst run, 3 processes and a score, with the start of the server: {few[0]:.2f} s")
    print(f"each further process of a stage: {slope:.3f} s (aim < 0.5), half a score included")
    print(f"rerun of the finished suite: {executed} stages executed, {again:.2f} s, load {os.getloadavg()[0]:.1f}")


STEPS, CHUNK, GROUP = 1600, 20, 8


def train(steps: Iterable[int], log: Callable[..., None]) -> Iterator[float]:
    """Train a small network on the CPU, about a millisecond a step; yield the CPU seconds of every chunk of steps."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    adam = torch.optim.Adam(model.parameters())
    x, y = torch.randn(256, 256), torch.randint(0, 10, (256,))
    begin = time.process_time()
    for step in steps:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        adam.zero_grad()
        loss.backward()
        adam.step()
        log(loss=loss)
        if step % CHUNK == CHUNK - 1:
            yield time.process_time() - begin
            begin = time.process_time()


def test_overhead_of_steps(tmp_path: Path) -> None:
    """A bare loop against the same loop in `ctx.steps` with `log` at every step, chunk by chunk in one process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    ctx = context(tmp_path)
    try:
        pairs = list(zip(train(range(STEPS), lambda loss: None), train(ctx.steps(STEPS), ctx.log), strict=True))
    finally:
        torch.set_num_threads(before)
    groups = [pairs[i : i + GROUP] for i in range(GROUP, len(pairs), GROUP)]
    ratios = sorted(sum(inside for _, inside in group) / sum(bare for bare, _ in group) for group in groups)
    step = 1e6 * statistics.median(bare for bare, _ in pairs) / CHUNK
    print(f"\nbare step {step:.0f} us; ratio of ctx.steps and log: median {statistics.median(ratios):.4f} (aim < 1.02)")
    print(f"ratios from {ratios[0]:.3f} to {ratios[-1]:.3f}; load {os.getloadavg()[0]:.1f}")
