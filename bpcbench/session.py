"""The Python interface: what the command line does, as functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bpcbench.running.execution import execute as execute
from bpcbench.text import to_stderr

if TYPE_CHECKING:
    import pandas as pd

    from bpcbench.planning.cells import Snapshots
    from bpcbench.planning.plan import Plan
    from bpcbench.records import Coreset
    from bpcbench.registry.discovery import Registry
    from bpcbench.reporting import Row
    from bpcbench.running.run import Result
    from bpcbench.store.store import Store
    from bpcbench.suite.model import Suite

DEFAULT_OUT = "results"


@dataclass(frozen=True, eq=False)
class Session:
    """A suite that has been read, its plan, and the store it belongs to, which may not exist yet."""

    registry: Registry
    plan: Plan
    out: Path
    data: Path
    notes: tuple[str, ...] = ()
    """What planning found out: what evaluators do without, and damaged members of the store."""

    @property
    def store(self) -> Store | None:
        """The store as it is on disk now, or None."""
        from bpcbench.store.store import Store

        return Store.open(self.out, create=False) if (self.out / "store.json").exists() else None


def prepare(
    suite: str,
    overrides: Sequence[str] = (),
    *,
    out: str | Path = DEFAULT_OUT,
    data: str | None = None,
    device: str | None = None,
    skip_missing: bool = False,
    unverified: bool = False,
    recompute: Iterable[str] = (),
) -> Session:
    """Read, validate and plan a suite. Nothing is written; everything that is wrong is raised at once.

    Data that are not the official ones are refused unless `unverified`; tables then mark them `subset`.
    """
    from bpcbench.registry.discovery import registry
    from bpcbench.suite.files import load

    found = registry()
    extra = [f"device={device}"] if device else []
    loaded = load(found, suite, [*overrides, *extra])
    return _planned(found, loaded, out, data, skip_missing=skip_missing, unverified=unverified, recompute=recompute)


def tune(
    suite: str,
    overrides: Sequence[str] = (),
    *,
    out: str | Path = DEFAULT_OUT,
    data: str | None = None,
    device: str | None = None,
    unverified: bool = False,
    jobs: int | None = None,
    inline: bool = False,
    track: bool = False,
    quiet: bool = False,
    command: str = "bpcbench tune",
) -> tuple[str, Result]:
    """Run the trials that a suite declares, on the validation split, and return the preset (YAML) with the result.

    Trials are stages like any others: they are kept, shared, and not run again.
    """
    from bpcbench.errors import UserError, unknown
    from bpcbench.registry.discovery import registry
    from bpcbench.reporting.collect import collect
    from bpcbench.suite import space as tuning
    from bpcbench.suite.files import read
    from bpcbench.suite.validation import metric_names, validate

    found = registry()
    doc, path = read(found, suite, [*overrides, *([f"device={device}"] if device else [])])
    space = tuning.declared(doc)
    validate(found, doc)  # a mistake of the suite's own is said once, not once per trial
    trials = validate(found, tuning.trial_document(doc, space, str(doc.values.get("name") or path.stem)))
    known = metric_names(trials.evaluators.values())
    if space.objective not in known:
        raise UserError("tune.objective: " + unknown("metric", space.objective, known))
    session = _planned(found, trials, out, data, skip_missing=False, unverified=unverified)
    result = execute(session, jobs=jobs, inline=inline, track=track, quiet=quiet)
    store = session.store
    assert store is not None
    return tuning.preset(tuning.choose(collect(session.plan, store), space), space, command), result


def remembered(out: str | Path = DEFAULT_OUT, data: str | None = None, name: str | None = None) -> list[Session]:
    """Return the suites that were run into a store, as they were then, the latest first."""
    import json

    from bpcbench.errors import BpcbenchError
    from bpcbench.registry.discovery import registry
    from bpcbench.suite.document import Document
    from bpcbench.suite.validation import validate

    found = registry()
    files = sorted((Path(out) / "suites").glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    sessions = []
    for file in files:
        try:
            values = json.loads(file.read_text())
            if name in (None, values["name"]):
                suite = validate(found, Document(values))
                # What was run is there to be shown, from whatever data it came.
                sessions.append(_planned(found, suite, out, data, skip_missing=True, unverified=True))
        except (ValueError, KeyError, TypeError, BpcbenchError) as error:
            to_stderr(f"note: {file.name} is passed over: {error}")
    return sessions


def _planned(
    found: Registry,
    suite: Suite,
    out: str | Path,
    data: str | None,
    *,
    skip_missing: bool,
    unverified: bool,
    recompute: Iterable[str] = (),
    snapshots: Snapshots | None = None,
) -> Session:
    from bpcbench.data.root import data_root
    from bpcbench.errors import UserError, unknown
    from bpcbench.planning.plan import make
    from bpcbench.registry.discovery import KINDS
    from bpcbench.store.store import Store

    names = {name for kind in KINDS for name in found.names(kind)}
    for name in recompute:
        if name not in names:
            raise UserError("--recompute: " + unknown("plugin", name, names))
    root = Path(out).absolute()
    store = Store.open(root, create=False) if (root / "store.json").exists() else None
    where = data_root(data)
    plan = make(
        found,
        suite,
        store,
        where,
        skip_missing=skip_missing,
        unverified=unverified,
        recompute=recompute,
        snapshots=snapshots,
    )
    return Session(found, plan, root, where, (*plan.notes, *(store.messages if store else ())))


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
    unverified: bool = False,
    recompute: Iterable[str] = (),
    track: bool = True,
    quiet: bool = False,
    say: Callable[[str], None] | None = None,
) -> Result:
    """Run a suite: what is cached is not run again, what fails fails alone. Return how it ended.

    `suite` is a shipped suite's name or a file; `overrides` are `key=value` texts; `out` is the store; `jobs` the
    stages at a time; `inline` runs everything in this process; `debug` also opens pdb at the first error;
    `unverified` admits data that are not the official ones.
    """
    session = prepare(
        suite,
        overrides,
        out=out,
        data=data,
        device=device,
        skip_missing=skip_missing,
        unverified=unverified,
        recompute=recompute,
    )
    return execute(session, jobs=jobs, inline=inline, debug=debug, track=track, quiet=quiet, say=say)


def anytime(
    suite: str,
    overrides: Sequence[str] = (),
    *,
    out: str | Path = DEFAULT_OUT,
    data: str | None = None,
    device: str | None = None,
    unverified: bool = False,
    steps: Iterable[int] | None = None,
    jobs: int | None = None,
    inline: bool = False,
    track: bool = True,
    quiet: bool = False,
) -> tuple[Session, Result]:
    """Run a suite, then evaluate the snapshots that its coresets kept, all or those after `steps`.

    `bpcbench.anytime` makes curves of the session's plan; snapshots do not become runs of MLflow.
    """
    from bpcbench.reporting.anytime import kept

    first = prepare(suite, overrides, out=out, data=data, device=device, unverified=unverified)
    result = execute(first, jobs=jobs, inline=inline, track=track, quiet=quiet)
    store = first.store
    assert store is not None
    snapshots = kept(store, None if steps is None else set(steps))
    session = _planned(
        first.registry, first.plan.suite, out, data, skip_missing=False, unverified=unverified, snapshots=snapshots
    )
    if result.exit_code:
        return session, result
    return session, execute(session, jobs=jobs, inline=inline, track=False, quiet=quiet)


def plan(
    suite: str,
    overrides: Sequence[str] = (),
    *,
    out: str | Path = DEFAULT_OUT,
    data: str | None = None,
    unverified: bool = False,
) -> Plan:
    """Return the plan of a suite: its cells, and which stages are cached or to do."""
    return prepare(suite, overrides, out=out, data=data, skip_missing=True, unverified=unverified).plan


def rows(
    suite: str,
    overrides: Sequence[str] = (),
    *,
    out: str | Path = DEFAULT_OUT,
    data: str | None = None,
    unverified: bool = False,
) -> list[Row]:
    """Return every number that the store has for a suite."""
    from bpcbench.reporting.collect import collect

    session = prepare(suite, overrides, out=out, data=data, skip_missing=True, unverified=unverified)
    store = session.store
    return collect(session.plan, store) if store else []


def results(
    suite: str,
    overrides: Sequence[str] = (),
    *,
    out: str | Path = DEFAULT_OUT,
    data: str | None = None,
    unverified: bool = False,
) -> pd.DataFrame:
    """Return every number that the store has for a suite, one line per cell and metric."""
    from bpcbench.reporting import to_frame

    return to_frame(rows(suite, overrides, out=out, data=data, unverified=unverified))


def load_coreset(path: str | Path) -> Coreset:
    """Return the coreset in a folder: an exported one, or a member of a store. Every checksum is verified."""
    from bpcbench.coresets.files import load_coreset as load

    return load(path)
