"""Out of memory: recognised, with what was asked for and what to try."""

from __future__ import annotations

import pytest
import torch

from bpcbench.reporting.collect import OUT_OF_MEMORY
from bpcbench.running.exhaustion import explained, ran_out


def cpu_error() -> RuntimeError:
    """What torch's own allocator says."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**58, dtype=torch.uint8)
    return caught.value


def test_what_counts_as_out_of_memory() -> None:
    assert ran_out(MemoryError())
    assert ran_out(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert ran_out(cpu_error())
    assert not ran_out(RuntimeError("shapes do not match"))
    assert not ran_out(ValueError("out of memory"))


def test_the_message_says_how_much_and_what_to_try() -> None:
    said = explained(cpu_error(), "cpu", {"graphs": None, "chunk": 1, "steps": 3})
    assert said.startswith(f"{OUT_OF_MEMORY} on this machine: needs about 288230376.2 GB or more")
    assert said.endswith("; try `graphs: 0`, a smaller `chunk`")
    assert explained(MemoryError(), "cpu", {"graphs": 0}) == "out of memory on this machine"
