"""The command `anytime`: metrics of a suite's coresets against distillation time."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bpcbench.commands.output import check_folder, under_way
from bpcbench.commands.suite import failures, suite_session
from bpcbench.errors import UserError


def anytime(arguments: argparse.Namespace) -> int:
    """Run a suite, evaluate its snapshots, then print the curves as a table and draw them."""
    from bpcbench.figures import draw
    from bpcbench.reporting import anytime as curves
    from bpcbench.reporting.pairs import HEADINGS
    from bpcbench.reporting.plain import plain

    folder = Path(arguments.pictures) if arguments.pictures else None
    if folder is not None:
        check_folder("--pictures", folder)
    view, result = suite_session(arguments).anytime(arguments.steps)
    if view is None:
        print(failures(arguments, result), file=sys.stderr)
        return result.exit_code
    metrics = view.shown(arguments.metrics.split(",") if arguments.metrics else ())
    points = curves.points(view.manifest, view.store, metrics)
    if not points:
        raise UserError(f"{view.manifest.name}: no method of this suite keeps snapshots of its coresets")
    table = plain(curves.headings(points, metrics), [point.cells(metrics) for point in points], arguments.format)
    if arguments.format != "text":
        print(table, end="")
    else:
        lines = [pair.cells() for pair in curves.progress(view.manifest, view.store, metrics)]
        gained = plain(HEADINGS, lines) if lines else "(the starts were not evaluated: --steps 0,...)\n"
        print(f"{view.title}\n\n{table}\nEnd against start:\n{gained}", end="")
    if folder is not None:
        drawn = curves.pictures(points, metrics)
        with under_way():
            folder.mkdir(parents=True, exist_ok=True)
            for name, picture in drawn.items():
                (folder / f"{name}.svg").write_text(draw(picture), encoding="utf-8")
        print(f"pictures in {folder}: {', '.join(f'{name}.svg' for name in drawn)}", file=sys.stderr)
    return result.exit_code
