"""Logging to MLflow while a run goes on.

Only this process writes, in batches, from one thread. A run never waits long for MLflow: what it cannot write in time,
`bpcbench sync` adds from the store later.
"""

from __future__ import annotations

import contextlib
import importlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence, Set
from typing import Any, Protocol

from bpcbench.store.manifest import Manifest
from bpcbench.store.runs import FailureRecord
from bpcbench.store.store import Store
from bpcbench.tracking.cell import Point, curve_points
from bpcbench.tracking.failures import failed_cells
from bpcbench.tracking.location import named_server, quiet_environment, redacted, tracking_uri
from bpcbench.tracking.mlflow import Book, Story

SERVER_SECONDS = 5.0
"""How long the end of a run waits for a tracking server, all in all."""
STALL_SECONDS = 30.0
"""How long the end of a run waits for the store's own database without seeing it written; creating it takes 10 s."""
BAR_SECONDS = 2.0


class _Stage(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def kind(self) -> str: ...


class _Outcome(Protocol):
    @property
    def status(self) -> str: ...
    @property
    def message(self) -> str: ...


class Tracker(threading.Thread):
    """A Listener that logs a run while it goes on. It never raises: it reports once what is wrong and falls silent."""

    def __init__(
        self,
        manifest: Manifest,
        store: Store,
        to_do: Set[str],
        report: Callable[[str], None],
        *,
        quiet: bool = False,
    ) -> None:
        super().__init__(name="tracker", daemon=True)
        # A store of its own: the runner's is used by other threads.
        self.book = Book(
            manifest, Store(store.root), report=report, progress=self._advance, attaching=named_server() is None
        )
        self.report = report
        self.quiet = quiet
        self.failed = False
        self._done = 0
        self._cached = 0
        self._imported: float | None = None
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._runs: dict[str, str] = {}
        self._began: dict[str, int] = {}
        self._logged: dict[str, set[tuple[str, int]]] = {}
        self._stage_began: dict[str, int] = {}
        self._reasons: dict[str, str] = {}
        self._cells = {cell.key: cell for cell in manifest.cells if cell.scores}
        self._by_stage: dict[str, list[str]] = {}
        for key, cell in self._cells.items():
            for stage in cell.stages:
                self._by_stage.setdefault(stage, []).append(key)
        self._waiting = {key: {address.stage for address in cell.scores.values()} for key, cell in self._cells.items()}
        self._by_score: dict[str, list[str]] = {}
        for key, scores in self._waiting.items():
            for score in scores:
                self._by_score.setdefault(score, []).append(key)
        for scores in self._waiting.values():
            scores &= to_do
        self._computed_again = [key for key, scores in self._waiting.items() if scores]

    def run(self) -> None:
        """Log what is put into the queue, in order."""
        try:
            quiet_environment()
            importlib.import_module("mlflow")
            self._imported = time.monotonic()
            self.book.open()
            self.book.adopt()
            done = set(self._computed_again)
            cached = [cell for cell in self.book.missing() if cell.key not in done]
            self._cached = len(cached)
            if cached or self._computed_again:
                self.book.begin()
            self.book.forget(self._computed_again)
            for cell in cached:
                if self.failed:
                    return
                self.book.log_cell(cell)
            while not self.failed and (job := self._queue.get()) is not None:
                job()
                self._advance()
        except Exception as error:
            self._give_up(" ".join(str(error).split())[:300])
            with contextlib.suppress(Exception):
                self._kill_open_runs()
                if self.book.parent:
                    self.book.end(self.book.parent, "FAILED")

    def _advance(self) -> None:
        self._done += 1

    def _give_up(self, reason: str) -> None:
        if self.failed:
            return
        self.failed = True
        with contextlib.suppress(Exception):
            where = tracking_uri(self.book.store.root)
            self.report(
                redacted(
                    f"MLflow at {where} cannot be written: {reason}\n"
                    f"  the results are safe in {self.book.store.root}; `bpcbench sync` adds them to MLflow later"
                )
            )

    def started(self, stage: _Stage) -> None:
        """Note when a stage began: the run of a cell that is followed live starts then."""
        self._stage_began.setdefault(stage.id, int(time.time() * 1000))

    def events(self, stage: _Stage, lines: Sequence[dict[str, Any]]) -> None:
        """Log points of a curve to the first cell that the stage serves; the others get them when they end."""
        cells = self._by_stage.get(stage.id)
        task = self._cells[cells[0]].task(stage.id) if cells else ""
        points = curve_points(stage.kind, list(lines), task)
        if points and cells and not self.failed:
            began = self._stage_began.get(stage.id)
            self._queue.put(lambda: self._live(cells[0], points, began))

    def _live(self, key: str, points: list[Point], began: int | None) -> None:
        logged = self._logged.setdefault(key, set())
        new = [point for point in points if (point[0], point[2]) not in logged]
        if key not in self._runs:
            self._runs[key] = self.book.start_cell(self._cells[key], began)
            self._began[key] = began or int(time.time() * 1000)
        self.book.log_points(self._runs[key], new)
        logged.update((name, step) for name, _, step in new)

    def finished(self, stage: _Stage, outcome: _Outcome) -> None:
        """Log every cell whose last score this was."""
        if self.failed:
            return
        if outcome.status in ("failed", "skipped"):
            self._reasons[stage.id] = outcome.message
        if outcome.status not in ("done", "cached"):
            return
        for key in self._by_score.get(stage.id, ()):
            self._waiting[key].discard(stage.id)
            if not self._waiting[key]:
                self._queue.put(lambda key=key: self._whole(key))  # type: ignore[misc]

    def _whole(self, key: str) -> None:
        logged, began = self._logged.pop(key, set()), self._began.pop(key, 0)
        self.book.log_cell(self._cells[key], self._runs.pop(key, None), logged, began)

    def close(
        self,
        *,
        ok: bool,
        story: Callable[[], Story] | None = None,
        failures: Sequence[FailureRecord] = (),
    ) -> None:
        """Wait until everything is logged, but not for long; then end the runs that are still open."""
        self._queue.put(lambda: self._end(ok, story, failures))
        self._queue.put(None)
        try:
            self._wait()
        except KeyboardInterrupt:
            self._give_up("interrupted")

    def _wait(self) -> None:
        start = moved = time.monotonic()
        server = named_server() is not None
        bar = None
        try:
            done = self._done
            while self.is_alive() and not self.failed:
                self.join(0.05)
                now = time.monotonic()
                if self._done != done:
                    if bar is not None:
                        bar.total = self._left() + self._done
                        bar.update(self._done - done)
                    done, moved = self._done, now
                # Importing MLflow takes seconds of its own, which say nothing about the server.
                served = now - max(start, self._imported) if self._imported else 0.0
                if server and served > SERVER_SECONDS:
                    self._give_up(f"it has not taken everything {SERVER_SECONDS:g} s after the end of the run")
                elif not server and now - moved > STALL_SECONDS:
                    self._give_up(f"nothing was written for {STALL_SECONDS:g} s")
                elif bar is None and now - start > BAR_SECONDS and self.is_alive():
                    bar = self._bar()
        finally:
            if bar is not None:
                bar.close()

    def _left(self) -> int:
        return max(0, self._cached - self._done) + self._queue.qsize()

    def _bar(self) -> Any:
        from tqdm import tqdm

        left, silent = self._left(), self.quiet or not sys.stderr.isatty()
        if silent and not self.quiet:
            self.report(f"writing {left:,} {'entry' if left == 1 else 'entries'} to MLflow ...")
        total = left + self._done
        return tqdm(desc="MLflow", unit="entry", total=total, initial=self._done, disable=silent, leave=False)

    def _end(self, ok: bool, story: Callable[[], Story] | None, failures: Sequence[FailureRecord]) -> None:
        if self.book.parent:
            for one in failed_cells(self.book.manifest, self._reasons, failures, self.book.finished):
                self.book.log_failure(one, self._runs.pop(one.cell.key, None))
        self._kill_open_runs()
        self.book.conclude(ok=ok, story=story)
        self.book.distinguish()

    def _kill_open_runs(self) -> None:
        """End the runs of cells that the invocation leaves unfinished."""
        for run_id in self._runs.values():
            self.book.end(run_id, "KILLED")
        self._runs.clear()
