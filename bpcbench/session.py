"""The Python interface: what the command line does, as functions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from bpcbench.engine import Stage
    from bpcbench.plan import Plan
    from bpcbench.plugins import Registry
    from bpcbench.records import Coreset
    from bpcbench.report import Row
    from bpcbench.runner import Result
    from bpcbench.store import Store
    from bpcbench.suite import Suite

DEFAULT_OUT = "results"


@dataclass(frozen=True, eq=False)
class Session:
    """A suite that has been read, its plan, and the store it belongs to, which may not exist yet."""

    registry: Registry
    plan: Plan
    out: Path
    data: Path
    notes: tuple[str, ...] = ()
    """What planning found out about the store, such as damaged members."""

    @property
    def store(self) -> Store | None:
        """The store as it is on disk now, or None."""
        from bpcbench.store import Store

        return Store.open(self.out, create=False) if (self.out / "store.json").exists() else None


def prepare(
    suite: str,
    overrides: Sequence[str] = (),
    *,
    out: str | Path = DEFAULT_OUT,
    data: str | None = None,
    device: str | None = None,
    skip_missing: bool = False,
    recompute: Iterable[str] = (),
) -> Session:
    """Read, validate and plan a suite. Nothing is written; everything that is wrong is raised at once."""
    from bpcbench.plugins import registry
    from bpcbench.suite import load

    found = registry()
    extra = [f"device={device}"] if device else []
    loaded = load(found, suite, [*overrides, *extra])
    return _planned(found, loaded, out, data, skip_missing=skip_missing, recompute=recompute)


def tune(
    suite: str,
    overrides: Sequence[str] = (),
    *,
    out: str | Path = DEFAULT_OUT,
    data: str | None = None,
    device: str | None = None,
    jobs: int | None = None,
    inline: bool = False,
    track: bool = False,
    quiet: bool = False,
    command: str = "bpcbench tune",
) -> tuple[str, Result]:
    """Run the trials that a suite declares, on the validation split, and return the preset (YAML) with the result.

    Trials are stages like any others: they are kept, shared, and not run again.
    """
    from bpcbench import tuning
    from bpcbench.collect import collect
    from bpcbench.errors import UserError, unknown
    from bpcbench.plugins import registry
    from bpcbench.suite import read
    from bpcbench.validation import metric_names, validate

    found = registry()
    doc, path = read(found, suite, [*overrides, *([f"device={device}"] if device else [])])
    space = tuning.declared(doc)
    trials = validate(found, tuning.trial_document(doc, space, str(doc.values.get("name") or path.stem)))
    known = metric_names(trials.evaluators.values())
    if known and space.objective not in known:
        raise UserError("tune.objective: " + unknown("metric", space.objective, known))
    session = _planned(found, trials, out, data, skip_missing=False)
    result = execute(session, jobs=jobs, inline=inline, track=track, quiet=quiet)
    store = session.store
    assert store is not None
    return tuning.preset(tuning.choose(collect(session.plan, store), space), space, command), result


def remembered(out: str | Path = DEFAULT_OUT, data: str | None = None, name: str | None = None) -> list[Session]:
    """Return the suites that were run into a store, as they were then, the latest first."""
    import json

    from bpcbench.document import Document
    from bpcbench.errors import BpcbenchError
    from bpcbench.plugins import registry
    from bpcbench.validation import validate

    found = registry()
    files = sorted((Path(out) / "suites").glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    sessions = []
    for file in files:
        try:
            values = json.loads(file.read_text())
            if name in (None, values["name"]):
                sessions.append(_planned(found, validate(found, Document(values)), out, data, skip_missing=True))
        except (ValueError, KeyError, TypeError, BpcbenchError) as error:
            _to_stderr(f"note: {file.name} is passed over: {error}")
    return sessions


def _planned(
    found: Registry,
    suite: Suite,
    out: str | Path,
    data: str | None,
    *,
    skip_missing: bool,
    recompute: Iterable[str] = (),
) -> Session:
    from bpcbench.environment import data_root
    from bpcbench.errors import UserError, unknown
    from bpcbench.plan import make
    from bpcbench.plugins import KINDS
    from bpcbench.store import Store

    names = {name for kind in KINDS for name in found.names(kind)}
    for name in recompute:
        if name not in names:
            raise UserError("--recompute: " + unknown("plugin", name, names))
    root = Path(out).absolute()
    store = Store.open(root, create=False) if (root / "store.json").exists() else None
    where = data_root(data)
    plan = make(found, suite, store, where, skip_missing=skip_missing, recompute=recompute)
    return Session(found, plan, root, where, tuple(store.messages) if store else ())


def _forget(store: Store, stage: Stage) -> None:
    """Remove all that a stage has left: results, kept fits, snapshots and checkpoints."""
    from bpcbench.keys import Address

    folder = store.path(stage.addresses[0]).parent
    every = [path.name.replace(",", "/") for path in folder.iterdir()] if folder.is_dir() else []
    # Members of a prerequisite are stages of their own.
    for member in stage.members if stage.kind == "prerequisite" else every:
        if store.path(Address(stage.kind, stage.key, member)).exists():
            store.remove(Address(stage.kind, stage.key, member))
    store.discard_scratch(stage.id)


def _tidy(plan: Plan, store: Store) -> None:
    """Remove the scratch of finished stages: what is left if a process is killed between its commit and its end."""
    import contextlib

    from bpcbench.store import Busy

    made = {f"predict:{cell.predict}" for cell in plan.cells if cell.predict}
    made |= {f"coreset:{cell.coreset.key}" for cell in plan.cells if cell.coreset}
    for stage in made - {planned.stage.id for planned in plan.to_do()}:
        if store.scratch(stage).exists():
            with contextlib.suppress(Busy), store.lock(stage):
                store.discard_scratch(stage)


def _remember(session: Session, store: Store) -> None:
    """Keep the suite beside its results, so that `sync` and `ui` know what was run here."""
    import json

    from bpcbench.keys import digest

    values = {**session.plan.suite.source, "name": session.plan.suite.name}
    values.pop("extends", None)
    folder = store.root / "suites"
    folder.mkdir(exist_ok=True)
    file = folder / f"{session.plan.suite.name}-{digest(values)[:8]}.json"
    temporary = file.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(values, indent=1) + "\n")
    temporary.replace(file)


def run(
    suite: str,
    overrides: Sequence[str] = (),
    *,
    out: str | Path = DEFAULT_OUT,
    data: str | None = None,
    device: str | None = None,
    jobs: int | None = None,
    inline: bool = False,
    debug: bool = False,
    skip_missing: bool = False,
    recompute: Iterable[str] = (),
    track: bool = True,
    quiet: bool = False,
    say: Callable[[str], None] | None = None,
) -> Result:
    """Run a suite: what is cached is not run again, what fails fails alone. Return how it ended.

    `suite` is a shipped suite's name or a file; `overrides` are `key=value` texts; `out` is the store; `jobs` the
    stages at a time; `inline` runs everything in this process; `debug` also opens pdb at the first error.
    """
    session = prepare(
        suite, overrides, out=out, data=data, device=device, skip_missing=skip_missing, recompute=recompute
    )
    return execute(session, jobs=jobs, inline=inline, debug=debug, track=track, quiet=quiet, say=say)


def execute(
    session: Session,
    *,
    jobs: int | None = None,
    inline: bool = False,
    debug: bool = False,
    track: bool = True,
    quiet: bool = False,
    say: Callable[[str], None] | None = None,
) -> Result:
    """Run what a session's plan says is to do; what is to be made anew is removed first."""
    from bpcbench.progress import Progress
    from bpcbench.runner import Runner, choose_engine
    from bpcbench.store import Store, check_writable

    check_writable(session.out)
    store = session.store or Store.open(session.out)
    _remember(session, store)
    _tidy(session.plan, store)
    for note in session.notes:
        (say or _to_stderr)(f"note: {note}")
    to_do = session.plan.to_do()
    for planned in to_do:
        if planned.again:
            _forget(store, planned.stage)
    progress = Progress(len(to_do), quiet=quiet) if to_do else None
    report = say or (progress.say if progress else _to_stderr)
    listeners: list[Any] = [progress] if progress else []
    tracker = None
    if track:
        from bpcbench.tracking import Tracker

        tracker = Tracker(session.plan, store, report)
        tracker.start()
        listeners.append(tracker)
    engine = choose_engine(session.plan.suite.engine, jobs=jobs, inline=inline or debug)
    runner = Runner(session.registry, session.plan, store, session.data, engine, listeners, report, debug)
    result = None
    try:
        result = runner.run()
    finally:
        if progress:
            progress.close()
        if tracker:
            tracker.close(ok=result is not None and result.exit_code == 0)
    return result


def plan(suite: str, overrides: Sequence[str] = (), *, out: str | Path = DEFAULT_OUT, data: str | None = None) -> Plan:
    """Return the plan of a suite: its cells, and which stages are cached or to do."""
    return prepare(suite, overrides, out=out, data=data, skip_missing=True).plan


def rows(
    suite: str, overrides: Sequence[str] = (), *, out: str | Path = DEFAULT_OUT, data: str | None = None
) -> list[Row]:
    """Return every number that the store has for a suite."""
    from bpcbench.collect import collect

    session = prepare(suite, overrides, out=out, data=data, skip_missing=True)
    store = session.store
    return collect(session.plan, store) if store else []


def results(
    suite: str, overrides: Sequence[str] = (), *, out: str | Path = DEFAULT_OUT, data: str | None = None
) -> pd.DataFrame:
    """Return every number that the store has for a suite, one line per cell and metric."""
    from bpcbench.report import to_frame

    return to_frame(rows(suite, overrides, out=out, data=data))


def load_coreset(path: str | Path) -> Coreset:
    """Return the coreset in a folder: an exported one, or a member of a store. Every checksum is verified."""
    from bpcbench.coresets import load_coreset as load

    return load(path)


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
