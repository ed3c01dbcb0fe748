"""The MLflow experiment of one suite: one parent run per invocation, one child run per cell.

Telemetry is off before MLflow is imported. Whoever writes holds a lock of the store, so that two invocations log a cell
once.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bpcbench.errors import StoreError
from bpcbench.planning.cells import Cell
from bpcbench.planning.plan import Plan
from bpcbench.store.address import digest
from bpcbench.store.locks import Busy
from bpcbench.store.provenance import git_hash, machine, versions
from bpcbench.store.store import Store
from bpcbench.tracking.cell import Point, names, read_cell, run_name

BATCH = 1000
OPENING_SECONDS = 120.0
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
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        return uri
    if wrong := sorted(set("?#") & set(str(store.absolute()))):
        raise StoreError(f"{store}: MLflow's database cannot lie in a folder whose path has {' or '.join(wrong)}")
    return f"sqlite:///{store.absolute() / 'mlflow.db'}"


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
    report: Callable[[str], None] = print
    _finished: dict[str, str] = field(default_factory=dict)

    def open(self) -> Book:
        """Connect, creating the database and the experiment if they are not there; one process at a time."""
        deadline = time.monotonic() + OPENING_SECONDS
        while True:
            try:
                with self.store.turn("mlflow"):
                    return self._open()
            except Busy:
                if time.monotonic() > deadline:
                    return self._open()
                time.sleep(0.2)

    def _open(self) -> Book:
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
            local = uri.startswith("sqlite:///") and not os.environ.get("MLFLOW_TRACKING_URI")
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
            if host == socket.gethostname() and not _alive(int(process)):
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
        try:
            with self.store.turn(f"mlflow:{cell_key(cell)}"):
                if not self._has(cell):
                    self._log_cell(cell, run_id, logged)
                elif run_id is not None:
                    self.client.delete_run(run_id)
        except Busy:
            # Another invocation logs it at this very moment.
            if run_id is not None:
                self.client.delete_run(run_id)

    def _has(self, cell: Cell) -> bool:
        if cell_key(cell) in self._finished:
            return True
        wanted = f"tags.`{CELL_TAG}` = '{cell_key(cell)}' and attributes.status = 'FINISHED'"
        return len(self.client.search_runs([self.experiment], wanted, max_results=1)) > 0

    def _log_cell(self, cell: Cell, run_id: str | None, logged: Set[tuple[str, int]]) -> None:
        from mlflow.entities import Param, RunTag

        try:
            found = read_cell(cell, self.store)
        except Exception as error:
            # Not MLflow's fault, and no reason to lose the other cells.
            self.report(f"{cell.label} is not logged: {type(error).__name__}: {error}")
            if run_id is not None:
                self.client.set_terminated(run_id, "FAILED")
            return
        for note in found.notes:
            self.report(note)
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


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
