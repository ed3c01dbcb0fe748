"""The tables of results as papers print them: one per metric, with data sets and images per class as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bpcbench.reporting.page.cells import badge, common_notes, explained, filtered_by, marks, number_cell
from bpcbench.reporting.page.markup import Html, element, scrolling
from bpcbench.reporting.rows import Place
from bpcbench.reporting.table import MISSING, Cell, Column, Group, Line, Table
from bpcbench.reporting.view import View
from bpcbench.store.manifest import Group as CellGroup

_Rows = Mapping[Group, int]
_Notes = Mapping[Group, Sequence[str]]


def metric_tables(
    view: View, table: Table, columns: Sequence[Column], groups: Mapping[Place, CellGroup]
) -> Iterator[Html]:
    """Yield a table per column that has numbers; the controls of a page know it as number `index` of `columns`."""
    starts, start = {}, 0
    for group in table.groups:
        starts[group] = start
        start += len(group.columns)
    common = {group: common_notes(group, groups) for group in table.groups}
    for index, column in enumerate(columns):
        rows = {group: at + group.columns.index(column) for group, at in starts.items() if column in group.columns}
        lines = [line for line in table.lines if any(_shown(line, group, rows, groups) for group in rows)]
        if lines:
            yield _sheet(view, table.labels, column, index, rows, lines, groups, common)


def _sheet(
    view: View,
    labels: Sequence[str],
    column: Column,
    index: int,
    rows: _Rows,
    lines: Sequence[Line],
    groups: Mapping[Place, CellGroup],
    common: _Notes,
) -> Html:
    body = []
    for group, at in rows.items():
        shown = [_shown(line, group, rows, groups) for line in lines]
        if not any(shown):
            continue
        cells = [
            number_cell(line.cells[at] if here else Cell(mean=""), column, index, line.published)
            for line, here in zip(lines, shown, strict=True)
        ]
        name = element("th", group.dataset, " ", marks(common[group]), scope="row")
        ipc = element("td", group.ipc, class_="r")
        body.append(element("tr", name, ipc, *cells, data_filtered=True, **filtered_by(group, "dataset", "ipc")))
    mine = {group: common[group] for group in rows}
    heads = [element("th", "data set", scope="col"), element("th", "ipc", scope="col", class_="r")]
    heads += [_heading(line, labels, mine, groups) for line in lines]
    made = element(
        "table",
        element("caption", column.label, class_="unseen"),
        element("thead", element("tr", *heads)),
        element("tbody", *body),
        class_="results",
    )
    record = view.manifest.metric(column.metric, column.evaluator)
    over = element("h3", column.label, title=explained(column, record.help if record else ""))
    return element("section", over, scrolling(made, column.label), class_="sheet", data_c=index)


def _heading(line: Line, labels: Sequence[str], common: _Notes, groups: Mapping[Place, CellGroup]) -> Html:
    """Return the heading of a line's column, with the marks that it has wherever it stands, and not all others have."""
    own = [
        [note for note in groups[_place(line, group)].notes if note not in notes]
        for group, notes in common.items()
        if _place(line, group) in groups
    ]
    words = [note for note in own[0] if all(note in notes for notes in own)]
    aside = None if line.ranked else badge("not ranked")
    return element(
        "th",
        element("span", line.label("method")),
        *(element("small", " ", line.label(name)) for name in labels[1:]),
        *(() if line.published else (marks(words), aside)),
        scope="col",
        class_="r published" if line.published else "r",
        data_line=True,
        **filtered_by(line, "method", "inference", "network"),
    )


def _place(line: Line, group: Group) -> Place:
    return Place(group.dataset, group.ipc, line.method, line.inference, line.network)


def _shown(line: Line, group: Group, rows: _Rows, groups: Mapping[Place, CellGroup]) -> bool:
    asked = _place(line, group) in groups
    return asked and (not line.published or line.cells[rows[group]].mean != MISSING)
