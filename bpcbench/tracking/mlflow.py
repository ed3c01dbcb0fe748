"""The MLflow experiment of one suite: a run per invocation, below it a run per line of the table and a run per cell.

Telemetry is off before MLflow is imported. Whoever writes holds a lock of the store, so that two invocations log a cell
once. Summaries are rewritten in place when results change, so that their addresses stay.
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
from typing import Any, Literal

from bpcbench.store.address import digest
from bpcbench.store.layout import SUITE, SUITES
from bpcbench.store.locks import Busy
from bpcbench.store.manifest import CellRecord, DatasetRecord, Manifest, suite_folder
from bpcbench.store.provenance import git_hash, machine, versions
from bpcbench.store.runs import FailureRecord
from bpcbench.store.store import Store
from bpcbench.tracking.cell import CellRun, Point, cell_params, read_cell
from bpcbench.tracking.location import ARTIFACTS, named_server, quiet_environment, tracking_uri
from bpcbench.tracking.names import (
    CELL_TAG,
    DIGEST_TAG,
    GROUP_TAG,
    KIND_TAG,
    NAME_TAG,
    NOTE_TAG,
    PARENT_TAG,
    PROCESS_TAG,
    RESULTS_TAG,
    allowed,
    cell_name,
    group_key,
    group_name,
    place,
    varying,
)
from bpcbench.tracking.pictures import coresets_of, figures_of
from bpcbench.tracking.summary import SummaryRun, summaries
from bpcbench.tracking.views import saved_views

BATCH = 1000
OPENING_SECONDS = 120.0
ARTIFACT_SCHEME = "mlflow-artifacts:"
"""Artifact addresses are relative to the folder that the server is given, so that a store can be moved."""
_TAG_LENGTH = 5000
_NOTE_LENGTH = 7500
_FAILED_PREFIX = "failed."
PAGE = "report.html"


@dataclass(frozen=True)
class Story:
    """What the run of an invocation tells: the table in Markdown, further texts by file name, and the report's page."""

    table: str
    files: Mapping[str, str] = field(default_factory=dict)
    page: Callable[[], str] | None = None
    """Called last, because it takes the longest."""


@dataclass
class Book:
    """The MLflow experiment of one suite. `progress` is called after every run that is written.

    Without `paged`, the run of an invocation does without the report's page: it may take a server too long.
    """

    manifest: Manifest
    store: Store
    client: Any = None
    experiment: str = ""
    parent: str = ""
    report: Callable[[str], None] = print
    progress: Callable[[], None] = lambda: None
    paged: bool = True
    _finished: dict[str, str] = field(default_factory=dict)
    _failed: dict[str, list[str]] = field(default_factory=dict)
    _strangers: dict[str, str] = field(default_factory=dict)
    """The digests of finished cells that were logged for other manifests only, by the id of the run."""
    _summaries: dict[str, tuple[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._digest = self.manifest.digest
        self._axes = varying(self.manifest)

    def open(self) -> Book:
        """Connect, creating the database and the experiment if they are absent; one process at a time."""
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
        uri = tracking_uri(self.store.root)
        import logging

        from mlflow import MlflowClient

        logging.getLogger("alembic").setLevel(logging.WARNING)
        self.client = MlflowClient(tracking_uri=uri)
        name = self.manifest.name
        experiment = self.client.get_experiment_by_name(name)
        if experiment is not None and experiment.lifecycle_stage == "deleted":
            self.client.restore_experiment(experiment.experiment_id)
        if experiment is None:
            location = f"{ARTIFACT_SCHEME}/{digest(name)[:12]}" if self._local else None
            self.experiment = self.client.create_experiment(name, artifact_location=location)
        else:
            self.experiment = experiment.experiment_id
        self._describe({} if experiment is None else experiment.tags)
        self._scan()
        return self

    @property
    def _local(self) -> bool:
        """Whether MLflow's database lies in the store, and its artifacts beside it."""
        return named_server() is None

    def _describe(self, present: Mapping[str, str]) -> None:
        """Tag the experiment with the suite's description, its first metric and its saved views."""
        manifest = self.manifest
        tags = {
            NOTE_TAG: manifest.description,
            "mlflow.experimentKind": "custom_model_development",
            "mlflow.experiment.primaryMetric.name": allowed(manifest.shown[0]) if manifest.shown else "",
            **dict(view.tag for view in saved_views(manifest)),
        }
        for name, value in tags.items():
            if value and present.get(name) != value:
                self.client.set_experiment_tag(self.experiment, name, value)

    def _scan(self) -> None:
        """Learn which runs there are, and end the runs of invocations that were killed."""
        dead, unfinished = set(), []
        for run in self._runs():
            tags, run_id, status = run.data.tags, run.info.run_id, run.info.status
            if CELL_TAG in tags:
                if status == "FINISHED":
                    self._finished[tags[CELL_TAG]] = run_id
                    if self._digest not in tags.get(DIGEST_TAG, "").split():
                        self._strangers[tags[CELL_TAG]] = tags.get(DIGEST_TAG, "")
                elif status in ("FAILED", "KILLED"):
                    self._failed.setdefault(tags[CELL_TAG], []).append(run_id)
                else:
                    unfinished.append((run_id, tags.get(PARENT_TAG)))
            elif GROUP_TAG in tags:
                self._summaries[tags[GROUP_TAG]] = (run_id, tags.get(RESULTS_TAG, ""))
            elif status == "RUNNING" and PROCESS_TAG in tags:
                host, _, process = tags[PROCESS_TAG].rpartition(":")
                if host == socket.gethostname() and not _alive(int(process)):
                    self.client.set_terminated(run_id, "KILLED")
                    dead.add(run_id)
        for run_id, parent in unfinished:
            # A cell that a killed invocation had begun gets a run of its own when it is done.
            if parent in dead:
                self.client.delete_run(run_id)

    def _runs(self) -> Iterator[Any]:
        token = None
        while True:
            page = self.client.search_runs([self.experiment], max_results=1000, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def missing(self) -> list[CellRecord]:
        """Return the cells whose scores are in the store but not in MLflow."""
        complete = (c for c in self.manifest.cells if c.scores and all(self.store.has(a) for a in c.scores.values()))
        return [cell for cell in complete if cell.key not in self._finished]

    def adopt(self) -> None:
        """Note in the runs of cells that other manifests share with this one that they belong to it too."""
        from mlflow.entities import RunTag

        for cell in self.manifest.cells:
            if cell.key in self._strangers:
                digests = f"{self._strangers.pop(cell.key)} {self._digest}".strip()
                self.client.log_batch(self._finished[cell.key], tags=[RunTag(DIGEST_TAG, digests[-_TAG_LENGTH:])])

    def forget(self, keys: Iterable[str]) -> None:
        """Delete the runs of cells that are being computed again, so that a cell has one run."""
        for key in keys:
            self._forget_failures(key)
            if key in self._finished:
                self.client.delete_run(self._finished.pop(key))

    def _forget_failures(self, key: str) -> None:
        for run_id in self._failed.pop(key, ()):
            self.client.delete_run(run_id)

    def begin(self) -> None:
        """Start the run of this invocation."""
        suite = self.manifest
        tags = {
            KIND_TAG: "suite",
            DIGEST_TAG: self._digest,
            NAME_TAG: f"{suite.name} {time.strftime('%Y-%m-%d %H:%M:%S')}",
            PROCESS_TAG: f"{socket.gethostname()}:{os.getpid()}",
            "bpcbench.commit": git_hash() or "wheel",
            NOTE_TAG: suite.description,
        }
        environment = {name: str(value) for name, value in {**versions(), **machine()}.items()}
        tags["environment"] = ", ".join(f"{name} {value}" for name, value in environment.items())
        run = self.client.create_run(self.experiment, tags=tags)
        self.parent = run.info.run_id
        for dataset in suite.datasets:
            self._log_dataset(self.parent, dataset.label)
        written = self.store.root / SUITES / suite_folder(suite.name) / self._digest / SUITE
        files = {"environment.json": json.dumps(environment, indent=1).encode()}
        self.log_files(self.parent, {**files, **({SUITE: written.read_bytes()} if written.is_file() else {})})

    def start_cell(self, cell: CellRecord, began: int | None = None) -> str:
        """Create the run of a cell and return its id."""
        tags = {
            KIND_TAG: "cell",
            DIGEST_TAG: self._digest,
            CELL_TAG: cell.key,
            NAME_TAG: cell_name(cell, self._axes),
            **({PARENT_TAG: self.parent} if self.parent else {}),
        }
        run_id: str = self.client.create_run(self.experiment, began, tags).info.run_id
        return run_id

    def log_points(self, run_id: str, points: Sequence[Point]) -> None:
        """Add points of curves: (name, value, step)."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value, step in points]
        for start in range(0, len(metrics), BATCH):
            self.client.log_batch(run_id, metrics=metrics[start : start + BATCH])

    def log_cell(
        self,
        cell: CellRecord,
        run_id: str | None = None,
        logged: Set[tuple[str, int]] = frozenset(),
        began: int = 0,
    ) -> None:
        """Log a finished cell from the store and end its run; points that were followed live are not repeated."""
        try:
            with self.store.turn(f"mlflow:{cell.key}"):
                if not self._has(cell):
                    self._log_cell(cell, run_id, logged, began)
                elif run_id is not None:
                    self.client.delete_run(run_id)
        except Busy:
            # Another invocation logs it at this very moment.
            if run_id is not None:
                self.client.delete_run(run_id)
        self.progress()

    def _has(self, cell: CellRecord) -> bool:
        if cell.key in self._finished:
            return True
        wanted = f"tags.`{CELL_TAG}` = '{cell.key}' and attributes.status = 'FINISHED'"
        return len(self.client.search_runs([self.experiment], wanted, max_results=1)) > 0

    def _log_cell(self, cell: CellRecord, run_id: str | None, logged: Set[tuple[str, int]], began: int) -> None:
        try:
            record = read_cell(cell, self.store)
            files = figures_of(cell, self.store)
        except Exception as error:
            # Not MLflow's fault, and no reason to lose the other cells.
            self.report(f"{cell.label} is not logged: {type(error).__name__}: {error}")
            if run_id is not None:
                self.client.set_terminated(run_id, "FAILED")
            return
        run_id = run_id or self.start_cell(cell, record.began)
        self._write_cell(run_id, record, logged)
        self.log_files(run_id, files)
        self.client.set_terminated(run_id, "FINISHED", max(record.ended, began))
        self._finished[cell.key] = run_id
        self._forget_failures(cell.key)

    def _write_cell(self, run_id: str, record: CellRun, logged: Set[tuple[str, int]]) -> None:
        from mlflow.entities import Metric, Param, RunTag

        params = [Param(name, value[:6000]) for name, value in record.params.items()]
        tags = [RunTag(name, value[:_TAG_LENGTH]) for name, value in record.tags.items()]
        points = [*(p for p in record.points if (p[0], p[2]) not in logged)]
        points += [(name, value, 0) for name, value in record.metrics.items()]
        metrics = [Metric(name, value, record.ended, step) for name, value, step in points]
        # One transaction for all of it, where it fits.
        room = BATCH - len(params[:100]) - len(tags[:100])
        self.client.log_batch(run_id, metrics=metrics[:room], params=params[:100], tags=tags[:100])
        for start in range(room, len(metrics), BATCH):
            self.client.log_batch(run_id, metrics=metrics[start : start + BATCH])

    def log_failures(
        self, reasons: Mapping[str, str], failures: Iterable[FailureRecord], open_runs: Mapping[str, str]
    ) -> set[str]:
        """Log the cells that a stage which failed or was skipped keeps without a result; return their keys.

        `reasons` are messages by the id of the stage; `failures` hold the logs; `open_runs` are runs of cells that were
        begun. A cell that failed before has one run: the latest.
        """
        from mlflow.entities import Param, RunTag

        logged = set()
        records = {failure.stage: failure for failure in failures}
        reasons = {**{stage: failure.message for stage, failure in records.items()}, **reasons}
        for cell in self.manifest.cells if reasons else ():
            stages = [*cell.stages, *(address.stage for address in cell.scores.values())]
            stage = next((each for each in stages if each in reasons), None)
            if stage is None or cell.key in self._finished or not cell.scores:
                continue
            self._forget_failures(cell.key)
            run_id = open_runs.get(cell.key) or self.start_cell(cell)
            tags = {"stage": stage, "reason": reasons[stage]}
            if stage in records and records[stage].log:
                tags["log"] = records[stage].log
            params = [Param(name, value) for name, value in cell_params(cell).items()]
            marks = [RunTag(f"{_FAILED_PREFIX}{name}", value[:_TAG_LENGTH]) for name, value in tags.items()]
            self.client.log_batch(run_id, params=params, tags=marks)
            self.client.set_terminated(run_id, "FAILED")
            self._failed.setdefault(cell.key, []).append(run_id)
            logged.add(cell.key)
            self.progress()
        return logged

    def changed_summaries(self) -> list[SummaryRun]:
        """Return the lines of the table that MLflow lacks or shows with other numbers."""
        every = summaries(self.manifest, self.store)
        return [one for one in every if self._summaries.get(self._key(one), ("", ""))[1] != one.results]

    def _key(self, summary: SummaryRun) -> str:
        return group_key(self._digest, summary.group)

    def log_summary(self, summary: SummaryRun) -> None:
        """Write a line of the table: into the run that it has, or into a new one."""
        from mlflow.entities import Metric, Param, RunTag

        key = self._key(summary)
        run_id = self._summaries.get(key, ("", ""))[0]
        images = coresets_of(summary, self.manifest, self.store)
        if not run_id:
            tags = {
                KIND_TAG: "summary",
                DIGEST_TAG: self._digest,
                GROUP_TAG: key,
                NAME_TAG: group_name(summary.group, self._axes),
            }
            run_id = self.client.create_run(self.experiment, summary.began, tags).info.run_id
            self._log_dataset(run_id, summary.group.dataset)
        now = int(time.time() * 1000)
        marks = {**summary.tags, **({PARENT_TAG: self.parent} if self.parent else {})}
        if images:
            marks["mlflow.loggedImages"] = "True"
        self.client.log_batch(
            run_id,
            metrics=[Metric(name, value, now, 0) for name, value in summary.metrics.items()][:BATCH],
            params=[Param(name, value) for name, value in place(summary.group).items()],
            tags=[RunTag(name, value[:_TAG_LENGTH]) for name, value in marks.items()][:100],
        )
        self.log_files(run_id, images)
        self.client.set_terminated(run_id, "FINISHED", summary.ended)
        self._summaries[key] = (run_id, summary.results)
        self.progress()

    def _log_dataset(self, run_id: str, label: str) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        for record in self.manifest.datasets:
            if record.label == label:
                source = f"{record.plugin.package}:{record.plugin.name}"
                known = Dataset(record.label, record.fingerprint[:32] or "unknown", "bpcbench", source, _schema(record))
                context = InputTag("mlflow.data.context", self.manifest.split)
                self.client.log_inputs(run_id, [DatasetInput(known, [context])])

    def conclude(self, *, ok: bool, story: Callable[[], Story] | None = None) -> None:
        """Bring the summaries up to date, tell the story of the invocation and end its run."""
        changed = self.changed_summaries()
        if changed and not self.parent:
            self.begin()
        try:
            with self.store.turn(f"mlflow:{self._digest}"):
                for summary in changed:
                    self.log_summary(summary)
        except Busy:
            # Another invocation of the same manifest writes them.
            pass
        if self.parent:
            told = story() if story is not None else None
            if told is not None:
                self._tell(told)
            self.end(self.parent, "FINISHED" if ok else "FAILED")
            if told is not None and told.page is not None and self.paged:
                self.progress()
                self.log_files(self.parent, {PAGE: told.page().encode()})

    def _tell(self, story: Story) -> None:
        from mlflow.entities import Metric, RunTag

        now = int(time.time() * 1000)
        done = sum(cell.key in self._finished for cell in self.manifest.cells)
        headline = {"cells": float(done), **self._best()}
        # The table first: MLflow folds all but the beginning.
        note = f"{_shortened(story.table)}\n\n{self.manifest.description}".strip()
        self.client.log_batch(
            self.parent,
            metrics=[Metric(allowed(name), value, now, 0) for name, value in headline.items()][:BATCH],
            tags=[RunTag(NOTE_TAG, note)],
        )
        texts = {"table.md": story.table, **story.files}
        self.log_files(self.parent, {name: text.encode() for name, text in texts.items()})

    def _best(self) -> dict[str, float]:
        """Return the best mean of every metric that the table shows, in each block of it."""
        best: dict[str, float] = {}
        for summary in summaries(self.manifest, self.store):
            block = f"best/{summary.group.dataset} ipc {summary.group.ipc}"
            for name in map(allowed, self.manifest.shown):
                if summary.tags.get(f"rank.{name}", "").startswith("1") and name in summary.metrics:
                    best.setdefault(f"{block}/{name}", summary.metrics[name])
        return best

    def log_files(self, run_id: str, files: Mapping[str, bytes]) -> None:
        """Keep files as artifacts of a run; in the store's own MLflow they are written into place."""
        if not files:
            return
        if self._local:
            folder = self.store.root / ARTIFACTS / digest(self.manifest.name)[:12] / run_id / "artifacts"
            _write_files(folder, files)
            return
        with tempfile.TemporaryDirectory() as temporary:
            _write_files(Path(temporary), files)
            # One by one: MLflow's pool of threads for whole folders would keep the process from ending.
            for name in files:
                parent = str(Path(name).parent)
                self.client.log_artifact(run_id, str(Path(temporary) / name), None if parent == "." else parent)

    def end(self, run_id: str, status: Literal["FINISHED", "FAILED", "KILLED"]) -> None:
        """End a run that is not a finished cell."""
        self.client.set_terminated(run_id, status)


def _schema(dataset: DatasetRecord) -> str:
    sizes = ", ".join(f"{split} {size:,}" for split, size in dataset.sizes.items())
    shape = "x".join(map(str, dataset.shape))
    return json.dumps({"shape": shape, "classes": dataset.classes, "sizes": sizes})


def _shortened(table: str) -> str:
    """Return as many whole lines of a text as a note may have."""
    if len(table) <= _NOTE_LENGTH:
        return table
    return table[:_NOTE_LENGTH].rpartition("\n")[0] + "\n\nThe whole table is the artifact table.md."


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def sync(
    manifest: Manifest,
    store: Store,
    *,
    story: Callable[[], Story] | None = None,
    failures: Sequence[FailureRecord] = (),
    report: Callable[[str], None] = print,
) -> int:
    """Add every finished cell that MLflow lacks, and bring the summaries up to date; return how many cells."""
    from tqdm import tqdm

    book = Book(manifest, store, report=report).open()
    book.adopt()
    missing, changed = book.missing(), book.changed_summaries()
    if missing or changed:
        book.begin()
        with tqdm(desc=manifest.name, unit="run", total=len(missing) + len(changed), disable=None, delay=2) as bar:
            book.progress = _Ticking(bar)
            for cell in missing:
                book.log_cell(cell)
            book.log_failures({}, failures, {})
            book.conclude(ok=True, story=story)
    return len(missing)


@dataclass(frozen=True)
class _Ticking:
    bar: Any

    def __call__(self) -> None:
        self.bar.update()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
