"""What the MLflow run of an invocation tells: the table, the paired differences to the first method, and the page."""

from __future__ import annotations

from bpcbench.reporting.view import View
from bpcbench.tracking.mlflow import Story


def tell(view: View) -> Story:
    """Return the story of what the store has of an invocation."""
    from bpcbench.reporting import render
    from bpcbench.reporting.page import report_page
    from bpcbench.reporting.pairs import HEADINGS, pairs
    from bpcbench.reporting.plain import plain

    files = {}
    rows = view.rows()
    methods = list(dict.fromkeys(row.method for row in rows))
    if len(methods) > 1:
        differences = pairs(rows, methods[0], view.shown())
        title = f"Paired differences to {methods[0]}\n\n"
        files["differences.md"] = title + plain(HEADINGS, [pair.cells() for pair in differences], "md")
    return Story(render(view.table(), "md"), files, page=lambda: report_page(view))
