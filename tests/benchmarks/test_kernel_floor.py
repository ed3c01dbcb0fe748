"""VBPC's step against the sum of the kernels that it is made of: what is left to gain outside of them.

    pytest tests/benchmarks/test_kernel_floor.py -n 0 -s -m benchmark

CPU seconds per step, one thread. The floor is what the convolutions, normalisations, activations and poolings of an
eager step take, each timed by itself within the step, forward and backward. A compiled step fuses all but the
convolutions, so it may take less than their sum; below the convolutions alone it can hardly come. All processes take
turns, and a ratio is the median over rounds. BPCBENCH_ROUNDS sets the number of rounds, BPCBENCH_SLOW=1 includes the
largest step. Numbers are in docs/speed.md.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from step_worker import Case, Worker

CASES = [Case((1, 28, 28), 32, 10), Case((1, 28, 28), 128, 10), Case((3, 32, 32), 128, 100)]
ROUNDS = int(os.environ.get("BPCBENCH_ROUNDS", "5"))
SLOW = bool(os.environ.get("BPCBENCH_SLOW"))
LARGEST = 1.0
"""A compiled step that takes more than its bare kernels has lost what compiling gains."""


@pytest.mark.benchmark
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("case", CASES if SLOW else CASES[:2], ids=str)
def test_a_step_against_its_kernels(case: Case) -> None:
    with contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(case, name)) for name in ("kernels", "eager", "compile")}
        seconds = {name: worker.take(2)["seconds"] for name, worker in workers.items()}
        count = max(1, round(1.0 / seconds["eager"]))
        rounds = [{name: worker.take(count) for name, worker in workers.items()} for _ in range(ROUNDS)]
    print(f"\n{case}; {ROUNDS} rounds of {count} steps, load {os.getloadavg()[0]:.1f}")
    print("| | CPU ms per step | of all kernels | of convolutions |\n|---|---:|---:|---:|")
    shares = {}
    for name in ("eager", "compile"):
        found = []
        for taken in rounds:
            kernels = taken["kernels"]["kernels"]
            found.append(
                (taken[name]["seconds"] / sum(kernels.values()), taken[name]["seconds"] / kernels["convolution"])
            )
        both = [statistics.median(ratios) for ratios in zip(*found, strict=True)]
        shares[name] = both[0]
        median = 1e3 * statistics.median(taken[name]["seconds"] for taken in rounds)
        print(f"| {name} | {median:.4g} | {both[0]:.2f} | {both[1]:.2f} |", flush=True)
    assert shares["compile"] < LARGEST
