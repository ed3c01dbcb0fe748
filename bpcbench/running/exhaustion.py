"""Out of memory as an answer: where, how much was asked for, and what to change."""

from __future__ import annotations

import contextlib
import errno
import gc
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bpcbench.text import spell_bytes

OUT_OF_MEMORY = "out of memory"
"""How the message of a stage begins that needed more memory than there was."""
ADVICE: Mapping[str, str] = {
    "graphs": "`graphs: 0`",
    "chunk": "a smaller `chunk`",
    "batch": "a smaller `batch`",
    "batch_size": "a smaller `batch_size`",
    "rows": "fewer `rows`",
    "pool_rows": "fewer `pool_rows`",
    "samples_in": "`samples_in: disk`",
    "keep": "`keep: false`",
    "batched": "`batched: false`",
}
"""What to try, by the option of a plugin that decides about memory."""
_UNITS = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_ASKED = re.compile(r"(?:tried|unable) to allocate ([\d.,]+) ?([KMGT]i?B|bytes)", re.IGNORECASE)
_OF_HOST = re.compile("can't allocate memory")
_OF_DEVICE = re.compile(
    r"(?:CUDA|HIP) (?:error: )?out of memory|cudaErrorMemoryAllocation|hipErrorOutOfMemory"
    r"|\bCU[A-Z]+_(?:STATUS_(?:INTERNAL_ERROR_\w*)?)?ALLOC(?:ATION)?_FAILED|ROCBLAS_STATUS_MEMORY_ERROR"
    r"|MIOPEN_STATUS_ALLOC_FAILED|MPS backend out of memory"
)
"""Libraries that allocate by themselves have no class of errors for it: cuBLAS, cuDNN, cuSOLVER, cuFFT, their likes."""


def ran_out(error: BaseException) -> bool:
    """Return whether an error, or what it was raised from, says that memory was not enough, of device or machine."""
    return any(_on_device(one) or _on_host(one) for one in _causes(error))


def explained(error: BaseException, device: str, options: Mapping[str, Any]) -> str:
    """Return the message for a stage that ran out of memory.

    The need is what was allocated at the peak plus what was refused: a lower bound, for nobody knows what came after.
    """
    torch = sys.modules.get("torch")
    cause = next((one for one in _causes(error) if _on_device(one) or _on_host(one)), error)
    needed = _asked(str(cause))
    where = "this machine"
    if torch is not None and torch.cuda.is_initialized() and _on_device(cause):
        index = torch.cuda.current_device()
        total = torch.cuda.get_device_properties(index).total_memory
        where = f"{device} ({torch.cuda.get_device_name(index)}, {spell_bytes(total)})"
        needed = needed and needed + torch.cuda.max_memory_allocated()
    need = f": needs about {needed / 1e9:.1f} GB or more" if needed else ""
    return f"{OUT_OF_MEMORY} on {where}{need}{advice(options)}"


def release(error: BaseException) -> None:
    """Give back the memory that an error holds: the tensors of the frames it has passed, and the device's reserve."""
    for one in _linked(error):
        traceback.clear_frames(one.__traceback__)
        one.__traceback__ = None
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def advice(options: Mapping[str, Any]) -> str:
    """Return what to try, from the options that a plugin has; empty if none of them decides about memory."""
    tries = [text for name, text in ADVICE.items() if name in options and not (name == "graphs" and options[name] == 0)]
    return f"; try {', '.join(tries)}" if tries else ""


def kernel_kills() -> int | None:
    """Return how many processes the kernel has killed for their memory, of this one's cgroup or else of the machine.

    None where nothing tells.
    """
    for file in (*_cgroup_files(), Path("/proc/vmstat")):
        with contextlib.suppress(OSError, ValueError):
            if found := re.search(r"^oom_kill (\d+)$", file.read_text(), re.M):
                return int(found[1])
    return None


def _cgroup_files() -> Iterator[Path]:
    root = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield root / path.lstrip("/") / "memory.events"
            elif "memory" in controllers.split(","):
                yield root / "memory" / path.lstrip("/") / "memory.oom_control"


def _on_device(error: BaseException) -> bool:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _OF_DEVICE.search(str(error)) is not None


def _on_host(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    # Torch's allocator of the CPU has no class of its own.
    return isinstance(error, RuntimeError) and _OF_HOST.search(str(error)) is not None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it was raised from."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__


def _linked(error: BaseException) -> list[BaseException]:
    """Return an error with all that it was raised from or after."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and all(one is not other for other in found):
            found.append(one)
            waiting += [one.__cause__, one.__context__]
    return found


def _asked(text: str) -> int:
    found = _ASKED.search(text)
    if found is None:
        return 0
    unit = next(size for name, size in _UNITS.items() if name.lower() == found[2].lower())
    return round(float(found[1].replace(",", "")) * unit)
