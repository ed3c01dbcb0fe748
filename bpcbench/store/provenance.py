"""What surrounds a result: versions and machine."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RECORDED = ("bpcbench", "numpy", "scikit-learn", "scipy", "torch", "torchvision", "jax", "safetensors", "mlflow")


@functools.cache
def versions() -> Mapping[str, str]:
    """Return the versions of Python and of the libraries that can change results."""
    found = {"python": platform.python_version()}
    for name in RECORDED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def timestamp(seconds: float) -> str:
    """Return a time since 1970 as UTC text, such as 2025-01-31T12:00:00.123Z."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


@functools.cache
def machine() -> Mapping[str, Any]:
    """Return the machine in a few words."""
    return {"system": platform.platform(), "processor": processor(), "cpus": os.cpu_count()}


def processor() -> str:
    """Return the CPU's model name where it can be read."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@functools.cache
def git_hash() -> str | None:
    """Return the commit of the checkout that bpcbench runs from, with `+` if it has changes; None in a wheel."""
    root = Path(__file__).parent.parent.parent
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()
