"""Cells that a stage which failed or was skipped keeps without a result: why, and the end of the stage's log."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from bpcbench.reading import opened
from bpcbench.store.manifest import CellRecord, Manifest
from bpcbench.store.runs import FailureRecord
from bpcbench.store.store import Store

LOG = "failed.log"
LOG_BYTES = 64_000
"""How much of the end of a log is kept with a run; a failed stage may serve many cells."""


@dataclass(frozen=True, eq=False)
class FailedCell:
    """A cell without a result, the stage that is to blame, its message, and where its log lies in the store."""

    cell: CellRecord
    stage: str
    reason: str
    log: str = ""


def failed_cells(
    manifest: Manifest, reasons: Mapping[str, str], failures: Iterable[FailureRecord], finished: Collection[str]
) -> Iterator[FailedCell]:
    """Yield the cells, apart from those finished, that need a stage which failed or was skipped.

    `reasons` are messages by the id of the stage; `failures` have messages too, and logs.
    """
    records = {failure.stage: failure for failure in failures}
    reasons = {**{stage: failure.message for stage, failure in records.items()}, **reasons}
    for cell in manifest.cells if reasons else ():
        stages = [*cell.stages, *(address.stage for address in cell.scores.values())]
        stage = next((each for each in stages if each in reasons), None)
        if stage is not None and cell.scores and cell.key not in finished:
            yield FailedCell(cell, stage, reasons[stage], records[stage].log if stage in records else "")


def end_of_log(store: Store, log: str) -> bytes:
    """Return the last lines of a log of the store, empty if it is not there any more."""
    path = (store.root / log).resolve()
    if not log or not path.is_relative_to(store.root.resolve()):
        return b""
    try:
        with opened(path) as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - LOG_BYTES))
            content = stream.read(LOG_BYTES)
    except (OSError, ValueError):
        return b""
    return content if size <= LOG_BYTES else b"[...]\n" + content.partition(b"\n")[2]
