"""How torch computes on a device: what a suite's `precision` and `deterministic` set, and what was in force."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

_DETERMINISTIC = "deterministic"


def parted(numerics: str) -> tuple[str, bool]:
    """Return the precision of a stage, and whether it is deterministic."""
    precision, _, more = numerics.partition("+")
    return precision, more == _DETERMINISTIC


def of_plugins(numerics: str) -> str:
    """Return what plugins see as precision: `tf32` is float32 with other kernels, which is set here."""
    precision, _ = parted(numerics)
    return "float32" if precision == "tf32" else precision


def settle(numerics: str, device: str) -> None:
    """Set torch's switches for a stage: `float32` turns TF32 off, in products and convolutions; `tf32` turns it on."""
    precision, deterministic = parted(numerics)
    if deterministic:
        # Read by cuBLAS when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if not deterministic and not device.startswith("cuda"):
        return
    import torch

    fast = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = fast
    if deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


def synchronise() -> None:
    """Wait for the GPU, if this process uses one: a time that is read before says only when work was queued."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def ran_on(device: str) -> str:
    """Return the device that computed: a stage that never started CUDA has used the CPU."""
    torch = sys.modules.get("torch")
    if not device.startswith("cuda") or (torch is not None and torch.cuda.is_initialized()):
        return device
    return "cpu"


def accelerator() -> dict[str, Any]:
    """Return what is known of the GPU in use, and its peak memory; empty if this process uses none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    described = {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "driver": _driver(),
        "cuda": torch.version.cuda or torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),
        "tf32": {"matmul": torch.backends.cuda.matmul.allow_tf32, "cudnn": torch.backends.cudnn.allow_tf32},
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    return {"accelerator": described, "peak_device_bytes": torch.cuda.max_memory_allocated()}


def _driver() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?\s([0-9]+(?:\.[0-9]+)+)\s", text)
    return found[1] if found else None
