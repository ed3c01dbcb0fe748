"""What a cluster costs beside processes of this machine: 200 small stages by each engine. Numbers are printed.

Run with `pytest tests/benchmarks/test_cluster_overhead.py -n 0 -s -m benchmark`; engines that cannot be started here
are left out. `BPCBENCH_STAGES` sets another number of stages.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bpcbench.api import Engine
from bpcbench.running.engines import Local
from bpcbench.testing.engines import PROBES, Bench

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]
STAGES = int(os.environ.get("BPCBENCH_STAGES", "200"))
AT_ONCE = 2


def seconds(bench: Bench, stages: int) -> float:
    """Return how long so many stages take; each coreset brings a prediction, and a score on this machine."""
    bench.write({f"p{number}": {"number": number, "steps": 1} for number in range(stages // 2)})
    begin = time.monotonic()
    result = bench.run()
    assert result.exit_code == 0
    return time.monotonic() - begin


def bare(count: int) -> float:
    """Return how long as many workers take that only start Python and import what a worker needs."""
    command = [sys.executable, "-c", "import bpcbench.running.bodies"]
    begin = time.monotonic()
    for _ in range(0, count, AT_ONCE):
        for process in [subprocess.Popen(command) for _ in range(AT_ONCE)]:
            process.wait()
    return time.monotonic() - begin


@pytest.mark.parametrize("name", ["local", "slurm", "ray"])
def test_small_stages(
    name: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bpcbench.registry.discovery import LOCAL_VARIABLE, registry

    make: dict[str, Callable[[], Engine]] = {"local": Local, "slurm": _slurm, "ray": _ray}
    if name != "local":
        request.getfixturevalue({"slurm": "slurm_daemons", "ray": "ray_nodes"}[name])
    monkeypatch.setenv(LOCAL_VARIABLE, PROBES)
    registry.cache_clear()
    engine: Any = make[name]()
    took = seconds(Bench(tmp_path / name, type(engine)(jobs=AT_ONCE), 30.0), STAGES)
    registry.cache_clear()
    each = bare(20) / 20
    print(f"\n{name}: {STAGES} small stages, {AT_ONCE} at a time: {took:.1f} s, {took / STAGES:.3f} s each")
    print(f"  ratio to a bare Python with a worker's imports ({each:.3f} s): {took / STAGES / each:.2f}")
    print(f"  load {os.getloadavg()[0]:.1f}")


def _slurm() -> Engine:
    from bpcbench_slurm.engine import Slurm

    return Slurm()


def _ray() -> Engine:
    from bpcbench_ray.engine import RayEngine

    return RayEngine()
