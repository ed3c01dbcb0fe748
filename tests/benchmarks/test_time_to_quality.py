"""CPU seconds until a coreset is as good as today's preset makes it: settings for short budgets beside that preset.

    BPCBENCH_DATA=... pytest tests/benchmarks/test_time_to_quality.py -n 0 -s -m benchmark

Runs `cpu/time_to_quality` on the validation split, looks at the snapshots of its coresets, and prints for every data
set and number of images per class: the NLL and the CPU seconds at the end of `today`, and the CPU seconds after which
`short` is as good. Snapshots lie on a 1-2-5 grid, so these seconds are those of the next point of the grid, at most 2.5
times too many and never too few. BPCBENCH_QUALITY holds further overrides of the suite, separated by spaces, and
BPCBENCH_QUALITY_OUT a store to keep.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import bpcbench
from bpcbench.reporting.anytime import Point, points

METRIC = "nll"
STEPS = (100, 200, 500, 1000, 2000)
"""Snapshots that are looked at, beside the end."""


@pytest.mark.benchmark
@pytest.mark.timeout(6 * 3600)
def test_time_to_quality(tmp_path: Path) -> None:
    if not os.environ.get("BPCBENCH_DATA"):
        pytest.skip("needs MNIST, Fashion-MNIST and CIFAR-10 in BPCBENCH_DATA")
    out = Path(os.environ.get("BPCBENCH_QUALITY_OUT", tmp_path))
    overrides = os.environ.get("BPCBENCH_QUALITY", "").split()
    session = bpcbench.Session("cpu/time_to_quality", overrides, out=out, jobs=1, track=False)
    view, _ = session.anytime(STEPS)
    assert view is not None
    curves: dict[tuple[str, int], dict[str, list[Point]]] = {}
    for point in points(view.manifest, view.store, [METRIC]):
        curves.setdefault((point.dataset, point.ipc), {}).setdefault(point.method, []).append(point)
    print("\n| data set | ipc | NLL of `today` | CPU s | CPU s of `short` to the same | ratio | its end: NLL | CPU s |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for (dataset, ipc), methods in curves.items():
        end, last = methods["today"][-1], methods["short"][-1]
        target = end.metrics[METRIC].mean
        reached = next((p for p in methods["short"] if p.metrics[METRIC].mean <= target), None)
        seconds = "not reached" if reached is None else f"{reached.cpu_seconds:.0f}"
        ratio = "" if reached is None else f"{reached.cpu_seconds / end.cpu_seconds:.2f}"
        print(
            f"| {dataset} | {ipc} | {target:.3f} | {end.cpu_seconds:.0f} | {seconds} | {ratio} | "
            f"{last.metrics[METRIC].mean:.3f} | {last.cpu_seconds:.0f} |"
        )
    assert all({"today", "short"} == set(methods) for methods in curves.values())
