"""What a stage used of its process: whether it computed on the GPU, the peaks of memory, and energy.

A process may execute several stages, so nothing here may be what another stage has left behind.
"""

from __future__ import annotations

import contextlib
import gc
import re
import sys
from pathlib import Path
from typing import Any

from bpcbench.running import nvml
from bpcbench.running.device import peak_memory


class Usage:
    """Counts from the moment that it is made."""

    def __init__(self) -> None:
        _reset_peak_memory()
        self._energy: dict[str, float] = {}
        self._allocations = 0
        if torch := _started():
            torch.cuda.reset_peak_memory_stats()
            self._allocations = _allocations(torch)

    def expect(self, device: str) -> None:
        """Note that the stage may compute on a device from now on."""
        if device.startswith("cuda"):
            self._energy = nvml.energy()

    def on_gpu(self) -> bool:
        """Return whether anything was allocated on a GPU since: CUDA may have been started by an earlier stage."""
        torch = _started()
        return torch is not None and _allocations(torch) > self._allocations

    def device(self, device: str) -> str:
        """Return the device that computed: a stage that has put nothing on the GPU has used the CPU."""
        return "cpu" if device.startswith("cuda") and not self.on_gpu() else device

    def described(self) -> dict[str, Any]:
        """Return the peak of memory and, if a GPU was used, what is known of it, its peak and its energy.

        `device_joules` is what the whole GPU has used meanwhile, also for stages that shared it.
        """
        found: dict[str, Any] = {"peak_memory_bytes": peak_memory()}
        torch = _started()
        if torch is None or not self.on_gpu():
            return found
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        found["accelerator"] = {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "driver": _driver(),
            "cuda": torch.version.cuda or torch.version.hip,
            "cudnn": torch.backends.cudnn.version(),
            "tf32": {"matmul": torch.backends.cuda.matmul.allow_tf32, "cudnn": torch.backends.cudnn.allow_tf32},
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }
        found["peak_device_bytes"] = torch.cuda.max_memory_allocated()
        name = f"GPU-{getattr(properties, 'uuid', '')}"
        if (before := self._energy.get(name)) is not None and (now := nvml.energy().get(name)) is not None:
            found["device_joules"] = round(now - before, 1)
        return found


def free() -> None:
    """Give back the memory of a GPU that the stages of this process have left unused."""
    if torch := _started():
        gc.collect()
        torch.cuda.empty_cache()


def _started() -> Any:
    """Return torch if this process has started CUDA, else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


def _allocations(torch: Any) -> int:
    return int(torch.cuda.memory_stats().get("allocation.all.allocated", 0))


def _reset_peak_memory() -> None:
    """Make `peak_memory` count from now on; only Linux can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _driver() -> str | None:
    """Return the version of the GPU's driver: NVIDIA's or AMD's, which WSL2 has no file for."""
    with contextlib.suppress(OSError):
        found = re.search(r"Kernel Module.*?\s([0-9]+(?:\.[0-9]+)+)\s", Path("/proc/driver/nvidia/version").read_text())
        if found:
            return found[1]
    if version := nvml.driver():
        return version
    with contextlib.suppress(OSError):
        return Path("/sys/module/amdgpu/version").read_text().strip()
    return None
