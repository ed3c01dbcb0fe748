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
from bpcbench.store.store import Store
from bpcbench.tracking.cell import CellRun, Point, cell_params, read_cell
from bpcbench.tracking.failures import LOG, FailedCell, end_of_log
from bpcbench.tracking.location import ARTIFACTS, named_server, quiet_environment, tracking_uri
from bpcbench.tracking.names import (
    ATTACHED_TAG,
    CELL_TAG,
    DIGEST_TAG,
    FAILED,
    GROUP_TAG,
    KIND_TAG,
    NAME_TAG,
    NOTE_TAG,
    PARENT_TAG,
    PROCESS_TAG,
    RESULTS_TAG,
    TOLD_TAG,
    allowed,
    cell_name,
    dated,
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


@dataclass(frozen=True)
class Story:
    """What the run of an invocation tells: the table in Markdown, further texts by file name, and what is attached.

    `attached` makes further files; it is called last, because it takes the longest. `basis` names what they are made
    from beside the table: where it differs, they have to be made again.
    """

    table: str
    files: Mapping[str, str] = field(default_factory=dict)
    attached: Callable[[], Mapping[str, str]] | None = None
    basis: str = ""

    @property
    def told(self) -> str:
        """A digest of the table and the texts."""
        return digest([self.table, sorted(self.files.items())])[:12]

    @property
    def attachments(self) -> str:
        """A digest of what the attached files are made from."""
        return digest([self.told, self.basis])[:12]


@dataclass(frozen=True)
class _Parent:
    """A run of an invocation of these settings that is there; times are milliseconds since 1970."""

    run_id: str
    began: int
    ended: int | None
    told: str
    attached: str


@dataclass
class Book:
    """The MLflow experiment of one suite. `progress` is called after every run that is written.

    Without `attaching`, the run of an invocation does without the files that take long: they may hold a server up too
    long. `over` are the processes, as in `PROCESS_TAG`, of invocations that have ended, whatever MLflow shows of them.
    """

    manifest: Manifest
    store: Store
    client: Any = None
    experiment: str = ""
    parent: str = ""
    report: Callable[[str], None] = print
    progress: Callable[[], None] = lambda: None
    attaching: bool = True
    over: Set[str] = frozenset()
    _finished: dict[str, str] = field(default_factory=dict)
    _failed: dict[str, list[str]] = field(default_factory=dict)
    _strangers: dict[str, str] = field(default_factory=dict)
    """The digests of finished cells that were logged for other manifests only, by the id of the run."""
    _summaries: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    """The id, the results and the start of the run of a line, by its key."""
    _reasons: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The stage and the reason that the run of a failed cell shows, by the key of the cell."""
    _parents: list[_Parent] = field(default_factory=list)
    _renamed: dict[str, str] = field(default_factory=dict)
    """The names that cells and lines must have so that those of other settings are told apart, where they differ."""

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
        dead, living, unfinished = set(), set(), []
        own = {cell.key for cell in self.manifest.cells}
        for run in self._runs():
            tags, run_id, status = run.data.tags, run.info.run_id, run.info.status
            if CELL_TAG in tags:
                key = tags[CELL_TAG]
                if status == "FINISHED":
                    self._finished[key] = run_id
                    if self._digest not in tags.get(DIGEST_TAG, "").split():
                        self._strangers[key] = tags.get(DIGEST_TAG, "")
                elif status in ("FAILED", "KILLED"):
                    self._failed.setdefault(key, []).append(run_id)
                    if f"{FAILED}stage" in tags:
                        self._reasons[key] = tags[f"{FAILED}stage"], tags.get(f"{FAILED}reason", "")
                else:
                    unfinished.append((run_id, key, tags.get(PARENT_TAG)))
            elif GROUP_TAG in tags:
                self._summaries[tags[GROUP_TAG]] = (run_id, tags.get(RESULTS_TAG, ""), run.info.start_time)
            elif PROCESS_TAG in tags:
                if status == "RUNNING":
                    host, _, process = tags[PROCESS_TAG].rpartition(":")
                    if host == socket.gethostname() and not _alive(int(process)):
                        self.client.set_terminated(run_id, status := "KILLED")
                        dead.add(run_id)
                    else:
                        living.add(run_id)
                if tags.get(DIGEST_TAG) == self._digest and (status != "RUNNING" or tags[PROCESS_TAG] in self.over):
                    told, attached = tags.get(TOLD_TAG, ""), tags.get(ATTACHED_TAG, "")
                    self._parents.append(
                        _Parent(run_id, run.info.start_time, run.info.end_time or None, told, attached)
                    )
            if CELL_TAG in tags or GROUP_TAG in tags:
                self._judge_name(run_id, tags, own)
        for run_id, key, parent in unfinished:
            # A cell that a killed invocation had begun gets a run of its own when it is done.
            if parent in dead or (key in self._finished and parent not in living):
                self.client.delete_run(run_id)

    def _judge_name(self, run_id: str, tags: Mapping[str, str], own: Set[str]) -> None:
        name, digests = tags.get(NAME_TAG, ""), tags.get(DIGEST_TAG, "").split()
        mine = not digests or self._digest in digests or tags.get(CELL_TAG) in own
        if (right := dated(name, None if mine else digests[-1])) != name:
            self._renamed[run_id] = right

    def _runs(self) -> Iterator[Any]:
        token = None
        while True:
            page = self.client.search_runs([self.experiment], max_results=1000, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    @property
    def finished(self) -> Set[str]:
        """The keys of the cells that have a finished run."""
        return self._finished.keys()

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

    def take_up(self) -> None:
        """Go on with the run of the latest invocation if it never told its story, else start one."""
        if (latest := self._latest()) is not None and not latest.told:
            self.parent = latest.run_id
        else:
            self.begin()

    def _latest(self) -> _Parent | None:
        return max(self._parents, key=lambda parent: parent.began, default=None)

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
        self._log_dataset(run_id, cell.group.dataset)
        self.log_files(run_id, files)
        # A run that was followed began with the coreset, and then waited: it lasts as long as the others all the same.
        self.client.set_terminated(run_id, "FINISHED", (began or record.began) + record.ended - record.began)
        self._finished[cell.key] = run_id
        self._forget_failures(cell.key)

    def _write_cell(self, run_id: str, record: CellRun, logged: Set[tuple[str, int]]) -> None:
        from mlflow.entities import Metric, Param, RunTag

        params = [Param(name, value[:6000]) for name, value in record.params.items()]
        tags = [RunTag(name, value[:_TAG_LENGTH]) for name, value in record.tags.items()]
        # MLflow lists metrics in the order in which it first saw them.
        shown = [allowed(name) for name in self.manifest.shown]
        names = sorted(record.metrics, key=lambda name: shown.index(name) if name in shown else len(shown))
        points = [(name, record.metrics[name], 0) for name in names]
        points += [p for p in record.points if (p[0], p[2]) not in logged]
        metrics = [Metric(name, value, record.ended, step) for name, value, step in points]
        # One transaction for all of it, where it fits.
        room = BATCH - len(params[:100]) - len(tags[:100])
        self.client.log_batch(run_id, metrics=metrics[:room], params=params[:100], tags=tags[:100])
        for start in range(room, len(metrics), BATCH):
            self.client.log_batch(run_id, metrics=metrics[start : start + BATCH])

    def explains(self, failed: FailedCell) -> bool:
        """Return whether the run of a failed cell is there and gives this reason."""
        return self._reasons.get(failed.cell.key) == (failed.stage, failed.reason[:_TAG_LENGTH])

    def log_failure(self, failed: FailedCell, run_id: str | None = None) -> None:
        """Log a cell that failed, in a run that was begun or in a new one; an earlier failure of it is replaced."""
        from mlflow.entities import Param, RunTag

        cell = failed.cell
        self._forget_failures(cell.key)
        run_id = run_id or self.start_cell(cell)
        tags = {"stage": failed.stage, "reason": failed.reason, **({"log": failed.log} if failed.log else {})}
        params = [Param(name, value) for name, value in cell_params(cell).items()]
        marks = [RunTag(f"{FAILED}{name}", value[:_TAG_LENGTH]) for name, value in tags.items()]
        self.client.log_batch(run_id, params=params, tags=marks)
        if content := end_of_log(self.store, failed.log):
            self.log_files(run_id, {LOG: content})
        self.client.set_terminated(run_id, "FAILED")
        self._failed.setdefault(cell.key, []).append(run_id)
        self.progress()

    def changed_summaries(self) -> list[SummaryRun]:
        """Return the lines of the table that MLflow lacks or shows with other numbers."""
        every = summaries(self.manifest, self.store)
        return [one for one in every if self._summaries.get(self._key(one), ("", "", 0))[1] != one.results]

    def _key(self, summary: SummaryRun) -> str:
        return group_key(self._digest, summary.group)

    def log_summary(self, summary: SummaryRun) -> None:
        """Write a line of the table: into the run that it has, or into a new one."""
        from mlflow.entities import Metric, Param, RunTag

        key = self._key(summary)
        run_id, _, began = self._summaries.get(key, ("", "", summary.ended - summary.milliseconds))
        images = coresets_of(summary, self.manifest, self.store)
        if not run_id:
            tags = {
                KIND_TAG: "summary",
                DIGEST_TAG: self._digest,
                GROUP_TAG: key,
                NAME_TAG: group_name(summary.group, self._axes),
            }
            run_id = self.client.create_run(self.experiment, began, tags).info.run_id
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
        # The start of a run cannot be changed; its duration is what counts.
        self.client.set_terminated(run_id, "FINISHED", began + summary.milliseconds)
        self._summaries[key] = (run_id, summary.results, began)
        self.progress()

    def _log_dataset(self, run_id: str, label: str) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        for record in self.manifest.datasets:
            if record.label == label:
                source = f"{record.plugin.package}:{record.plugin.name}"
                known = Dataset(record.label, record.fingerprint[:32] or "unknown", "bpcbench", source, _schema(record))
                context = InputTag("mlflow.data.context", self.manifest.split)
                self.client.log_inputs(run_id, [DatasetInput(known, [context])])

    def distinguish(self) -> None:
        """Mark the names of cells and lines of other settings as older, and those of these settings as current."""
        for run_id, name in self._renamed.items():
            self.client.set_tag(run_id, NAME_TAG, name)
        self._renamed.clear()

    def conclude(
        self, *, ok: bool, ended: int | None = None, story: Callable[[], Story] | None = None, refresh: bool = False
    ) -> None:
        """Bring the summaries up to date, tell the story of the invocation and end its run.

        Without a run of its own, an invocation completes the latest one if that lacks its story; with `refresh`, also
        if it shows another one. `ended` is when the invocation of the latest run ended, if that is known.
        """
        changed = self.changed_summaries()
        if changed and not self.parent:
            self.take_up()
        try:
            with self.store.turn(f"mlflow:{self._digest}"):
                for summary in changed:
                    self.log_summary(summary)
        except Busy:
            # Another invocation of the same manifest writes them.
            pass
        latest = self._latest()
        if not self.parent and latest is not None and (refresh or not latest.told):
            self.parent = latest.run_id
        if not self.parent:
            return
        before = next((one for one in self._parents if one.run_id == self.parent), None)
        told = story() if story is not None else None
        if told is not None and (before is None or before.told != told.told):
            self._tell(told)
        status: Literal["FINISHED", "FAILED"] = "FINISHED" if ok else "FAILED"
        if before is None:
            self.end(self.parent, status)
        elif not before.told:
            end = ended or before.ended
            self.client.set_terminated(self.parent, status, end and max(before.began, end))
        if told is None or told.attached is None or not self.attaching:
            return
        if before is None or before.attached != told.attachments:
            self.progress()
            self.log_files(self.parent, {name: text.encode() for name, text in told.attached().items()})
            self.client.set_tag(self.parent, ATTACHED_TAG, told.attachments)

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
        # Last: it says that nothing of it is missing.
        self.client.set_tag(self.parent, TOLD_TAG, story.told)

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


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
