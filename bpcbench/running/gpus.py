"""The GPUs of this machine that a run may hand out, counted without starting CUDA: a process that has may not fork."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bpcbench.running import nvml
from bpcbench.running.device import cpu_build

_SECONDS = 20.0
_TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")


def visible_gpus() -> tuple[str, ...]:
    """Return a value of CUDA_VISIBLE_DEVICES for each GPU that torch would use here, in torch's order.

    CUDA_VISIBLE_DEVICES is honoured as CUDA does: the list ends before the first entry that names no GPU. A torch that
    was built without CUDA uses none. Where nobody can tell how many there are, the entries are taken as they are.
    """
    found = importlib.util.find_spec("torch")
    if found is not None and found.origin is not None and cpu_build(Path(found.origin).with_name("version.py")):
        return ()
    return listed(os.environ.get("CUDA_VISIBLE_DEVICES"), _present())


def listed(visible: str | None, present: int | None) -> tuple[str, ...]:
    """Return the entries of CUDA_VISIBLE_DEVICES that name one of `present` GPUs; None for an unknown number."""
    if visible is None:
        return tuple(map(str, range(present or 0)))
    names: list[str] = []
    for entry in (item.strip() for item in visible.split(",")):
        number = int(entry) if re.fullmatch(r"-?[0-9]+", entry) else None
        if not entry or (number is not None and (number < 0 or (present is not None and number >= present))):
            break
        if entry in names:
            return ()  # CUDA refuses a GPU that is named twice
        names.append(entry)
    return tuple(names)


def _present() -> int | None:
    """Return how many GPUs there are, or None if nobody can tell."""
    for count in (nvml.count, _by_nvidia_smi, _by_driver, _by_rocm, _by_library):
        with contextlib.suppress(Exception):
            if (found := count()) is not None:
                return found
    return None


def _by_nvidia_smi() -> int | None:
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_SECONDS, check=True)
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def _by_driver() -> int | None:
    folder = Path("/proc/driver/nvidia/gpus")
    return len(list(folder.iterdir())) if folder.is_dir() else None


def _by_rocm() -> int | None:
    if not _TOPOLOGY.is_dir():
        return None
    nodes = [path.read_text() for path in _TOPOLOGY.glob("*/properties")]
    return sum(re.search(r"^simd_count [1-9]", text, re.M) is not None for text in nodes)


def _by_library() -> int | None:
    """Ask the driver's library, in another process: where it cannot be loaded, torch finds no GPU of NVIDIA either."""
    code = (
        "import ctypes\ntry:\n    driver = ctypes.CDLL('libcuda.so.1')\nexcept OSError:\n    print(0)\nelse:\n"
        "    count = ctypes.c_int(0)\n    driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))\n"
        "    print(count.value)"
    )
    # The library would count only those of the list.
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    words = [sys.executable, "-I", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=True, env=environment)
    return int(done.stdout)


def impossible(device: str, wanted: int | None, count: Callable[[], Sequence[str]] = visible_gpus) -> str | None:
    """Return why the local engine cannot run on a device with `engine.gpus: wanted`, or None."""
    kind, _, number = device.partition(":")
    if kind not in ("auto", "cuda") or (kind == "auto" and not wanted):
        return None
    if kind == "cuda" and wanted == 0:
        return f"engine.gpus is 0, but the device is {device!r}; `cpu` uses none"
    present = len(count())
    see = f"torch can use {present} GPU{'s' * (present != 1)} here"
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        see += f" (CUDA_VISIBLE_DEVICES is {os.environ['CUDA_VISIBLE_DEVICES']!r})"
    if wanted and wanted > present:
        return f"engine.gpus is {wanted}, but {see}; leave it out to use them all"
    used = present if wanted is None else wanted
    if kind == "cuda" and int(number or 0) >= used:
        limit = f", and engine.gpus is {wanted}" if used < present else ""
        return f"device {device!r} is not available on this machine: {see}{limit}, counted from 0"
    return None
