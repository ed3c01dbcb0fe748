"""The MLflow experiment of one suite: one parent run per invocation, one child run per cell.

Telemetry is off before MLflow is imported. Whoever writes holds a lock of the store, so that two invocations log a cell
once.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bpcbench.errors import StoreError
from bpcbench.store.address import digest
from bpcbench.store.layout import SUITE
from bpcbench.store.locks import Busy
from bpcbench.store.manifest import CellRecord, Manifest
from bpcbench.store.provenance import git_hash, machine, versions
from bpcbench.store.store import Store
from bpcbench.tracking.cell import Point, names, read_cell, run_name
from bpcbench.tracking.pictures import Pictures

BATCH = 1000
OPENING_SECONDS = 120.0
ARTIFACTS = "mlflow-artifacts"
ARTIFACT_SCHEME = "mlflow-artifacts:"
"""Artifact addresses are relative to what the server is told, so that a store can be moved."""
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


def quiet_environment() -> None:
    """Switch telemetry off and keep MLflow from waiting minutes for a server that is not there."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)


@dataclass
class Book:
    """The MLflow experiment of one suite."""

    manifest: Manifest
    store: Store
    client: Any = None
    experiment: str = ""
    parent: str = ""
    report: Callable[[str], None] = print
    _finished: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pictures = Pictures(self.store)

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
        name = self.manifest.name
        found = self.client.get_experiment_by_name(name)
        if found is not None and found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        if found is None:
            place = f"{ARTIFACT_SCHEME}/{digest(name)[:12]}" if self._local else None
            self.experiment = self.client.create_experiment(name, artifact_location=place)
        else:
            self.experiment = found.experiment_id
        self._finished = {run.data.tags[CELL_TAG]: run.info.run_id for run in self._runs("FINISHED", CELL_TAG)}
        self._bury_the_dead()
        return self

    @property
    def _local(self) -> bool:
        """Whether MLflow's database lies in the store, and its artifacts beside it."""
        return not os.environ.get("MLFLOW_TRACKING_URI")

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

    def missing(self) -> list[CellRecord]:
        """Return the cells whose scores are in the store but not in MLflow."""
        complete = (c for c in self.manifest.cells if c.scores and all(self.store.has(a) for a in c.scores.values()))
        return [cell for cell in complete if cell.key not in self._finished]

    def forget(self, keys: Iterable[str]) -> None:
        """Delete the runs of cells that are being made again, so that a cell has one run."""
        for key in keys:
            if key in self._finished:
                self.client.delete_run(self._finished.pop(key))

    def begin(self) -> None:
        """Start the parent run of this invocation."""
        suite = self.manifest
        tags = {
            "mlflow.runName": f"{suite.name} {time.strftime('%Y-%m-%d %H:%M:%S')}",
            PROCESS_TAG: f"{socket.gethostname()}:{os.getpid()}",
            "bpcbench.commit": git_hash() or "wheel",
            "mlflow.note.content": suite.description,
        }
        tags |= {f"environment.{name}": str(value) for name, value in {**versions(), **machine()}.items()}
        run = self.client.create_run(self.experiment, tags=tags)
        self.parent = run.info.run_id
        self.log_files(self.parent, {SUITE: json.dumps(dict(suite.document), indent=1).encode()})

    def start_cell(self, cell: CellRecord, began: int | None = None) -> str:
        """Create the child run of a cell and return its id."""
        tags = {**names(cell), CELL_TAG: cell.key, "mlflow.runName": run_name(cell)}
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

    def log_cell(self, cell: CellRecord, run_id: str | None = None, logged: Set[tuple[str, int]] = frozenset()) -> None:
        """Log a finished cell from the store and end its run; points that were followed live are not repeated."""
        try:
            with self.store.turn(f"mlflow:{cell.key}"):
                if not self._has(cell):
                    self._log_cell(cell, run_id, logged)
                elif run_id is not None:
                    self.client.delete_run(run_id)
        except Busy:
            # Another invocation logs it at this very moment.
            if run_id is not None:
                self.client.delete_run(run_id)

    def _has(self, cell: CellRecord) -> bool:
        if cell.key in self._finished:
            return True
        wanted = f"tags.`{CELL_TAG}` = '{cell.key}' and attributes.status = 'FINISHED'"
        return len(self.client.search_runs([self.experiment], wanted, max_results=1)) > 0

    def _log_cell(self, cell: CellRecord, run_id: str | None, logged: Set[tuple[str, int]]) -> None:
        from mlflow.entities import Metric, Param, RunTag

        try:
            record = read_cell(cell, self.store)
            files = self._pictures.of(cell)
        except Exception as error:
            # Not MLflow's fault, and no reason to lose the other cells.
            self.report(f"{cell.label} is not logged: {type(error).__name__}: {error}")
            if run_id is not None:
                self.client.set_terminated(run_id, "FAILED")
            return
        run_id = run_id or self.start_cell(cell, record.began)
        params = [Param(name, value[:6000]) for name, value in record.params.items()]
        tags = [RunTag(name, value[:5000]) for name, value in record.tags.items()]
        points = [*(p for p in record.points if (p[0], p[2]) not in logged)]
        points += [(name, value, 0) for name, value in record.metrics.items()]
        metrics = [Metric(name, value, record.ended, step) for name, value, step in points]
        # One transaction for all of it, where it fits.
        self.client.log_batch(run_id, metrics=metrics[:BATCH], params=params[:100], tags=tags[:100])
        for start in range(BATCH, len(metrics), BATCH):
            self.client.log_batch(run_id, metrics=metrics[start : start + BATCH])
        self.log_files(run_id, files)
        self.client.set_terminated(run_id, "FINISHED", record.ended)
        self._finished[cell.key] = run_id

    def log_files(self, run_id: str, files: Mapping[str, bytes]) -> None:
        """Keep files as artifacts of a run; in the store's own MLflow they are written into place."""
        if not files:
            return
        if self._local:
            place = self.store.root / ARTIFACTS / digest(self.manifest.name)[:12] / run_id / "artifacts"
            _write_files(place, files)
            return
        with tempfile.TemporaryDirectory() as folder:
            _write_files(Path(folder), files)
            self.client.log_artifacts(run_id, folder)

    def end(self, run_id: str, *, ok: bool) -> None:
        """End a run that is not a finished cell."""
        self.client.set_terminated(run_id, "FINISHED" if ok else "FAILED")


def _write_files(place: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def sync(manifest: Manifest, store: Store, report: Callable[[str], None] = print) -> int:
    """Add every finished cell that MLflow lacks; return how many."""
    from tqdm import tqdm

    book = Book(manifest, store, report=report).open()
    missing = book.missing()
    if missing:
        book.begin()
        for cell in tqdm(missing, desc=manifest.name, unit="cell", disable=None):
            book.log_cell(cell)
        book.end(book.parent, ok=True)
    return len(missing)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
