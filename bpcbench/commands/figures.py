"""The command `figure`: pictures of a suite's coresets as files, one per panel, for papers and documentation."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from bpcbench.commands.output import check_folder, under_way
from bpcbench.commands.suite import suite_session
from bpcbench.commands.waiting import waiting
from bpcbench.errors import UserError


def figure(arguments: argparse.Namespace) -> int:
    """Write a PNG for every coreset of one seed before and after it was learned; print their names."""
    from bpcbench.reporting.panels import panels

    if arguments.output:
        check_folder("--output", Path(arguments.output))
    view = suite_session(arguments).view()
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", view.manifest.name)
    folder = Path(arguments.output or Path("figures") / name)
    check_folder("--output", folder)
    with waiting("drawing"):
        found = list(panels(view, arguments.seed))
    if not found:
        seeds = sorted({cell.distil_seed for cell in view.manifest.cells})
        what = f"seed {arguments.seed} of {view.manifest.name} (seeds asked for: {', '.join(map(str, seeds))})"
        raise UserError(f"the store {view.store.root} has no pictures of {what}")
    folder.mkdir(parents=True, exist_ok=True)
    with under_way():
        for panel in found:
            (folder / panel.file).write_bytes(panel.png)
            print(folder / panel.file)
    starts = {(p.dataset, p.ipc, p.method) for p in found if p.moment == "before"}
    without = sorted({p.method for p in found if (p.dataset, p.ipc, p.method) not in starts})
    if without:
        print(f"note: {', '.join(without)} kept no start, so there is no panel before", file=sys.stderr)
    for note in (*view.notes, *view.store.messages):
        print(f"note: {note}", file=sys.stderr)
    return 0
