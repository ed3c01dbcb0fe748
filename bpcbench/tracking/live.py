"""MLflow as a view of the store: a listener that logs a run while it goes on, and `sync`, which repairs.

Only this process writes, in batches, from one thread. If MLflow cannot be reached the run goes on, and `sync` adds
what is missing from the store later.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence, Set
from typing import Any, Protocol

from bpcbench.store.manifest import Manifest
from bpcbench.store.store import Store
from bpcbench.tracking.cell import Point, curve_points
from bpcbench.tracking.mlflow import Book, tracking_uri


class _Stage(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def kind(self) -> str: ...


class _Outcome(Protocol):
    @property
    def status(self) -> str: ...


class Tracker(threading.Thread):
    """A Listener that logs a run while it goes on. It never raises: it says once what is wrong and falls silent."""

    def __init__(self, manifest: Manifest, store: Store, to_do: Set[str], report: Callable[[str], None]) -> None:
        super().__init__(name="tracker", daemon=True)
        # A store of its own: the runner's is used by other threads.
        self.book = Book(manifest, Store(store.root), report=report)
        self.report = report
        self.failed = False
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._runs: dict[str, str] = {}
        self._logged: dict[str, set[tuple[str, int]]] = {}
        self._cells = {cell.key: cell for cell in manifest.cells if cell.scores}
        self._by_stage: dict[str, list[str]] = {}
        for key, cell in self._cells.items():
            for stage in (*(address.stage for address in cell.coresets), f"predict:{cell.predict}"):
                self._by_stage.setdefault(stage, []).append(key)
        self._waiting = {key: {address.stage for address in cell.scores.values()} for key, cell in self._cells.items()}
        self._by_score: dict[str, list[str]] = {}
        for key, scores in self._waiting.items():
            for score in scores:
                self._by_score.setdefault(score, []).append(key)
        for scores in self._waiting.values():
            scores &= to_do

    def run(self) -> None:
        """Log what is put into the queue, in order."""
        try:
            self.book.open()
            cached = [cell for cell in self.book.missing() if not self._waiting[cell.key]]
            if cached or any(self._waiting.values()):
                self.book.begin()
            self.book.forget(key for key, scores in self._waiting.items() if scores)
            for cell in cached:
                self.book.log_cell(cell)
            while (job := self._queue.get()) is not None:
                job()
        except Exception as error:
            self.failed = True
            with contextlib.suppress(Exception):
                self._end(False)
            where = tracking_uri(self.book.store.root)
            text = " ".join(str(error).split())[:300]
            self.report(
                f"MLflow at {where} cannot be written: {text}\n"
                f"  the results are safe in {self.book.store.root}; `bpcbench sync` adds them to MLflow later"
            )

    def started(self, stage: _Stage) -> None:
        """Nothing is known yet."""

    def events(self, stage: _Stage, lines: Sequence[dict[str, Any]]) -> None:
        """Log points of a curve to the first cell that the stage serves; the others get them when they end."""
        points = curve_points(stage.kind, list(lines))
        cells = self._by_stage.get(stage.id)
        if points and cells and not self.failed:
            self._queue.put(lambda: self._live(cells[0], points))

    def _live(self, key: str, points: list[Point]) -> None:
        logged = self._logged.setdefault(key, set())
        new = [point for point in points if (point[0], point[2]) not in logged]
        self.book.log_points(self._run_of(key), new)
        logged.update((name, step) for name, _, step in new)

    def _run_of(self, key: str) -> str:
        if key not in self._runs:
            self._runs[key] = self.book.start_cell(self._cells[key])
        return self._runs[key]

    def finished(self, stage: _Stage, outcome: _Outcome) -> None:
        """Log every cell whose last score this was."""
        if self.failed or outcome.status not in ("done", "cached"):
            return
        for key in self._by_score.get(stage.id, ()):
            self._waiting[key].discard(stage.id)
            if not self._waiting[key]:
                self._queue.put(lambda key=key: self._whole(key))  # type: ignore[misc]

    def _whole(self, key: str) -> None:
        self.book.log_cell(self._cells[key], self._runs.pop(key, None), self._logged.pop(key, frozenset()))

    def close(self, *, ok: bool) -> None:
        """Wait until everything is logged, then end the runs that are still open."""
        left = self._queue.qsize()
        if left > 5 and not self.failed:
            self.report(f"writing {left} entries to MLflow ...")
        self._queue.put(lambda: self._end(ok))
        self._queue.put(None)
        self.join()

    def _end(self, ok: bool) -> None:
        for run_id in self._runs.values():
            self.book.end(run_id, ok=False)
        if self.book.parent:
            self.book.end(self.book.parent, ok=ok)
