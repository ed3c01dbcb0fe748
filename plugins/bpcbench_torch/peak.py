"""The peak of the memory that a computation allocates for tensors: what a memory table counts, libraries excluded."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_CPU = 0
"""The profiler's number of the CPU among devices."""


def peak_allocation(compute: Callable[[], object], device: str) -> int:
    """Return the largest number of bytes that `compute` holds at a time beyond those held before, results included.

    On the CPU the allocations of torch's allocator are followed by its profiler, the temporary arrays of its kernels
    among them, but not what LAPACK and oneDNN allocate themselves. On CUDA it is the allocator's own peak.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result: Any = compute()
        torch.cuda.synchronize(device)
        del result
        return torch.cuda.max_memory_allocated(device) - before
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
        ) as profile:
            result = compute()
        del result
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = [
        (float(event["ts"]), int(event["args"]["Bytes"]))
        for event in events
        if event.get("name") == "[memory]" and event["args"]["Device Type"] == _CPU
    ]
    held = peak = 0
    for _, change in sorted(changes, key=lambda one: one[0]):
        held += change
        peak = max(peak, held)
    return peak
