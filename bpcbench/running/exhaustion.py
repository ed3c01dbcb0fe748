"""Out of memory as an answer: where, how much was asked for, and what to change."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from bpcbench.reporting.collect import OUT_OF_MEMORY
from bpcbench.text import spell_bytes

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
_ASKED = re.compile(r"tried to allocate ([\d.,]+) ?([KMGT]i?B|bytes)", re.IGNORECASE)


def ran_out(error: BaseException) -> bool:
    """Return whether an error says that memory was not enough, on the device or of this machine."""
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    # Torch's allocator of the CPU has no class of its own.
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def explained(error: BaseException, device: str, options: Mapping[str, Any]) -> str:
    """Return the message for a stage that ran out of memory, and give what the device's allocator holds back.

    The need is what was allocated at the peak plus what was refused: a lower bound, for nobody knows what came after.
    """
    torch = sys.modules.get("torch")
    needed = _asked(str(error))
    where = "this machine"
    if torch is not None and torch.cuda.is_initialized() and isinstance(error, torch.OutOfMemoryError):
        total = torch.cuda.get_device_properties(0).total_memory
        where = f"{device} ({torch.cuda.get_device_name(0)}, {spell_bytes(total)})"
        needed = needed and needed + torch.cuda.max_memory_allocated()
        torch.cuda.empty_cache()
    need = f": needs about {needed / 1e9:.1f} GB or more" if needed else ""
    return f"{OUT_OF_MEMORY} on {where}{need}{advice(options)}"


def advice(options: Mapping[str, Any]) -> str:
    """Return what to try, from the options that a plugin has; empty if none of them decides about memory."""
    tries = [text for name, text in ADVICE.items() if name in options and not (name == "graphs" and options[name] == 0)]
    return f"; try {', '.join(tries)}" if tries else ""


def _asked(text: str) -> int:
    found = _ASKED.search(text)
    if found is None:
        return 0
    unit = next(size for name, size in _UNITS.items() if name.lower() == found[2].lower())
    return round(float(found[1].replace(",", "")) * unit)
