"""Devices, threads and memory of this process, on any platform that Python runs on."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

_TRIAL_SECONDS = 120.0


def resolve_device(wanted: str) -> str:
    """Return the device for `auto`: CUDA if torch is loaded and sees a GPU, else the CPU.

    Apple's `mps` is used only where a suite names it: no step of a method has been tried on it.
    """
    if wanted != "auto":
        return wanted
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_available() else "cpu"


def missing_device(wanted: str, *, thorough: bool = True) -> str | None:
    """Return why stages cannot use a device on this machine, or None if they can or nothing is known against it.

    This process imports no framework. What the files of torch do not tell is tried in another process, if `thorough`.
    """
    if wanted in ("auto", "cpu"):
        return None
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return "torch is not installed"
    version = cpu_build(Path(found.origin).with_name("version.py"))
    if version and wanted.startswith("cuda"):
        return f"the installed torch {version} was built without CUDA"
    return _trial(wanted) if thorough else None


def cpu_build(file: Path) -> str:
    """Return the version of a torch that was built for no GPU, or an empty text if that is not sure."""
    try:
        text = file.read_text()
    except OSError:
        return ""
    values = dict(re.findall(r"^(__version__|cuda|hip)\b[^=\n]*= *(.+?) *$", text, re.M))
    built = values.get("cuda") != "None" or values.get("hip", "None") != "None"
    return "" if built else values.get("__version__", "").strip("'\"")


@functools.cache
def _trial(device: str) -> str | None:
    """Return what torch says against a tensor on the device, or None."""
    code = (
        "import sys, torch\ntry:\n    torch.ones(1, device=sys.argv[1]).item()\n"
        "except Exception as error:\n    print(str(error).splitlines()[0].split('. ')[0])"
    )
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [sys.executable, "-c", code, device], capture_output=True, text=True, timeout=_TRIAL_SECONDS, check=True
        )
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        because = f" (CUDA_VISIBLE_DEVICES is {hidden!r})" if device.startswith("cuda") and hidden is not None else ""
        return f"{done.stdout.strip()}{because}" if done.stdout.strip() else None
    return None


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
