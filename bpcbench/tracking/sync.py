"""Bringing MLflow up to date with the store: what a run could not log, and what has changed since."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bpcbench.store.manifest import Manifest
from bpcbench.store.runs import RunRecord
from bpcbench.store.store import Store
from bpcbench.tracking.cell import milliseconds
from bpcbench.tracking.failures import failed_cells
from bpcbench.tracking.mlflow import Book, Story


@dataclass(frozen=True)
class Added:
    """How many finished and failed cells were added."""

    finished: int
    failed: int


def sync(
    manifest: Manifest,
    store: Store,
    *,
    runs: Sequence[RunRecord] = (),
    story: Callable[[], Story] | None = None,
    latest: bool = True,
    report: Callable[[str], None] = print,
) -> Added:
    """Add the cells that MLflow lacks, and bring the summaries and the run of the invocation up to date.

    `runs` are the times that the manifest was run, the latest last; `latest` says whether it is the latest of its
    experiment, whose runs are the current ones.
    """
    from tqdm import tqdm

    over = frozenset(_process(run) for run in runs if not run.alive) - {_process(run) for run in runs if run.alive}
    last = runs[-1] if runs else None
    book = Book(manifest, store, report=report, over=over).open()
    book.adopt()
    missing = book.missing()
    failures = last.failures if last is not None else ()
    finished = book.finished | {cell.key for cell in missing}
    failed = [one for one in failed_cells(manifest, {}, failures, finished) if not book.explains(one)]
    if missing or failed:
        book.take_up()
    changed = len(book.changed_summaries())
    total = len(missing) + len(failed) + changed
    with tqdm(desc=manifest.name, unit="run", total=total, disable=None, delay=2) as bar:
        book.progress = _Ticking(bar)
        for cell in missing:
            book.log_cell(cell)
        for one in failed:
            book.log_failure(one)
        ended = milliseconds(last.ended) if last is not None and last.ended else None
        book.conclude(
            ok=last is None or last.exit_code == 0, ended=ended, story=story, refresh=last is None or not last.alive
        )
        if latest:
            book.distinguish()
    return Added(len(missing), len(failed))


def _process(run: RunRecord) -> str:
    return f"{run.host}:{run.process}"


@dataclass(frozen=True)
class _Ticking:
    bar: Any

    def __call__(self) -> None:
        self.bar.update()
