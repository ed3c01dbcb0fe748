"""How much memory the device of stages on this machine has, asked without importing a framework."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from bpcbench.running.gpus import visible_gpus

_SECONDS = 20.0


def device_memory(wanted: str) -> tuple[float, str] | None:
    """Return the bytes of a suite's device and what they are, or None where nothing tells.

    `auto` is the smallest GPU where stages would find one, else the machine's memory.
    """
    if wanted.startswith("cuda") or (wanted == "auto" and visible_gpus()):
        sizes = _gpus()
        return (min(sizes), "the GPU") if sizes else None
    return _machine() if wanted in ("auto", "cpu") else None


def _machine() -> tuple[float, str] | None:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    limits = [float(total)] if total > 0 else []
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            limits.append(float(Path(name).read_text()))
    return (min(limits), "this machine") if limits else None


def _gpus() -> list[float]:
    """Return the bytes of every GPU that the driver's tool lists."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        words = [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        said = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
        return [float(line) * 2**20 for line in said.split()]
    return []
