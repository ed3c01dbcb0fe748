"""What NVIDIA's management library tells of GPUs, if nvidia-ml-py is installed: it does not start CUDA.

Every function returns None or nothing where the package, the driver or the number is missing.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def count() -> int | None:
    """Return how many GPUs there are."""
    return _asked(lambda nvml: int(nvml.nvmlDeviceGetCount()))


def driver() -> str | None:
    """Return the version of the driver."""
    return _asked(lambda nvml: _text(nvml.nvmlSystemGetDriverVersion()))


def memory() -> dict[str, float]:
    """Return the bytes of every GPU, by its number in the order of the bus and by its unique name."""
    return _asked(_memory) or {}


def energy() -> dict[str, float]:
    """Return the joules that each GPU has used since its driver was loaded, by its unique name; from Volta on."""
    return _asked(_energy) or {}


def _asked(question: Callable[[Any], T]) -> T | None:
    if importlib.util.find_spec("pynvml") is None:
        return None
    # A library of other versions, no driver, a GPU that was lost: none of it may end what asks.
    with contextlib.suppress(Exception):
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        try:
            return question(nvml)
        finally:
            nvml.nvmlShutdown()
    return None


def _memory(nvml: Any) -> dict[str, float]:
    found = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        size = float(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        found[str(index)] = found[_text(nvml.nvmlDeviceGetUUID(handle))] = size
    return found


def _energy(nvml: Any) -> dict[str, float]:
    found = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        with contextlib.suppress(Exception):  # one that is older
            found[_text(nvml.nvmlDeviceGetUUID(handle))] = nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
