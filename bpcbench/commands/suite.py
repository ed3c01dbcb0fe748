"""Commands about one suite: run, plan, report."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bpcbench.commands.output import check_output, under_way, write_output
from bpcbench.commands.waiting import waiting
from bpcbench.errors import Unfinished, UserError
from bpcbench.session import Session
from bpcbench.streams import encodes
from bpcbench.text import counted, spell, spell_bytes

if TYPE_CHECKING:
    from bpcbench.planning.plan import Plan
    from bpcbench.planning.planner import PlannedStage
    from bpcbench.reporting import Table
    from bpcbench.reporting.view import View
    from bpcbench.running.execution import Prepared
    from bpcbench.running.run import Failure, Result


def suite_session(arguments: argparse.Namespace) -> Session:
    """Return the session that the arguments describe; arguments a command lacks keep their defaults."""
    inputs = {
        "data": "data",
        "device": "device",
        "unverified": "unverified",
        "skip_missing": "skip_missing",
        "recompute": "recompute",
        "max_cells": "max_cells",
        "memory": "memory",
        "jobs": "jobs",
        "inline": "in_process",
        "debug": "pdb",
        "quiet": "quiet",
        "detach": "detach",
    }
    options = {name: getattr(arguments, source) for name, source in inputs.items() if hasattr(arguments, source)}
    track = not getattr(arguments, "no_mlflow", False)
    command = shlex.join(["bpcbench", *_again(arguments.words)])
    return Session(arguments.suite, arguments.overrides, out=arguments.out, track=track, command=command, **options)


def run(arguments: argparse.Namespace) -> int:
    """Run a suite, then print its table, what failed and how to resume."""
    from bpcbench.running.execution import check_device

    session = suite_session(arguments)
    with waiting(f"planning {arguments.suite}"):
        prepared = session.prepare()
    check_device(prepared, inline=session.inline or session.debug)
    if not arguments.quiet:
        print(_summary(prepared.plan), file=sys.stderr)
    _warn_of_changed_code(prepared.plan)
    result = session.execute(prepared)
    if result.exit_code or result.left:
        print(failures(arguments, result), file=sys.stderr)
    elif not arguments.quiet:
        done = result.counts.get("done", 0)
        ran = f"{counted(done, 'stage')} {'was' if done == 1 else 'were'} run" if done else "no stages were run"
        print(f"{ran}; results in {session.out}", file=sys.stderr)
    with under_way():
        print(_table(arguments, session.opened(prepared)).rstrip("\n"))
    return result.exit_code


def failures(arguments: argparse.Namespace, result: Result) -> str:
    """Return the failures, their logs, and the command that resumes."""
    lines = []
    if result.failures:
        lines.append(f"{len(result.failures)} failed, {result.counts.get('skipped', 0)} skipped because of that:")
    alike: dict[str, list[Failure]] = {}
    for failure in result.failures:
        alike.setdefault(failure.message, []).append(failure)
    for message, same in alike.items():
        first, more = same[0], len(same) - 1
        others = f" (and {more} more)" if more else ""
        lines.append(f"  {first.stage.kind} {first.stage.label}{others}: {message}")
        lines.append(f"    log: {first.log}")
    if result.error:
        lines.append(result.error)
    if result.left:
        many = "1 stage goes" if result.left == 1 else f"{result.left} stages go"
        again = "it" if result.left == 1 else "them"
        lines.append(f"{many} on without this run; the same command takes {again} up again")
    elif result.signal is not None or result.error:
        lines.append("stopped; nothing that was finished is lost")
    lines.append(f"to resume: {shlex.join(['bpcbench', *_again(arguments.words)])}")
    return "\n".join(lines)


def _again(words: list[str]) -> list[str]:
    """Return the command without --recompute: results recomputed before the end are kept."""
    result, skip = [], False
    for word in words:
        if not skip and word != "--recompute" and not word.startswith("--recompute="):
            result.append(word)
        skip = word == "--recompute"
    return result


def _summary(plan: Plan) -> str:
    cells = sum(not cell.skipped for cell in plan.cells)
    lines = [f"{plan.suite.name}: {counted(cells, 'cell')}, {counted(len(plan.stages), 'stage')}"]
    if (tasks := plan.suite.tasks) is not None:
        orders = f"class order{'s' * (len(tasks.orders) > 1)} {', '.join(map(str, tasks.orders))}"
        lines.append(f"  classes come in {tasks.steps} steps, {orders}: a cell has {tasks.steps} coresets")
    by_kind: dict[str, Counter[str]] = {}
    for planned in plan.stages:
        by_kind.setdefault(planned.kind, Counter())[planned.status] += 1
    for kind in ("prerequisite", "coreset", "predict", "score"):
        if kind in by_kind:
            counts = ", ".join(f"{count:,} {status}" for status, count in sorted(by_kind[kind].items()))
            known = [p.bytes for p in plan.to_do() if p.kind == kind and p.bytes is not None]
            size = f" ({spell_bytes(sum(known))} to be written)" if kind == "prerequisite" and known else ""
            lines.append(f"  {kind:<12} {counts}{size}")
    for reason, count in plan.skipped().items():
        lines.append(f"  {counted(count, 'cell')} skipped: {reason}")
    lines += [f"  {line}" for line in _memory(plan.stages)]
    for message, stages in plan.exhausted().items():
        more = f" and {len(stages) - 1:,} more" if len(stages) > 1 else ""
        many = counted(len(stages), "stage")
        lines.append(f"  {many} to do ran out of memory when last run: {stages[0].label}{more}: {message}")
    to_do = plan.to_do()
    if to_do:
        lines += [f"  {line}" for line in _expected(to_do)]
    return "\n".join(lines)


def _memory(stages: Iterable[PlannedStage]) -> Iterator[str]:
    """Say the most memory that a stage of each kind takes on its device, where it is not cached."""
    words = []
    for kind in ("coreset", "predict"):
        known = [one for one in stages if one.kind == kind and one.memory and not one.status.startswith("cached")]
        if known:
            largest = max(known, key=lambda one: one.memory or 0.0)
            words.append(f"{spell_bytes(largest.memory)} ({largest.label})")
    if words:
        yield f"memory on the device, by formula: at most {', '.join(words)}"


def _expected(to_do: Sequence[PlannedStage]) -> Iterator[str]:
    """Say what the stages take; where some were never timed, that what is known is only a part."""
    seconds = [planned.seconds for planned in to_do if planned.seconds is not None]
    sizes = [planned.bytes for planned in to_do if planned.bytes is not None]
    unknown = Counter(f"{planned.kind} {planned.plugin}" for planned in to_do if planned.seconds is None)
    parts = [
        f"{least if len(known) < len(to_do) else ''}{spelt(sum(known))}" if known else "unknown"
        for known, least, spelt in ((seconds, "more than ", spell), (sizes, "more than ", spell_bytes))
    ]
    yield f"expected: {parts[0]} of stage time, {parts[1]} on disk"
    if similar := sum(planned.similar for planned in to_do):
        yield f"  {counted(similar, 'stage')} estimated from similar ones, in seconds per step"
    if unknown and seconds:
        named = ", ".join(f"{count:,} {what}" for what, count in unknown.items())
        yield f"  never timed here: {named}"


def _shared(stages: Iterable[PlannedStage]) -> Iterator[str]:
    """Yield a line for each prerequisite: how many members it has, and the plugins that use them."""
    members: dict[str, dict[str, PlannedStage]] = {}
    users: dict[str, set[str]] = {}
    for planned in stages:
        if planned.kind == "prerequisite":
            members.setdefault(planned.stage.key, {})[planned.id] = planned
        for need in planned.stage.needs:
            users.setdefault(need, set()).add(planned.plugin)
    for key, group in members.items():
        first = next(iter(group.values()))
        label = first.label.removesuffix(f" {first.stage.members[0]}")
        known = [planned.bytes for planned in group.values()]
        size = "" if None in known else f", {spell_bytes(sum(b for b in known if b is not None))}"
        count = f"{len(group)} members" if len(group) > 1 else "once"
        used = ", ".join(sorted(set().union(*(users.get(name, set()) for name in group)) - {first.plugin}))
        yield f"  {label} [{key[:12]}]: {count}{size}" + (f", for {used}" if used else "")


def plan(arguments: argparse.Namespace) -> int:
    """Print the stages that a run would execute."""
    from bpcbench.running.execution import check_device

    with waiting(f"planning {arguments.suite}"):
        prepared = _planned(suite_session(arguments))
    if arguments.json:
        print(json.dumps([_as_json(planned) for planned in prepared.plan.stages], indent=1))
        return 0
    print(_summary(prepared.plan))
    for line in _without_data(prepared, arguments.rate):
        print(line)
    for line in _shared(prepared.plan.stages):
        print(line)
    for planned in prepared.plan.stages if arguments.all else ():
        cost = f"{spell(planned.seconds)}, {spell_bytes(planned.bytes)}"
        cost += "" if planned.memory is None else f", {spell_bytes(planned.memory)} of memory"
        print(f"  {planned.status:<22} {planned.kind:<12} {planned.label}  [{planned.stage.key[:12]}]  {cost}")
    for note in prepared.notes:
        print(f"note: {note}", file=sys.stderr)
    _warn_of_changed_code(prepared.plan)
    try:
        check_device(prepared, thorough=False)
    except UserError as error:
        print(f"note: {error}", file=sys.stderr)
    return 0


def _warn_of_changed_code(plan: Plan) -> None:
    if stale := plan.stale():
        again = " ".join(f"--recompute {name}" for name in stale)
        print(
            f"note: code of {', '.join(stale)} has changed since cached results were computed ({again})",
            file=sys.stderr,
        )


def _planned(session: Session) -> Prepared:
    """Return the plan; what data sets declare stands in for data that are not there, unless they are to be left out."""
    if not session.skip_missing:
        return session.prepare(declare=True)
    try:
        return session.prepare()
    except UserError:
        # Nothing may be left. Any other mistake is found again.
        return session.prepare(declare=True)


def _without_data(prepared: Prepared, rate: float | None) -> Iterator[str]:
    """Yield what a plan without data says instead of what is cached: what is missing, and what the run would cost."""
    from bpcbench.planning.costs import estimate, measured_rate

    plan = prepared.plan
    if not plan.declared:
        return
    yield "  planned from declared facts, so nothing is known of what is cached:"
    for text in plan.declared.values():
        yield f"    {text}"
    source = "--rate"
    if rate is None and prepared.out.joinpath("store.json").exists():
        from bpcbench.store.store import Store

        found = measured_rate(prepared.registry, Store.open(prepared.out, create=False), prepared.data)
        if found is not None:
            rate = found.operations
            source = f"measured: the median of {found.coresets} coresets of this store, on {found.device}"
    total = size = 0.0
    for kind in ("prerequisite", "coreset", "predict"):
        costs = estimate(plan.stages, kind)
        if not costs.stages:
            continue
        total, size = total + costs.operations, size + costs.bytes
        hours = "" if rate is None else f", {_long(costs.operations / rate)}"
        unknown = f"; {costs.unknown:,} of {costs.stages:,} stages state none" if costs.unknown else ""
        yield f"  {kind:<12} {costs.operations:.2e} operations{hours}, {spell_bytes(costs.bytes)}{unknown}"
    if rate is None:
        hours = "hours: give --rate OPERATIONS_PER_SECOND, or a store (--out) with coresets of its own"
    else:
        hours = f"{_long(total / rate)} one after the other at {rate:.1e} operations per second ({source})"
    yield f"  in all       {total:.2e} operations, {spell_bytes(size)}; {hours}"
    yield "  operations: convolutions and matrix products of networks, a gradient step as three forward passes"


def _long(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else spell(seconds)


def _as_json(planned: PlannedStage) -> dict[str, object]:
    return {
        "kind": planned.kind,
        "label": planned.label,
        "plugin": planned.plugin,
        "key": planned.stage.key,
        "members": list(planned.stage.members),
        "status": planned.status,
        "seconds": planned.seconds,
        "bytes": planned.bytes,
        "operations": planned.operations,
        "similar": planned.similar,
        "memory": planned.memory,
        "out_of_memory": planned.exhausted,
    }


def report(arguments: argparse.Namespace) -> int:
    """Print the table of the results in the store."""
    check_output(arguments.output)
    if arguments.open and arguments.format != "html":
        raise UserError("--open shows a page: add --format html")
    view = suite_session(arguments).view()
    special = arguments.costs or arguments.against or arguments.against_inference or arguments.against_network
    if arguments.format == "html":
        if special:
            raise UserError("differences and costs can be written as text, md, latex, csv or json, not as html")
        return _page(arguments, view)
    with waiting("reading results"):
        text = _costs(arguments, view) if arguments.costs else _differences(arguments, view) or _table(arguments, view)
    for note in (*view.notes, *view.store.messages):
        print(f"note: {note}", file=sys.stderr)
    if arguments.output:
        write_output(Path(arguments.output), text.rstrip("\n") + "\n")
    else:
        print(text.rstrip("\n"))
    return 0


def _page(arguments: argparse.Namespace, view: View) -> int:
    from bpcbench.commands.page import write_page
    from bpcbench.reporting.page import report_page

    with waiting("writing the page"):
        page = report_page(view, _metrics(arguments), arguments.layout)
    for note in view.store.messages:
        print(f"note: {note}", file=sys.stderr)
    write_page(page, arguments.output, view.manifest.name, show=arguments.open)
    return 0


def tune(arguments: argparse.Namespace) -> int:
    """Run the trials of a suite, and write the preset and the record of its trials."""
    check_output(arguments.output)
    output = Path(arguments.output) if arguments.output else None
    record = output.parent / "records" / f"{output.stem}.csv" if output else None
    if record and ((record.parent.exists() and not record.parent.is_dir()) or record.is_dir()):
        raise UserError(f"--output {output}: the trials cannot be written to {record}")
    tuned, result = suite_session(arguments).tune()
    if result.exit_code:
        print(failures(arguments, result), file=sys.stderr)
        return result.exit_code
    flags = ["--unverified"] * arguments.unverified
    command = shlex.join(["bpcbench", "tune", arguments.suite, *arguments.overrides, *flags])
    text = tuned.preset(command, f"records/{record.name}" if record else "")
    if output and record:
        with under_way():
            record.parent.mkdir(exist_ok=True)
        write_output(record, tuned.csv(), Unfinished)
        write_output(output, text, Unfinished)
        print(tuned.table(), end="")
        print(f"preset: {output}\ntrials: {record}", file=sys.stderr)
    else:
        if not arguments.quiet:
            print(tuned.table(), file=sys.stderr)
        print(text, end="")
    return result.exit_code


def _metrics(arguments: argparse.Namespace) -> tuple[str, ...]:
    wanted = getattr(arguments, "metrics", None)
    return tuple(name.strip() for name in wanted.split(",")) if wanted else ()


def _differences(arguments: argparse.Namespace, view: View) -> str:
    """Return the requested paired differences, or an empty string."""
    from bpcbench.reporting.pairs import AXES

    for axis in AXES:
        label = getattr(arguments, "against" if axis == "method" else f"against_{axis}")
        if label is not None:
            return _rendered(arguments, view.differences(label, _metrics(arguments), axis=axis))
    return ""


def _costs(arguments: argparse.Namespace, view: View) -> str:
    table = view.costs(published=arguments.published)
    return _rendered(arguments, table) if table.lines else _nothing(view)


def _nothing(view: View) -> str:
    return f"{view.manifest.name}: the store {view.store.root} has no results of this suite yet"


def _table(arguments: argparse.Namespace, view: View) -> str:
    table = view.table(_metrics(arguments), published=getattr(arguments, "published", False))
    if all(line.missing for line in table.lines):
        return "\n".join([_nothing(view), *view.footnotes()])
    return _rendered(arguments, table)


def _rendered(arguments: argparse.Namespace, table: Table) -> str:
    """Return a table in the requested format, as wide as the terminal if there is one."""
    from bpcbench.reporting import render

    terminal = sys.stdout.isatty() and not getattr(arguments, "output", None)
    width = shutil.get_terminal_size().columns if terminal else None
    return render(
        table,
        getattr(arguments, "format", "text"),
        layout=getattr(arguments, "layout", "wide"),
        color=terminal,
        ascii=not (getattr(arguments, "output", None) or encodes(sys.stdout, "±")),
        width=width,
    )
