"""The commands `status` and `logs`: how the invocations of a store stand, and what a stage prints."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bpcbench.errors import UserError, did_you_mean, shortened
from bpcbench.reading import opened
from bpcbench.text import spell

if TYPE_CHECKING:
    from bpcbench.running.standing import Report, Standing
    from bpcbench.store.store import Store

SHOWN = 8
"""How many stages of one state are listed, and how many older invocations."""
POLL_SECONDS = 0.5


def status(arguments: argparse.Namespace) -> int:
    """Print what runs, what failed and what is left, for the invocations of a store."""
    store = _store(arguments)
    reports = _reports(store, arguments.suite)
    if arguments.json:
        print(json.dumps([_as_json(report) for report in reports], indent=1))
        return 0
    if not reports:
        print(f"{store.root}: nothing was run yet")
    for number, report in enumerate(reports):
        run = report.run
        whole = number == 0 or (run is not None and run.alive) or not report.progress.complete
        if number < SHOWN or whole:
            print("\n".join(_lines(report)))
    if len(reports) > SHOWN:
        print(f"{len(reports)} invocations in all; `bpcbench status NAME` shows those of one suite")
    _notes(store)
    return 0


def logs(arguments: argparse.Namespace) -> int:
    """Print the log of one stage, and follow it while the stage runs if that is asked for."""
    from bpcbench.running.standing import select

    store = _store(arguments)
    stages: dict[str, Standing] = {}
    owners: dict[str, list[Path]] = {}
    for report in _reports(store, None):
        for stage in report.stages:
            known = stages.setdefault(stage.id, stage)
            owners.setdefault(stage.id, []).append(report.invocation.path)
            if stage.state == "running" != known.state:
                stages[stage.id] = stage
    if not stages:
        raise UserError(f"{store.root}: nothing was run yet")
    stage = _one(select(list(stages.values()), arguments.cell), arguments.cell)
    print(_described(stage), file=sys.stderr)
    path, size = _print_from(store, stage, None, 0)
    if arguments.follow:
        _follow(store, stage, owners[stage.id], path, size)
    elif path is None or size == 0:
        print("(nothing was printed)", file=sys.stderr)
    return 0


def _store(arguments: argparse.Namespace) -> Store:
    from bpcbench.store.store import Store

    root = Path(arguments.out).absolute()
    if not (root / "store.json").is_file():
        raise UserError(f"{root} is not a store; run a suite first, or name another with --out")
    return Store.open(root, create=False)


def _reports(store: Store, name: str | None) -> list[Report]:
    from bpcbench.running.standing import Report
    from bpcbench.store.invocations import invocations, readable

    every = invocations(store)
    mine = [one for one in every if name is None or name in (one.name, one.source)]
    if name is not None and not mine:
        known = sorted({one.name for one in every})
        listed = f" (it has: {', '.join(known)})" if known else ""
        raise UserError(f"the store {store.root} has no run of {shortened(name)!r}{did_you_mean(name, known)}{listed}")
    return [Report(store, one) for one in readable(store, mine)]


def _lines(report: Report) -> Iterator[str]:
    from bpcbench.running.standing import age

    run, cells = report.run, report.progress
    words = " ".join((report.invocation.source, *(run.overrides if run else ())))
    purpose = "" if report.invocation.purpose == "run" else f" ({report.invocation.purpose})"
    total = sum(map(len, (cells.done, cells.running, cells.failed, cells.missing)))
    yield f"{words}{purpose}"
    if run is None:
        yield "  never run in this store"
    elif run.alive:
        since, beat = spell(age(run.started)), spell(age(run.heartbeat))
        yield f"  running for {since} on {run.host} (process {run.process}); last sign of life {beat} ago"
    else:
        how = {None: "was killed, last sign of life", 0: "ended", 1: "ended with failures"}.get(
            run.exit_code, "was stopped"
        )
        yield f"  {how} {spell(age(run.ended or run.heartbeat))} ago on {run.host}"
    counts = (
        f"{len(some):,} {word}"
        for some, word in (
            (cells.running, "running"),
            (cells.failed, "failed"),
            (cells.missing, "left"),
            (cells.skipped, "skipped"),
        )
        if some
    )
    yield "  " + ", ".join([f"{len(cells.done):,} of {total:,} evaluations done", *counts])
    if cells.complete:
        return
    for state in ("running", "failed", "interrupted"):
        listed = [stage for stage in report.stages if stage.state == state]
        for stage in listed[:SHOWN]:
            yield f"  {_described(stage)}"
            if state == "failed":
                yield f"    log: bpcbench logs {stage.short}{_out(report.store)}"
        if len(listed) > SHOWN:
            yield f"  and {len(listed) - SHOWN:,} more {state}"
    if run is not None and not run.alive:
        yield f"  to go on: {run.command}"


def _described(stage: Standing) -> str:
    text = f"{stage.state}: {stage.label}"
    if stage.state == "failed":
        return f"{text}: {stage.message}"
    if stage.steps is None:
        return text
    steps = stage.steps
    text += f": step {steps.done:,} of {steps.total:,} ({100 * steps.done // max(1, steps.total)} %)"
    if stage.state == "running" and steps.left is not None:
        text += f", about {spell(steps.left)} left"
    if steps.metrics:
        text += "; " + ", ".join(f"{name} {value:.4g}" for name, value in steps.metrics.items())
    return text


def _one(found: Sequence[Standing], words: Sequence[str]) -> Standing:
    """Return the stage that is meant: the only one, else the only one that runs, else the only one that failed."""
    for state in (None, "running", "failed"):
        some = [stage for stage in found if state in (None, stage.state)]
        if len(some) == 1:
            return some[0]
    order = {"running": 0, "failed": 1, "interrupted": 2, "done": 3, "left": 4}
    listed = sorted(found, key=lambda stage: order[stage.state])
    lines = [f"  {stage.short}  {stage.state:<11}  {stage.label}" for stage in listed[: 2 * SHOWN]]
    more = [f"  and {len(listed) - 2 * SHOWN:,} more"] if len(listed) > 2 * SHOWN else []
    what = (
        f"{shortened(' '.join(words))!r} names {len(found):,} stages" if words else f"there are {len(found):,} stages"
    )
    raise UserError("\n".join([f"{what}; add words of a label, or give the start of a key:", *lines, *more]))


def _follow(store: Store, stage: Standing, owners: Sequence[Path], path: Path | None, size: int) -> None:
    """Print what is added to a log, and how far the stage is on stderr, until it is over or nobody runs it."""
    from bpcbench.running.standing import read_steps
    from bpcbench.store.runs import read_runs

    said = ""
    while True:
        runs = [run for owner in owners for run in read_runs(owner) if run.alive]
        failed = any(failure.stage == stage.id for run in runs for failure in run.failures)
        over = not runs or failed or all(store.has(address) for address in stage.addresses)
        path, size = _print_from(store, stage, path, size)
        steps = None if over else read_steps(store, stage.id)
        if steps is not None:
            text = _described(replace(stage, state="running", steps=steps))
            if text != said:
                print(text, file=sys.stderr, flush=True)
                said = text
        if over:
            return
        time.sleep(POLL_SECONDS)


def _print_from(store: Store, stage: Standing, path: Path | None, size: int) -> tuple[Path | None, int]:
    """Print a log from a position on; return the log and the new position."""
    from bpcbench.running.standing import log_files

    path = next(iter(log_files(store, stage.id)), None) if path is None else path
    if path is None:
        return None, 0
    try:
        with opened(path) as stream:
            if os.fstat(stream.fileno()).st_size < size:
                size = 0  # it was written anew
            stream.seek(size)
            for block in iter(lambda: stream.read(65536), b""):
                size += len(block)
                sys.stdout.write(block.decode(errors="replace"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    sys.stdout.flush()
    return path, size


def _out(store: Store) -> str:
    import shlex

    from bpcbench.session import DEFAULT_OUT

    return "" if store.root == Path(DEFAULT_OUT).absolute() else f" --out {shlex.quote(str(store.root))}"


def _notes(store: Store) -> None:
    for note in store.messages:
        print(f"note: {note}", file=sys.stderr)


def _as_json(report: Report) -> dict[str, Any]:
    run, cells = report.run, report.progress
    return {
        "name": report.invocation.name,
        "source": report.invocation.source,
        "purpose": report.invocation.purpose,
        "digest": report.invocation.path.name,
        "overrides": list(run.overrides) if run else [],
        "command": run.command if run else None,
        "alive": bool(run and run.alive),
        "host": run.host if run else None,
        "process": run.process if run else None,
        "started": run.started if run else None,
        "heartbeat": run.heartbeat if run else None,
        "ended": run.ended if run else None,
        "evaluations": {
            name: len(getattr(cells, name)) for name in ("done", "running", "failed", "missing", "skipped")
        },
        "stages": [
            {
                "id": stage.id,
                "label": stage.label,
                "state": stage.state,
                "message": stage.message,
                "log": str(stage.log) if stage.log else None,
                "steps": stage.steps and [stage.steps.done, stage.steps.total],
            }
            for stage in report.stages
            if stage.state != "done"
        ],
    }
