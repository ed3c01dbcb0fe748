"""What compiling VBPC's step costs: 100 steps from a cold start, with an empty cache, and from a warm one.

    pytest tests/benchmarks/test_compile_cost.py -n 0 -s -m benchmark

CPU seconds of the process that takes the steps and of the compilers that it starts, one thread. Torch keeps what it
has compiled in TORCHINDUCTOR_CACHE_DIR; the second process finds there what the first has left, as a later stage of a
suite does. The last columns are where `compile: auto` draws its line: after how many steps, and after how many
operations of a run by the method's formula, compiling has paid. Numbers are in docs/speed.md. BPCBENCH_SLOW=1 includes
the largest step.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from step_worker import PROCESS, Case, Worker

from bpcbench.records import Facts

CASES = [Case((1, 8, 8), 16, 10, batch=128), Case((1, 28, 28), 32, 10), Case((3, 32, 32), 64, 10)]
SLOW = bool(os.environ.get("BPCBENCH_SLOW"))
STEPS = 100
STEADY = 20
"""Steps whose time tells what is saved per step once all is compiled."""


@dataclass(frozen=True)
class Cost:
    """CPU seconds of the first 100 steps, and of a later one."""

    first: float
    later: float


def tree_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and of the children that it has waited for."""
    fields = (Path("/proc") / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def measured(case: Case, variant: str, cache: Path) -> Cost:
    with Worker(case, variant, TORCHINDUCTOR_CACHE_DIR=str(cache)) as worker:
        worker.take(0)
        begin = tree_seconds(worker.process.pid)
        worker.take(STEPS)
        first = tree_seconds(worker.process.pid) - begin
        later = min(worker.take(STEADY)["seconds"] for _ in range(3))
    return Cost(first, later)


@pytest.mark.benchmark
@pytest.mark.timeout(7200)
@pytest.mark.skipif(not PROCESS.exists(), reason="needs Linux to count what compilers take")
def test_cold_and_warm_start(tmp_path: Path) -> None:
    print(f"\n{STEPS} steps, load {os.getloadavg()[0]:.1f}")
    print("| step | eager s | cold | warm | cold to eager | warm to eager | step to eager | pays after | operations |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for number, case in enumerate(CASES if SLOW else CASES[:2]):
        eager, cold, warm = (
            measured(case, variant, tmp_path / str(number)) for variant in ("eager", "compile", "compile")
        )
        saved = eager.later - warm.later
        steps = (cold.first - STEPS * cold.later) / saved if saved > 0 else float("inf")
        facts = Facts(shape=case.shape, classes=10, sizes={"train": 4096})
        method = case.method()
        operations = (method.operations(facts, case.rows // 10) or 0.0) / method.steps * steps
        cells = [f"{eager.first:.3g}", f"{cold.first:.3g}", f"{warm.first:.3g}"]
        cells += [f"{cost.first / eager.first:.2f}" for cost in (cold, warm)]
        cells += [f"{warm.later / eager.later:.2f}", f"{steps:,.0f} steps", f"{operations:.1e}"]
        print(f"| {case} | " + " | ".join(cells) + " |", flush=True)
        # Compiled once: what the first process left is used by the second.
        assert warm.first < 0.7 * cold.first
