"""What `doctor --engine` shows: one tiny job, and what it saw."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import cast

from bpcbench.api import Engine
from bpcbench.errors import UserError, unknown
from bpcbench.registry.discovery import registry
from bpcbench.session import Session
from bpcbench.text import to_stderr


def examine_engine(chosen: str, out: Path, data: Path, arguments: argparse.Namespace) -> bool:
    """Print what a job on the engine sees, and what is wrong; say whether nothing is."""
    from bpcbench.running.examination import examine
    from bpcbench.store.store import Store

    engine = _engine(chosen)
    print(f"engine {engine.name}", flush=True)
    store = Store.open(out)
    found = examine(engine, store.root, data, gpus=arguments.gpus, seconds=arguments.wait, report=to_stderr)
    if found.sight is not None:
        sight = found.sight
        lines = {
            "node": f"{sight.host}, {sight.cpus} usable CPUs",
            "Python": sight.python,
            "GPUs": ", ".join(sight.gpus) or "none visible",
            "store": f"seen, in both directions, {found.seconds:.1f} s after the job was submitted",
            "data": f"{data}" if sight.data else f"{data} is not there",
            "versions": f"bpcbench {sight.versions.get('bpcbench')}, {len(sight.plugins)} plugins",
        }
        for name, text in lines.items():
            print(f"  {name:<14} {text}")
    for problem in found.problems:
        print(f"  PROBLEM: {problem}")
    if not found.problems:
        print("  ok: the node sees the same store, versions and plugins as this machine")
    return not found.problems


def _engine(chosen: str) -> Engine:
    """Return the engine of that name with its defaults, or that of a suite with its options."""
    if chosen in registry().names("engine"):
        return cast("Engine", registry().get("engine", chosen).cls())
    if Path(chosen).suffix in (".yaml", ".yml") or ":" in chosen:
        from bpcbench.running.engines import Local

        return Session(chosen).engine() or Local()
    raise UserError(unknown("engine", chosen, registry().names("engine")) + ", or the file of a suite")
