"""Commands about one suite: run, plan, report."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bpcbench import session
from bpcbench.errors import UserError
from bpcbench.text import spell, spell_bytes

if TYPE_CHECKING:
    from bpcbench.planning.plan import Planned
    from bpcbench.running.run import Result


def _prepare(arguments: argparse.Namespace, *, skip_missing: bool | None = None) -> session.Session:
    return session.prepare(
        arguments.suite,
        arguments.overrides,
        out=arguments.out,
        data=arguments.data,
        device=arguments.device,
        skip_missing=arguments.skip_missing if skip_missing is None else skip_missing,
        unverified=arguments.unverified,
        recompute=getattr(arguments, "recompute", ()),
    )


def run(arguments: argparse.Namespace) -> int:
    """Run a suite, then print its table, what failed and how to go on."""
    prepared = _prepare(arguments)
    if not arguments.quiet:
        print(_summary(prepared), file=sys.stderr)
    result = session.execute(
        prepared,
        jobs=arguments.jobs,
        inline=arguments.in_process,
        debug=arguments.pdb,
        track=not arguments.no_mlflow,
        quiet=arguments.quiet,
    )
    if result.exit_code:
        print(failures(arguments, result), file=sys.stderr)
    elif not arguments.quiet:
        done = result.counts.get("done", 0)
        print(f"{done or 'no'} stages were run; results in {prepared.out}", file=sys.stderr)
    try:
        print(_table(arguments, prepared), flush=True)
    except BrokenPipeError:
        # Nobody reads the table; how the run ended still counts.
        silence_output()
    return result.exit_code


def silence_output() -> None:
    """Let what is still to be printed go nowhere, after the reader of our output has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def failures(arguments: argparse.Namespace, result: Result) -> str:
    """Return what failed, where its log is, and the command that goes on."""
    lines = []
    if result.failures:
        lines.append(f"{len(result.failures)} failed, {result.counts.get('skipped', 0)} skipped because of that:")
    for failure in result.failures:
        lines.append(f"  {failure.stage.kind} {failure.stage.label}: {failure.message}")
        lines.append(f"    log: {failure.log}")
    if result.signal is not None:
        lines.append("stopped; nothing that was finished is lost")
    lines.append(f"to go on: {shlex.join(['bpcbench', *_again(arguments.words)])}")
    return "\n".join(lines)


def _again(words: list[str]) -> list[str]:
    """Return the command without --recompute: what was made anew before the end is kept."""
    result, skip = [], False
    for word in words:
        if not skip and word != "--recompute" and not word.startswith("--recompute="):
            result.append(word)
        skip = word == "--recompute"
    return result


def _summary(prepared: session.Session) -> str:
    plan = prepared.plan
    cells = sum(not cell.skipped for cell in plan.cells)
    lines = [f"{plan.suite.name}: {cells:,} cells, {len(plan.stages):,} stages asked for"]
    by_kind: dict[str, Counter[str]] = {}
    for planned in plan.stages:
        by_kind.setdefault(planned.stage.kind, Counter())[planned.status] += 1
    for kind in ("prerequisite", "coreset", "predict", "score"):
        if kind in by_kind:
            counts = ", ".join(f"{count:,} {status}" for status, count in sorted(by_kind[kind].items()))
            known = [p.bytes for p in plan.to_do() if p.stage.kind == kind and p.bytes is not None]
            size = f" ({spell_bytes(sum(known))} to be written)" if kind == "prerequisite" and known else ""
            lines.append(f"  {kind:<12} {counts}{size}")
    for reason, count in plan.skipped().items():
        lines.append(f"  {count:,} cells skipped: {reason}")
    to_do = plan.to_do()
    if to_do:
        # Without a past timing there is no estimate; a partial sum would look like one.
        seconds = [planned.seconds for planned in to_do]
        sizes = [planned.bytes for planned in to_do]
        time = None if None in seconds else sum(s for s in seconds if s is not None)
        disk = None if None in sizes else sum(s for s in sizes if s is not None)
        lines.append(f"  expected: {spell(time)} of stage time, {spell_bytes(disk)} on disk")
    return "\n".join(lines)


def _shared(stages: Iterable[Planned]) -> Iterator[str]:
    """Yield a line for each prerequisite: how many members it has, and the plugins that use them."""
    members: dict[str, dict[str, Planned]] = {}
    users: dict[str, set[str]] = {}
    for planned in stages:
        stage = planned.stage
        if stage.kind == "prerequisite":
            members.setdefault(stage.key, {})[stage.id] = planned
        for need in stage.needs:
            users.setdefault(need, set()).add(stage.plugin)
    for key, found in members.items():
        first = next(iter(found.values())).stage
        label = first.label.removesuffix(f" {first.members[0]}")
        known = [planned.bytes for planned in found.values()]
        size = "" if None in known else f", {spell_bytes(sum(b for b in known if b is not None))}"
        count = f"{len(found)} members" if len(found) > 1 else "once"
        used = ", ".join(sorted(set().union(*(users.get(name, set()) for name in found)) - {first.plugin}))
        yield f"  {label} [{key[:12]}]: {count}{size}" + (f", for {used}" if used else "")


def plan(arguments: argparse.Namespace) -> int:
    """Say what a run would do."""
    prepared = _prepare(arguments)
    if arguments.json:
        print(json.dumps([_as_json(planned) for planned in prepared.plan.stages], indent=1))
        return 0
    print(_summary(prepared))
    for line in _shared(prepared.plan.stages):
        print(line)
    for planned in prepared.plan.stages if arguments.all else ():
        stage = planned.stage
        cost = f"{spell(planned.seconds)}, {spell_bytes(planned.bytes)}"
        print(f"  {planned.status:<22} {stage.kind:<12} {stage.label}  [{stage.key[:12]}]  {cost}")
    for note in prepared.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def _as_json(planned: Planned) -> dict[str, object]:
    stage = planned.stage
    return {
        "kind": stage.kind,
        "label": stage.label,
        "plugin": stage.plugin,
        "key": stage.key,
        "members": list(stage.members),
        "status": planned.status,
        "seconds": planned.seconds,
        "bytes": planned.bytes,
    }


def report(arguments: argparse.Namespace) -> int:
    """Print the table of what the store has."""
    _check_output(arguments.output)
    prepared = _prepare(arguments, skip_missing=True)
    for note in prepared.notes:
        print(f"note: {note}", file=sys.stderr)
    other = _pairs if arguments.against else _costs if arguments.costs else None
    text = other(arguments, prepared) if other else _table(arguments, prepared)
    if arguments.output:
        Path(arguments.output).write_text(text + "\n")
    else:
        print(text)
    return 0


def _check_output(output: str | None) -> None:
    if output is not None and (not Path(output).absolute().parent.is_dir() or Path(output).is_dir()):
        raise UserError(f"--output {output}: there is no such folder to write a file into")


def tune(arguments: argparse.Namespace) -> int:
    """Run the trials of a suite and write the preset, and the trials beside it."""
    _check_output(arguments.output)
    output = Path(arguments.output) if arguments.output else None
    record = output.parent / "records" / f"{output.stem}.csv" if output else None
    if record and ((record.parent.exists() and not record.parent.is_dir()) or record.is_dir()):
        raise UserError(f"--output {output}: the trials cannot be written to {record}")
    tuned, result = session.tune(
        arguments.suite,
        arguments.overrides,
        out=arguments.out,
        data=arguments.data,
        device=arguments.device,
        unverified=arguments.unverified,
        jobs=arguments.jobs,
        quiet=arguments.quiet,
    )
    if result.exit_code:
        print(failures(arguments, result), file=sys.stderr)
        return result.exit_code
    flags = ["--unverified"] * arguments.unverified
    command = shlex.join(["bpcbench", "tune", arguments.suite, *arguments.overrides, *flags])
    text = tuned.preset(command, f"records/{record.name}" if record else "")
    if output and record:
        record.parent.mkdir(exist_ok=True)
        record.write_text(tuned.csv())
        output.write_text(text)
        print(f"preset: {output}\ntrials: {record}", file=sys.stderr)
    else:
        if not arguments.quiet:
            print(tuned.table(), file=sys.stderr)
        print(text, end="")
    return result.exit_code


def _pairs(arguments: argparse.Namespace, prepared: session.Session) -> str:
    from bpcbench.reporting.collect import collect
    from bpcbench.reporting.pairs import HEADINGS, pairs
    from bpcbench.reporting.plain import plain

    _check_plain(arguments.format, "--against")
    store = prepared.store
    rows = collect(prepared.plan, store) if store else []
    wanted = arguments.metrics.split(",") if arguments.metrics else prepared.plan.suite.metrics
    found = pairs(rows, arguments.against, wanted)
    return plain(HEADINGS, [pair.cells() for pair in found], arguments.format)


def _costs(arguments: argparse.Namespace, prepared: session.Session) -> str:
    from bpcbench.reporting.costs import FOOTNOTE, HEADINGS, costs
    from bpcbench.reporting.plain import plain

    _check_plain(arguments.format, "--costs")
    found = costs(prepared.plan, prepared.store) if prepared.store else []
    if not found:
        return _nothing(prepared)
    table = plain(HEADINGS, [cost.cells() for cost in found], arguments.format)
    return table if arguments.format == "csv" else f"{table}\n{FOOTNOTE}"


def _nothing(prepared: session.Session) -> str:
    return f"{prepared.plan.suite.name}: the store {prepared.out} has no results of this suite yet"


def _check_plain(format: str, option: str) -> None:  # noqa: A002
    from bpcbench.reporting.plain import PLAIN_FORMATS

    if format not in PLAIN_FORMATS:
        raise UserError(f"{option} can be written as {', '.join(PLAIN_FORMATS)}, not as {format}")


def _table(arguments: argparse.Namespace, prepared: session.Session) -> str:
    from bpcbench.reporting import build, published, render
    from bpcbench.reporting.collect import collect

    store = prepared.store
    rows = collect(prepared.plan, store) if store else []
    for message in store.messages if store else ():
        print(f"note: {message}", file=sys.stderr)
    suite = prepared.plan.suite
    wanted = getattr(arguments, "metrics", None)
    if not rows:
        return _nothing(prepared)
    table = build(
        rows,
        metrics=tuple(wanted.split(",")) if wanted else suite.metrics,
        title=f"{suite.name} (protocol {suite.protocol}, {suite.split} split)",
        published=published() if getattr(arguments, "published", False) else (),
        tried=suite.tried,
    )
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else None
    return render(table, getattr(arguments, "format", "text"), color=terminal, width=width)
