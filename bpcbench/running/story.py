"""What the MLflow run of an invocation tells: the table, the paired differences to the first method, and pictures."""

from __future__ import annotations

from bpcbench.reporting.view import View
from bpcbench.store.invocations import Invocation
from bpcbench.tracking.mlflow import Story

PAGE = "report.html"


def tell(view: View) -> Story:
    """Return the story of what the store has of an invocation; the page and the anytime curves are attached."""
    from bpcbench.reporting import render
    from bpcbench.reporting.page import report_page
    from bpcbench.reporting.page.comparisons import anytime_invocation
    from bpcbench.reporting.pairs import HEADINGS, pairs
    from bpcbench.reporting.plain import plain
    from bpcbench.store.address import digest

    files = {}
    rows = view.rows()
    methods = list(dict.fromkeys(row.method for row in rows))
    if len(methods) > 1:
        differences = pairs(rows, methods[0], view.shown())
        title = f"Paired differences to {methods[0]}\n\n"
        files["differences.md"] = title + plain(HEADINGS, [pair.cells() for pair in differences], "md")
    anytime = anytime_invocation(view)
    snapshots = [] if anytime is None else [anytime.path.name, *(run.scores for run in anytime.runs[-1:])]

    def attached() -> dict[str, str]:
        return {**_curves(view, anytime), PAGE: report_page(view)}

    return Story(render(view.table(), "md"), files, attached, basis=digest(snapshots))


def _curves(view: View, anytime: Invocation | None) -> dict[str, str]:
    """Return the pictures of `bpcbench anytime` of the same suite by file name, if the store has them."""
    from bpcbench.figures import draw
    from bpcbench.reporting.anytime import pictures, points

    if anytime is None:
        return {}
    shown = view.shown()
    drawn = pictures(points(anytime.manifest, view.store, shown), shown)
    return {f"anytime/{name}.svg": draw(picture) for name, picture in drawn.items()}
