"""Time and extra memory of a whole step of VBPC, efficient against naive (`naive: true`).

    pytest tests/benchmarks/test_step_cost.py -s -m benchmark

28x28 images, batch 256, ConvNets of width h/64, one thread, float32, no augmentation. Every case runs in a process of
its own: CPU seconds of the best step, and the peak of the resident set above that just before the first step. So
activations of the network count, which both have in common. For the loss alone see test_posterior_cost.py; numbers of
both are in docs/speed.md. The naive cases beyond h = 2048 take minutes: they run with BPCBENCH_SLOW=1.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from step_worker import PROCESS, Case, Worker

WIDTHS = (512, 1024, 2048, 4096, 8192)
ROWS = (10, 100, 1000)
SLOW = bool(os.environ.get("BPCBENCH_SLOW"))
LONGEST = 2048
"""The widest naive case that runs without being asked for."""


def measure(variant: str, features: int, rows: int) -> tuple[float, float]:
    """Return CPU seconds and MB of a step."""
    with Worker(Case((1, 28, 28), features // 64, rows), variant) as worker:
        first = worker.take(1)
        times = [first["seconds"]]
        while sum(times) < 4 and len(times) < 10:
            times.append(worker.take(1)["seconds"])
    return min(times), first["megabytes"]


@pytest.mark.benchmark
@pytest.mark.timeout(14400)
@pytest.mark.skipif(not PROCESS.exists(), reason="needs Linux to measure a peak of memory")
def test_efficient_against_naive_step() -> None:
    print("\n| h | n^ | CPU s | naive | ratio | extra MB | naive | ratio |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for features in WIDTHS:
        for rows in ROWS:
            seconds, memory = measure("eager", features, rows)
            cells = [f"{seconds:.3g}", "-", "-", f"{memory:.0f}", "-", "-"]
            if SLOW or features <= LONGEST:
                slow, large = measure("naive", features, rows)
                cells[1:3] = [f"{slow:.3g}", f"{slow / seconds:.1f}"]
                cells[4:6] = [f"{large:.0f}", f"{large / memory:.1f}"]
            print(f"| {features} | {rows} | " + " | ".join(cells) + " |", flush=True)
