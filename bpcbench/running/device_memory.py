"""How much memory the device of stages on this machine has, asked without importing a framework."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bpcbench.running import nvml
from bpcbench.running.gpus import visible_gpus

_SECONDS = 20.0
_TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")


def device_memory(wanted: str, limit: int | None = None) -> tuple[float, str] | None:
    """Return the bytes of a suite's device and what they are, or None where nothing tells.

    `auto` is the smallest GPU that stages would be given, of the first `limit` ones, else the machine's memory.
    """
    kind, _, number = wanted.partition(":")
    if kind not in ("auto", "cpu", "cuda"):
        return None
    used = () if kind == "cpu" else visible_gpus()[:limit]
    if kind == "cuda" and number:
        used = used[int(number) : int(number) + 1]
    if not used:
        return None if kind == "cuda" else _machine()
    found = of_gpus(used, _gpus())
    return None if found is None else (found, "the GPU")


def of_gpus(used: Sequence[str], sizes: Mapping[str, float]) -> float | None:
    """Return the bytes of the smallest GPU among entries of CUDA_VISIBLE_DEVICES, or None if that is not known.

    `sizes` has all GPUs by their number, in the order of the bus, and by their unique names. CUDA puts the fastest
    first: unless CUDA_DEVICE_ORDER says otherwise, numbers say nothing where sizes differ. What fits on none is then
    the limit, for out of memory is an answer, and a stage that is left out is none.
    """
    numbered = {name: size for name, size in sizes.items() if name.isdigit()}
    if not numbered:
        return None
    named = [_of_one(entry, sizes) for entry in used]
    ordered = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or not any(entry.isdigit() for entry in used)
    if len(set(numbered.values())) > 1 and len(used) < len(numbered) and not ordered:
        return max(numbered.values())
    return None if None in named else min(size for size in named if size is not None)


def _of_one(entry: str, sizes: Mapping[str, float]) -> float | None:
    if entry.isdigit():
        return sizes.get(entry)
    # CUDA takes the beginning of a unique name for it.
    found = {size for name, size in sizes.items() if name.startswith(entry)}
    return found.pop() if len(found) == 1 else None


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


def _gpus() -> dict[str, float]:
    """Return the bytes of every GPU by its number and its unique name."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return nvml.memory() or _of_rocm()
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        words = [tool, "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]
        said = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
        found: dict[str, float] = {}
        for line in said.splitlines():
            index, name, size = (word.strip() for word in line.split(","))
            found[index] = found[name] = float(size) * 2**20
        return found
    return {}


def _of_rocm() -> dict[str, float]:
    """Return the bytes of the memory on every GPU that the driver of ROCm lists; its nodes without one are CPUs."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        for node in sorted(_TOPOLOGY.iterdir(), key=lambda path: int(path.name)):
            if re.search(r"^simd_count [1-9]", (node / "properties").read_text(), re.M):
                banks = [path.read_text() for path in node.glob("mem_banks/*/properties")]
                sizes = [re.search(r"^size_in_bytes (\d+)", text, re.M) for text in banks]
                found.append(sum(float(size[1]) for size in sizes if size))
    return {str(number): size for number, size in enumerate(found) if size}
