"""The command `anytime`: metrics of a suite's coresets against the time that distilling them had taken."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bpcbench import session
from bpcbench.commands.suite import failures
from bpcbench.errors import UserError


def anytime(arguments: argparse.Namespace) -> int:
    """Run a suite and its snapshots, then print the curves as a table and draw them."""
    from bpcbench.figures import draw
    from bpcbench.reporting import anytime as curves
    from bpcbench.reporting.pairs import HEADINGS
    from bpcbench.reporting.plain import plain

    folder = Path(arguments.pictures) if arguments.pictures else None
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UserError(f"--pictures {folder}: there is a file of that name")
    ended, result = session.anytime(
        arguments.suite,
        arguments.overrides,
        out=arguments.out,
        data=arguments.data,
        device=arguments.device,
        unverified=arguments.unverified,
        steps=arguments.steps,
        jobs=arguments.jobs,
        quiet=arguments.quiet,
    )
    if result.exit_code:
        print(failures(arguments, result), file=sys.stderr)
        return result.exit_code
    suite, store = ended.plan.suite, ended.store
    assert store is not None
    metrics = arguments.metrics.split(",") if arguments.metrics else suite.metrics
    found = curves.points(ended.plan, store, metrics)
    if not found:
        raise UserError(f"{suite.name}: no method of this suite keeps snapshots of its coresets")
    table = plain(curves.headings(found, metrics), [point.cells(metrics) for point in found], arguments.format)
    if arguments.format != "text":
        print(table, end="")
    else:
        lines = [pair.cells() for pair in curves.progress(ended.plan, store, metrics)]
        gained = plain(HEADINGS, lines) if lines else "(the starts were not evaluated: --steps 0,...)\n"
        print(
            f"{suite.name} (protocol {suite.protocol}, {suite.split} split)\n\n{table}\nEnd against start:\n{gained}",
            end="",
        )
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, picture in curves.pictures(found, metrics).items():
            (folder / f"{name}.svg").write_text(draw(picture), encoding="utf-8")
    return 0
