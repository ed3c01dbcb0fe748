"""Devices, threads and memory of this process, on any platform that Python runs on."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def resolve_device(wanted: str) -> str:
    """Return the device for `auto`: CUDA if torch is loaded and sees a GPU, else the CPU.

    Apple's `mps` is used only where a suite names it: no step of a method has been tried on it.
    """
    if wanted != "auto":
        return wanted
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_available() else "cpu"


def gpu_count() -> int:
    """Return how many GPUs this process may use, without importing a framework."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([item for item in visible.split(",") if item.strip() not in ("", "-1")])
    folder = Path("/proc/driver/nvidia/gpus")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def limit_threads(threads: int) -> None:
    """Set the number of CPU threads of everything loaded in this process."""
    import threadpoolctl

    # Kept for the life of the process: the limits end when this object is collected.
    threadpoolctl.threadpool_limits(threads)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)


def usable_cpus() -> int:
    """Return how many CPUs this process may use; all CPUs where the system does not tell."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def peak_memory() -> int | None:
    """Return the largest resident memory of this process so far, in bytes, or None if unknown."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts kilobytes, macOS bytes.
    return int(peak if sys.platform == "darwin" else peak * 1024)
