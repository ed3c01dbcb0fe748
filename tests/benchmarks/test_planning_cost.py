"""What planning a grid costs: CPU seconds and memory of 10,000 and of 100,000 cells, and how the two compare."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import toys

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1500)]
PLAN = """
import json, resource, sys, time
from bpcbench import Session

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

suite = json.loads(sys.argv[1])
Session({**suite, "seeds": 1}, out="store").plan()
before, began = peak(), time.process_time()
plan = Session(suite, out="store").plan()
print(json.dumps([len(plan.cells), len(plan.stages), time.process_time() - began, peak() - before]))
"""


@dataclass(frozen=True)
class Cost:
    """A plan in a process of its own, which has planned a small grid before: its size, and what it added."""

    cells: int
    stages: int
    cpu_seconds: float
    megabytes: float

    def __str__(self) -> str:
        size = f"{self.cells:,} cells, {self.stages:,} stages"
        return f"{size}: {self.cpu_seconds:.2f} CPU s, {self.megabytes:.0f} MB"


def planned(folder: Path, methods: int, seeds: int) -> Cost:
    """Plan four sizes of coresets, five networks and ten evaluations of so many methods and distillation seeds."""
    suite = {
        "name": "grid",
        "protocol": 1,
        "datasets": ["dots"],
        "ipc": [1, 2, 5, 10],
        "methods": {f"m{i}": {"plugin": "guided", "steps": i} for i in range(methods)},
        "preprocessing": "scale",
        "inferences": ["centroid"],
        "networks": {f"n{i}": {"plugin": "line", "width": i} for i in range(5)},
        "evaluators": ["right"],
        "seeds": {"distil": seeds, "evaluate": 10},
    }
    path = os.pathsep.join([str(Path(toys.__file__).parent), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "BPCBENCH_PLUGINS": "toys"}
    command = [sys.executable, "-c", PLAN, json.dumps(suite)]
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return Cost(*json.loads(done.stdout))


def test_a_hundred_thousand_cells_cost_about_ten_times_ten_thousand(tmp_path: Path) -> None:
    """Ten times would be linear, a hundred quadratic. Seconds are printed; only their ratio is bounded."""
    few = planned(tmp_path, methods=5, seeds=10)
    print(f"\n{few}")
    for grown, many in (
        ("ten times the methods", planned(tmp_path, methods=50, seeds=10)),
        ("ten times the seeds", planned(tmp_path, methods=5, seeds=100)),
    ):
        ratio = many.cpu_seconds / few.cpu_seconds
        print(f"{grown}: {many}: {ratio:.1f} times the CPU seconds; load {os.getloadavg()[0]:.1f}")
        assert (few.cells, many.cells) == (10_000, 100_000)
        assert ratio < 30
        assert many.megabytes < 1500
    assert list(tmp_path.iterdir()) == []
