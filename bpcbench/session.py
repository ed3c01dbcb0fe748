"""The Python interface: what the command line does, as functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from bpcbench.plan import Plan
    from bpcbench.plugins import Registry
    from bpcbench.records import Coreset
    from bpcbench.report import Row
    from bpcbench.runner import Result
    from bpcbench.store import Store

DEFAULT_OUT = "results"


@dataclass(frozen=True, eq=False)
class Session:
    """A suite that has been read, its plan, and the store it belongs to (None if that does not exist yet)."""

    registry: Registry
    plan: Plan
    store: Store | None
    out: Path
    data: Path
    name: str


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
    from bpcbench.environment import data_root
    from bpcbench.errors import UserError, unknown
    from bpcbench.plan import make
    from bpcbench.plugins import KINDS, registry
    from bpcbench.store import Store, check_writable
    from bpcbench.suite import load

    found = registry()
    extra = [f"device={device}"] if device else []
    loaded = load(found, suite, [*overrides, *extra])
    names = {name for kind in KINDS for name in found.names(kind)}
    for name in recompute:
        if name not in names:
            raise UserError("--recompute: " + unknown("plugin", name, names))
    root = Path(out).absolute()
    check_writable(root)
    store = Store.open(root, create=False) if (root / "store.json").exists() else None
    where = data_root(data)
    plan = make(found, loaded, store, where, skip_missing=skip_missing, recompute=recompute)
    return Session(found, plan, store, root, where, suite)


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
    from bpcbench.progress import Progress
    from bpcbench.runner import Runner, choose_engine
    from bpcbench.store import Store

    session = prepare(
        suite, overrides, out=out, data=data, device=device, skip_missing=skip_missing, recompute=recompute
    )
    store = session.store or Store.open(session.out)
    for message in store.messages:
        (say or _to_stderr)(f"note: {message}")
    store.messages.clear()
    to_do = session.plan.to_do()
    for planned in to_do if recompute else ():
        for address in planned.stage.addresses:
            if store.path(address).exists():
                store.remove(address)
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


def rows(suite: str, overrides: Sequence[str] = (), *, out: str | Path = DEFAULT_OUT, data: str | None = None) -> list[Row]:
    """Return every number that the store has for a suite."""
    from bpcbench.collect import collect

    session = prepare(suite, overrides, out=out, data=data, skip_missing=True)
    return collect(session.plan, session.store) if session.store else []


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
