"""Execute a plan: write the manifest, run the stages, notify listeners, and record the run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bpcbench.errors import Unfinished, UserError, reason
from bpcbench.store.runs import FailureRecord, Journal
from bpcbench.text import to_stderr

if TYPE_CHECKING:
    from bpcbench.api import Engine
    from bpcbench.planning.plan import Plan
    from bpcbench.planning.planner import PlannedStage
    from bpcbench.registry.discovery import Registry
    from bpcbench.running.queue import Outcome
    from bpcbench.running.run import Failure, Result
    from bpcbench.store.manifest import Manifest, Purpose
    from bpcbench.store.store import Store
    from bpcbench.tracking.mlflow import Story


@dataclass(frozen=True, eq=False)
class Prepared:
    """A plan that is ready to run, with the plugins, the store's folder (which may not exist yet) and the data folder.

    `source` and `overrides` are the suite as the user named it, `request` a digest of its content, `command` how to
    run it again. `notes` are findings of planning: splits that evaluators do without, and damaged members of the store.
    """

    registry: Registry
    plan: Plan
    out: Path
    data: Path
    source: str
    overrides: tuple[str, ...]
    request: str
    purpose: Purpose
    command: str
    notes: tuple[str, ...] = ()

    @property
    def store(self) -> Store | None:
        """The store as it is on disk now, or None."""
        from bpcbench.store.store import Store

        return Store.open(self.out, create=False) if (self.out / "store.json").exists() else None


def check_device(prepared: Prepared, *, inline: bool = False, thorough: bool = True) -> None:
    """Raise UserError if stages would run on this machine and it lacks the device; other engines have their own."""
    from bpcbench.errors import UserError
    from bpcbench.running.device import missing_device
    from bpcbench.running.engines import Inline, Local
    from bpcbench.running.gpus import impossible
    from bpcbench.running.run import choose_engine

    device = prepared.plan.suite.device
    engine = choose_engine(prepared.plan.suite.engine, inline=inline)
    here = isinstance(engine, Local | Inline)
    if here and prepared.plan.to_do() and (reason := missing_device(device, thorough=thorough)):
        raise UserError(f"device {device!r} is not available on this machine: {reason}; `auto` uses what there is")
    if isinstance(engine, Local) and prepared.plan.to_do() and (problem := impossible(device, engine.gpus)):
        raise UserError(problem)


def execute(
    prepared: Prepared,
    *,
    jobs: int | None = None,
    inline: bool = False,
    debug: bool = False,
    track: bool = True,
    quiet: bool = False,
    detach: bool = False,
    report: Callable[[str], None] | None = None,
) -> Result:
    """Run the pending stages of a plan; results to be recomputed are removed first."""
    from bpcbench.running.context import checkpoint_interval
    from bpcbench.running.run import choose_engine
    from bpcbench.store.store import Store, check_writable

    plan = prepared.plan
    engine = choose_engine(plan.suite.engine, jobs=jobs, inline=inline or debug)
    if detach and not engine.detached:
        engines = {name: prepared.registry.get("engine", name).cls for name in prepared.registry.names("engine")}
        known = ", ".join(name for name, cls in engines.items() if getattr(cls, "detached", False))
        raise UserError(f"--detach: stages of the engine {engine.name} end with the run (engines that go on: {known})")
    check_device(prepared, inline=inline or debug)
    check_writable(prepared.out)
    checkpoint_interval()
    if track:
        from bpcbench.tracking.location import tracking_uri

        tracking_uri(prepared.out)  # refused before anything is written
    store = prepared.store or Store.open(prepared.out)
    try:
        return _execute(prepared, store, engine, debug=debug, track=track, quiet=quiet, detach=detach, report=report)
    except OSError as error:
        message = f"{reason(error)}; what was finished is in {store.root}, and running again continues"
        raise Unfinished(message) from error


def _execute(
    prepared: Prepared,
    store: Store,
    engine: Engine,
    *,
    debug: bool,
    track: bool,
    quiet: bool,
    detach: bool,
    report: Callable[[str], None] | None,
) -> Result:
    from bpcbench.planning.manifest import manifest_of
    from bpcbench.planning.status import note_families
    from bpcbench.running.progress import Progress
    from bpcbench.running.run import Runner
    from bpcbench.store.manifest import write_manifest

    plan, say = prepared.plan, report or to_stderr
    manifest = manifest_of(
        plan,
        source=prepared.source,
        request=prepared.request,
        purpose=prepared.purpose,
        publications=prepared.registry.published(say),
    )
    folder = write_manifest(store.root, manifest)
    journal = Journal.begin(
        folder,
        command=prepared.command,
        overrides=prepared.overrides,
        request=manifest.request,
        description=manifest.description,
        shown=manifest.shown,
        stale=plan.stale(),
    )
    note_families(store, plan.stages)
    _tidy(plan, store)
    for note in prepared.notes:
        say(f"note: {note}")
    to_do = plan.to_do()
    for planned in to_do:
        if planned.again:
            _forget(store, planned)
    progress = Progress(to_do, quiet=quiet) if to_do else None
    say = report or (progress.say if progress else to_stderr)
    listeners: list[Any] = [progress] if progress else []
    tracker = None
    if track:
        from bpcbench.tracking.live import Tracker

        tracker = Tracker(manifest, store, {planned.id for planned in to_do}, say, quiet=quiet)
        tracker.start()
        listeners.append(tracker)
    recorder = _Recorder(journal, store.root)
    listeners.append(recorder)
    below = say if report or not progress else progress.say_below
    runner = Runner(
        prepared.registry, plan, store, prepared.data, engine, listeners, say, debug, detach=detach, announce=below
    )
    result = None
    recorder.start()
    try:
        result = runner.run()
    finally:
        recorder.stop()
        if progress:
            progress.close()
        failures = () if result is None else tuple(_failure(failure, store.root) for failure in result.failures)
        journal.end(
            exit_code=1 if result is None else result.exit_code,
            counts={} if result is None else result.counts,
            failures=failures,
            scores=_scores_seen(manifest, store),
        )
        if tracker:
            ok = result is not None and result.exit_code == 0
            tracker.close(ok=ok, story=lambda: _story(folder, manifest, store.root), failures=failures)
    return result


def _story(folder: Path, manifest: Manifest, root: Path) -> Story:
    """Return what MLflow shows of the invocation. It opens its own store, because another thread calls it."""
    from bpcbench.reporting.view import View
    from bpcbench.running.story import tell
    from bpcbench.store.invocations import Invocation
    from bpcbench.store.runs import read_runs
    from bpcbench.store.store import Store

    runs = tuple(read_runs(folder))
    invocation = Invocation(folder, manifest.name, manifest.source, manifest.purpose, manifest.request, runs)
    return tell(View(Store(root), invocation))


class _Recorder(threading.Thread):
    """A Listener that keeps the run record up to date, with a heartbeat even while nothing happens."""

    def __init__(self, journal: Journal, root: Path) -> None:
        super().__init__(name="recorder", daemon=True)
        self.journal, self.root = journal, root
        self._running: dict[str, str] = {}
        self._failures: list[FailureRecord] = []
        self._stop_event = threading.Event()

    def started(self, stage: PlannedStage) -> None:
        """Record a stage that is under way."""
        self._running[stage.id] = f"{stage.kind} {stage.label}"

    def events(self, stage: PlannedStage, lines: Sequence[dict[str, Any]]) -> None:
        """Do nothing: progress is in the stage's own files."""

    def finished(self, stage: PlannedStage, outcome: Outcome) -> None:
        """Record a stage that has ended."""
        self._running.pop(stage.id, None)
        if outcome.status == "failed":
            self._failures.append(FailureRecord(stage.id, stage.label, outcome.message, "", outcome.out_of_memory))

    def run(self) -> None:
        """Update the record periodically."""
        while not self._stop_event.wait(1.0):
            running = dict(self._running)
            self.journal.beat(list(running), list(self._failures), running)

    def stop(self) -> None:
        """End the heartbeat."""
        self._stop_event.set()
        self.join()


def _failure(failure: Failure, root: Path) -> FailureRecord:
    log = failure.log.relative_to(root) if failure.log.is_relative_to(root) else failure.log
    return FailureRecord(failure.stage.id, failure.stage.label, failure.message, str(log), failure.out_of_memory)


def _scores_seen(manifest: Manifest, store: Store) -> str:
    """Return a digest of all existing scores, which reveals later changes."""
    from bpcbench.store.address import digest

    seen = {}
    for cell in manifest.cells:
        for address in cell.scores.values():
            if store.has(address):
                seen[str(address)] = store.meta(address)["checksum"]
    return digest(seen)


def _forget(store: Store, planned: PlannedStage) -> None:
    """Remove everything a stage left behind: results, kept fits, snapshots and checkpoints."""
    from bpcbench.store.address import Address

    stage = planned.stage
    folder = store.path(stage.addresses[0]).parent
    every = [path.name.replace(",", "/") for path in folder.iterdir()] if folder.is_dir() else []
    # Members of a prerequisite are stages of their own.
    for member in stage.members if stage.kind == "prerequisite" else every:
        if store.path(Address(stage.kind, stage.key, member)).exists():
            store.remove(Address(stage.kind, stage.key, member))
    store.discard_scratch(stage.id)


def _tidy(plan: Plan, store: Store) -> None:
    """Remove the scratch of finished stages, left behind if a process is killed between its commit and its end."""
    from bpcbench.store.locks import Busy

    made = {f"predict:{key}" for cell in plan.cells if cell.predict for key in (*cell.earlier, cell.predict)}
    made |= {address.stage for cell in plan.cells for address in cell.coresets}
    made |= {planned.id for planned in plan.stages}
    for stage in made - {planned.id for planned in plan.to_do()}:
        if store.scratch(stage).exists():
            with contextlib.suppress(Busy), store.lock(stage):
                store.discard_scratch(stage)
