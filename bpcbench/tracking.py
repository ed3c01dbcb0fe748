"""MLflow as a view of the store: one experiment per suite, a parent run per invocation, a child run per cell.

Only this process writes, in batches, from one thread. If MLflow cannot be reached the run goes on, and `sync` adds
what is missing from the store later. Telemetry is off before MLflow is imported.
"""

from __future__ import annotations

import os
import queue
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bpcbench.cellrun import Point, curve_points, names, read_cell, run_name
from bpcbench.engine import Outcome, Stage
from bpcbench.environment import git_hash, machine, versions
from bpcbench.keys import digest
from bpcbench.plan import Cell, Plan
from bpcbench.store import Store

BATCH = 1000
CELL_TAG = "bpcbench.cell"
PROCESS_TAG = "bpcbench.process"
PARENT_TAG = "mlflow.parentRunId"
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}


def tracking_uri(store: Path) -> str:
    """Return where runs are logged: MLFLOW_TRACKING_URI, else an SQLite file in the store."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{store.absolute() / 'mlflow.db'}"


def cell_key(cell: Cell) -> str:
    """Return what identifies a cell's run: its names, and the addresses of its scores."""
    names = [cell.dataset, cell.ipc, cell.method, cell.inference, cell.network, cell.distil_seed, cell.evaluate_seed]
    return digest([names, sorted(str(address) for address in cell.scores.values())])


def quiet_environment() -> None:
    """Switch telemetry off and keep MLflow from waiting minutes for a server that is not there."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)


@dataclass
class Book:
    """The MLflow experiment of one suite."""

    plan: Plan
    store: Store
    client: Any = None
    experiment: str = ""
    parent: str = ""
    _finished: dict[str, str] = field(default_factory=dict)

    def open(self) -> Book:
        """Connect, creating the database and the experiment if they are not there."""
        quiet_environment()
        import logging

        from mlflow import MlflowClient

        logging.getLogger("alembic").setLevel(logging.WARNING)
        uri = tracking_uri(self.store.root)
        self.client = MlflowClient(tracking_uri=uri)
        name = self.plan.suite.name
        found = self.client.get_experiment_by_name(name)
        if found is not None and found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        if found is None:
            local = uri.startswith("sqlite:///") and "MLFLOW_TRACKING_URI" not in os.environ
            place = (self.store.root / "mlflow-artifacts").as_uri() if local else None
            self.experiment = self.client.create_experiment(name, artifact_location=place)
        else:
            self.experiment = found.experiment_id
        self._finished = {run.data.tags[CELL_TAG]: run.info.run_id for run in self._runs("FINISHED", CELL_TAG)}
        self._bury_the_dead()
        return self

    def _bury_the_dead(self) -> None:
        """End the runs of invocations that were killed; a cell they had begun gets a run of its own when it is done."""
        dead = set()
        for run in self._runs("RUNNING", PROCESS_TAG):
            host, _, process = run.data.tags[PROCESS_TAG].rpartition(":")
            if host == socket.gethostname() and not Path(f"/proc/{process}").exists():
                self.client.set_terminated(run.info.run_id, "KILLED")
                dead.add(run.info.run_id)
        for run in self._runs("RUNNING", CELL_TAG) if dead else ():
            if run.data.tags.get(PARENT_TAG) in dead:
                self.client.delete_run(run.info.run_id)

    def _runs(self, status: str, tag: str) -> Iterator[Any]:
        token = None
        while True:
            page = self.client.search_runs(
                [self.experiment], f"attributes.status = '{status}'", max_results=1000, page_token=token
            )
            yield from (run for run in page if tag in run.data.tags)
            token = page.token
            if not token:
                return

    def missing(self) -> list[Cell]:
        """Return the cells whose scores are in the store but not in MLflow."""
        complete = (c for c in self.plan.cells if c.scores and all(self.store.has(a) for a in c.scores.values()))
        return [cell for cell in complete if cell_key(cell) not in self._finished]

    def forget(self, keys: Iterable[str]) -> None:
        """Delete the runs of cells that are being made again, so that a cell has one run."""
        for key in keys:
            if key in self._finished:
                self.client.delete_run(self._finished.pop(key))

    def begin(self) -> None:
        """Start the parent run of this invocation."""
        suite = self.plan.suite
        tags = {
            "mlflow.runName": f"{suite.name} {time.strftime('%Y-%m-%d %H:%M:%S')}",
            PROCESS_TAG: f"{socket.gethostname()}:{os.getpid()}",
            "bpcbench.commit": git_hash() or "wheel",
            "mlflow.note.content": suite.description,
        }
        tags |= {f"environment.{name}": str(value) for name, value in {**versions(), **machine()}.items()}
        run = self.client.create_run(self.experiment, tags=tags)
        self.parent = run.info.run_id
        self.client.log_dict(self.parent, dict(suite.source), "suite.json")

    def start_cell(self, cell: Cell, began: int | None = None) -> str:
        """Create the child run of a cell and return its id."""
        tags = {**names(cell), CELL_TAG: cell_key(cell), "mlflow.runName": run_name(cell)}
        if self.parent:
            tags[PARENT_TAG] = self.parent
        run_id: str = self.client.create_run(self.experiment, began, tags).info.run_id
        return run_id

    def log_points(self, run_id: str, points: Sequence[Point]) -> None:
        """Add points of curves: (name, value, step)."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value, step in points]
        for start in range(0, len(metrics), BATCH):
            self.client.log_batch(run_id, metrics=metrics[start : start + BATCH])

    def log_cell(self, cell: Cell, run_id: str | None = None, logged: Set[tuple[str, int]] = frozenset()) -> None:
        """Log a finished cell from the store and end its run; points that were followed live are not repeated."""
        from mlflow.entities import Param, RunTag

        if cell_key(cell) in self._finished:
            return
        found = read_cell(cell, self.store)
        run_id = run_id or self.start_cell(cell, found.began)
        params = [Param(name, value[:6000]) for name, value in found.params.items()]
        tags = [RunTag(name, value[:5000]) for name, value in found.tags.items()]
        self.client.log_batch(run_id, params=params[:100], tags=tags[:100])
        final = [(name, value, 0) for name, value in found.metrics.items()]
        self.log_points(run_id, [*(p for p in found.points if (p[0], p[2]) not in logged), *final])
        with tempfile.TemporaryDirectory() as folder:
            for name, content in found.files.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            self.client.log_artifacts(run_id, folder)
        self.client.set_terminated(run_id, "FINISHED", found.ended)
        self._finished[cell_key(cell)] = run_id

    def end(self, run_id: str, *, ok: bool) -> None:
        """End a run that is not a finished cell."""
        self.client.set_terminated(run_id, "FINISHED" if ok else "FAILED")


class Tracker(threading.Thread):
    """A Listener that logs a run while it goes on. It never raises: it says once what is wrong and falls silent."""

    def __init__(self, plan: Plan, store: Store, report: Callable[[str], None]) -> None:
        super().__init__(name="tracker", daemon=True)
        # A store of its own: the runner's is used by other threads.
        self.book = Book(plan, Store(store.root))
        self.report = report
        self.failed = False
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._runs: dict[str, str] = {}
        self._logged: dict[str, set[tuple[str, int]]] = {}
        self._cells = {cell_key(cell): cell for cell in plan.cells if cell.scores}
        self._by_stage: dict[str, list[str]] = {}
        for key, cell in self._cells.items():
            assert cell.coreset is not None
            for stage in (f"coreset:{cell.coreset.key}", f"predict:{cell.predict}"):
                self._by_stage.setdefault(stage, []).append(key)
        self._waiting = {key: {f"score:{a.key}" for a in cell.scores.values()} for key, cell in self._cells.items()}
        self._by_score: dict[str, list[str]] = {}
        for key, scores in self._waiting.items():
            for score in scores:
                self._by_score.setdefault(score, []).append(key)
        to_do = {planned.stage.id for planned in plan.to_do()}
        for scores in self._waiting.values():
            scores &= to_do

    def run(self) -> None:
        """Log what is put into the queue, in order."""
        try:
            self.book.open()
            cached = [cell for cell in self.book.missing() if not self._waiting[cell_key(cell)]]
            if cached or any(self._waiting.values()):
                self.book.begin()
            self.book.forget(key for key, scores in self._waiting.items() if scores)
            for cell in cached:
                self.book.log_cell(cell)
            while (job := self._queue.get()) is not None:
                job()
        except Exception as error:
            self.failed = True
            where = tracking_uri(self.book.store.root)
            text = " ".join(str(error).split())[:300]
            self.report(
                f"MLflow at {where} cannot be written: {text}\n"
                f"  the results are safe in {self.book.store.root}; `bpcbench sync` adds them to MLflow later"
            )

    def started(self, stage: Stage) -> None:
        """Nothing is known yet."""

    def events(self, stage: Stage, lines: Sequence[dict[str, Any]]) -> None:
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

    def finished(self, stage: Stage, outcome: Outcome) -> None:
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


def sync(plan: Plan, store: Store) -> int:
    """Add every finished cell that MLflow lacks; return how many."""
    book = Book(plan, store).open()
    missing = book.missing()
    if missing:
        book.begin()
    for cell in missing:
        book.log_cell(cell)
    if missing:
        book.end(book.parent, ok=True)
    return len(missing)
