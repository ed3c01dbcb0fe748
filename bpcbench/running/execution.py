"""Carrying out a session's plan: what is in the way is removed, the suite remembered, listeners told, stages run."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bpcbench.text import to_stderr

if TYPE_CHECKING:
    from bpcbench.planning.plan import Plan
    from bpcbench.planning.planner import PlannedStage
    from bpcbench.running.run import Result
    from bpcbench.session import Session
    from bpcbench.store.store import Store


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
    from bpcbench.running.progress import Progress
    from bpcbench.running.run import Runner, choose_engine
    from bpcbench.store.store import Store, check_writable

    check_writable(session.out)
    if track:
        from bpcbench.tracking.mlflow import tracking_uri

        tracking_uri(session.out)  # refused before anything is written
    store = session.store or Store.open(session.out)
    _remember(session, store)
    _tidy(session.plan, store)
    for note in session.notes:
        (say or to_stderr)(f"note: {note}")
    to_do = session.plan.to_do()
    for planned in to_do:
        if planned.again:
            _forget(store, planned)
    progress = Progress(len(to_do), quiet=quiet) if to_do else None
    report = say or (progress.say if progress else to_stderr)
    listeners: list[Any] = [progress] if progress else []
    tracker = None
    if track:
        from bpcbench.tracking.live import Tracker

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


def _remember(session: Session, store: Store) -> None:
    """Keep the suite beside its results, so that `sync` and `ui` know what was run here."""
    from bpcbench.store.address import digest

    values = {**session.plan.suite.source, "name": session.plan.suite.name}
    values.pop("extends", None)
    folder = store.root / "suites"
    folder.mkdir(exist_ok=True)
    file = folder / f"{session.plan.suite.name}-{digest(values)[:8]}.json"
    temporary = file.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(values, indent=1) + "\n")
    temporary.replace(file)


def _forget(store: Store, planned: PlannedStage) -> None:
    """Remove all that a stage has left: results, kept fits, snapshots and checkpoints."""
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
    """Remove the scratch of finished stages: what is left if a process is killed between its commit and its end."""
    from bpcbench.store.locks import Busy

    made = {f"predict:{cell.predict}" for cell in plan.cells if cell.predict}
    made |= {address.stage for cell in plan.cells for address in cell.coresets}
    for stage in made - {planned.id for planned in plan.to_do()}:
        if store.scratch(stage).exists():
            with contextlib.suppress(Busy), store.lock(stage):
                store.discard_scratch(stage)
