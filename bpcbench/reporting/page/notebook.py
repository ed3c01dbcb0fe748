"""A table as a notebook shows it: HTML without style sheet or script of its own."""

from __future__ import annotations

from bpcbench.reporting.page.markup import Html, element
from bpcbench.reporting.table import Cell, Table

_RIGHT = "text-align: right"
_LEFT = "text-align: left"


def notebook_table(table: Table) -> str:
    """Return a table as HTML: a line per method, a group of columns per data set and images per class, footnotes."""
    over = [element("th", colspan=len(table.labels))]
    over += [
        element("th", group.label, colspan=len(group.columns), style="text-align: center") for group in table.groups
    ]
    heads = [element("th", name, style=_LEFT) for name in table.labels]
    heads += [element("th", column.label, style=_RIGHT) for group in table.groups for column in group.columns]
    body = []
    for line in table.lines:
        first, *others = (line.label(name) for name in table.labels)
        labels = [
            element("th", first, scope="row", style=_LEFT),
            *(element("td", word, style=_LEFT) for word in others),
        ]
        body.append(element("tr", *labels, *map(_cell, line.cells)))
    made = element(
        "table",
        element("caption", table.title) if table.title else None,
        element("thead", element("tr", *over), element("tr", *heads)),
        element("tbody", *body),
    )
    notes = list(table.footnotes)
    if any(cell.best for line in table.lines for cell in line.cells):
        tie = f", ~ not distinguishable from the best ({table.test})" if table.test else ""
        notes.insert(0, f"In each column: bold best, underlined second{tie}.")
    return element("div", made, element("ul", *(element("li", element("small", note)) for note in notes)))


def _cell(cell: Cell) -> Html:
    tag = "b" if cell.best else "u" if cell.second else "span"
    spread = f"±{cell.spread}" if cell.spread else ""
    interval = f" {cell.interval}" if cell.interval else ""
    asked = "" if cell.asked is None else f" of {cell.asked}"
    count = "" if cell.count is None else f" (n={cell.count}{asked})"
    marks = "†" * cell.partial + "~" * cell.tied + "*" * cell.nonzero
    return element("td", element(tag, cell.mean), f"{spread}{interval}{count}{marks}", style=_RIGHT)
