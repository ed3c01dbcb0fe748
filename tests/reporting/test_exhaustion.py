"""Places without a number because memory was not enough: counted apart, and explained below the table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from bpcbench.reporting.collect import Progress


def cell(label: str) -> Any:
    return SimpleNamespace(label=label, group=SimpleNamespace(label=label.split(" seed")[0]))


def test_out_of_memory_is_counted_and_said() -> None:
    failed = (cell("bpc-w seed 0"), cell("bpc-w seed 1"), cell("frepo seed 0"))
    oom = "out of memory on cuda (A100, 40 GB): needs about 91.0 GB or more; try `graphs: 0`"
    reasons = {"bpc-w seed 0": oom, "bpc-w seed 1": oom, "frepo seed 0": "ValueError: no"}
    found = Progress(
        done=(cell("vbpc seed 0"),), failed=failed, reasons=reasons, exhausted=frozenset(list(reasons)[:2])
    )
    assert found.note() == "Incomplete: 3 of 4 evaluations have no result (1 failed, 2 out of memory)."
    assert list(found.dashes()) == [f"— {oom}: bpc-w."]
