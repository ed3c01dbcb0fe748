"""The tables of results as HTML, in two layouts, and what filters them.

In the layout `wide` there is a block per data set and number of images per class, in `paper` a table per metric.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bpcbench.reporting.collect import place_of
from bpcbench.reporting.formats import LAYOUTS, Layout
from bpcbench.reporting.page.cells import badge, common_notes, filtered_by, heading, marks, number_cell
from bpcbench.reporting.page.commands import line_command
from bpcbench.reporting.page.document import folded
from bpcbench.reporting.page.markup import Html, element, joined, scrolling
from bpcbench.reporting.page.paper import metric_tables
from bpcbench.reporting.rows import Place, Row
from bpcbench.reporting.table import MISSING, Cell, Column, Group, Line, Table
from bpcbench.reporting.view import View
from bpcbench.store.manifest import Group as CellGroup

FURTHER_METRICS = 24
"""So many metrics beyond those that the suite shows are in a page."""
AXES = ("method", "dataset", "ipc", "inference", "network")
_NAMES = {"dataset": "data set"}
_LAYOUTS = {"wide": "methods as lines", "paper": "data sets as rows, methods as columns"}


@dataclass(frozen=True)
class Metrics:
    """The metrics of a page: those shown at first, those that can be shown as well, and how many are left out."""

    shown: tuple[str, ...]
    further: tuple[str, ...]
    left_out: int


def metrics_of(view: View, rows: Sequence[Row], wanted: Sequence[str]) -> Metrics:
    """Return the metrics to show: those wanted, else the suite's, else all that there are."""
    given = tuple(dict.fromkeys(row.metric for row in rows))
    shown = tuple(name for name in view.shown(wanted) if name in given) or given[:FURTHER_METRICS]
    further = tuple(name for name in given if name not in shown)
    kept = further[:FURTHER_METRICS]
    return Metrics(shown, kept, len(further) - len(kept))


def results(view: View, table: Table, metrics: Metrics, footnotes: Iterable[str], layout: Layout = "wide") -> Html:
    """Return the controls, the tables in both layouts and the footnotes; `layout` comes first and is unfolded."""
    groups = {place_of(group): group for group in view.manifest.groups}
    columns = list(dict.fromkeys(column for group in table.groups for column in group.columns))
    blocks = [_block(view, table, group, start, columns, metrics, groups) for group, start in _starts(table)]
    sheets = list(metric_tables(view, table, columns, groups))
    laid_out = {"wide": ("In each column", blocks), "paper": ("In each row", sheets)}
    parts = [
        folded(
            _LAYOUTS[name].capitalize(),
            element("p", _legend(table, *laid_out[name][:1]), class_="note"),
            element("div", *laid_out[name][1], class_="blocks"),
            opened=name == layout,
            class_="layout",
            data_layout=name,
        )
        for name in sorted(LAYOUTS, key=lambda name: name != layout)
    ]
    notes = [element("li", note) for note in footnotes]
    if metrics.left_out:
        notes.append(element("li", f"{metrics.left_out} further metrics are not in this page; --metrics names them."))
    return joined(
        (
            controls({axis: axis_values(view.manifest.groups, axis) for axis in AXES}, columns, metrics.shown, layout),
            *parts,
            element("p", "No line matches the filters.", class_="nothing", hidden=True),
            element("ul", *notes, class_="notes"),
        )
    )


def _legend(table: Table, compared: str) -> Html:
    words = (
        f"{compared}: ",
        element("b", "bold"),
        " best, ",
        element("u", "underlined"),
        f" second{f', ~ not distinguishable from the best ({table.test})' if table.test else ''}. ",
        "Point at a number for its n, interval and spread.",
    )
    return joined(words)


def axis_values(groups: Iterable[CellGroup], axis: str) -> list[str]:
    """Return the labels on an axis in the order of the suite; numbers in their own order."""
    values = dict.fromkeys(getattr(group, axis) for group in groups)
    return [str(value) for value in (sorted(values) if axis == "ipc" else values)]


def _starts(table: Table) -> Iterator[tuple[Group, int]]:
    start = 0
    for group in table.groups:
        yield group, start
        start += len(group.columns)


def controls(
    axes: Mapping[str, Sequence[str]], columns: Sequence[Column], shown: Sequence[str], layout: Layout | None = None
) -> Html:
    """Return what filters a page by the values of its axes, chooses columns, and downloads what is shown.

    With `layout`, the one that is shown at first, the layout of the tables can be chosen.
    """
    parts = []
    for axis, values in axes.items():
        if len(values) > 1:
            boxes = [_box(value, True, data_axis=axis, value=value) for value in values]
            name = _NAMES.get(axis, axis)
            parts.append(element("fieldset", element("legend", name), *boxes, data_filter=axis))
    boxes = [_box(column.label, column.metric in shown, data_column=index) for index, column in enumerate(columns)]
    switch = element(
        "label",
        "metric ",
        element(
            "select",
            element("option", "those of the suite", value="shown"),
            *(element("option", column.label, value=index) for index, column in enumerate(columns)),
            element("option", "all", value="all"),
            id="metric",
        ),
    )
    parts.append(element("fieldset", element("legend", "columns"), switch, *boxes, data_columns=True))
    if layout:
        choices = [_choice(words, name == layout, name) for name, words in _LAYOUTS.items()]
        parts.append(element("fieldset", element("legend", "layout"), *choices, data_layouts=True))
    buttons = [
        element("button", words, type="button", data_action=action)
        for action, words in (("reset", "Show everything"), ("csv", "Download CSV"), ("latex", "Download LaTeX"))
    ]
    parts.append(element("p", *buttons, element("span", role="status", aria_live="polite", id="status"), class_="row"))
    summary = element("summary", "Filter, columns, download")
    # Without a script nothing here would do anything.
    return element("details", summary, *parts, class_="controls", hidden=True, open=True)


def _box(label: str, checked: bool, **attributes: object) -> Html:
    return element("label", element("input", type="checkbox", checked=checked, **attributes), label, class_="chip")


def _choice(label: str, checked: bool, value: str) -> Html:
    return element(
        "label", element("input", type="radio", name="layout", checked=checked, value=value), label, class_="chip"
    )


def _block(
    view: View,
    table: Table,
    group: Group,
    start: int,
    columns: Sequence[Column],
    metrics: Metrics,
    groups: Mapping[Place, CellGroup],
) -> Html:
    common = common_notes(group, groups)
    heads = [element("th", name, scope="col", data_label=name) for name in table.labels]
    for one in group.columns:
        record = view.manifest.metric(one.metric, one.evaluator)
        heads.append(heading(one, columns.index(one), one.metric in metrics.shown, record.help if record else ""))
    rows = []
    for line in table.lines:
        cells = line.cells[start : start + len(group.columns)]
        place = Place(group.dataset, group.ipc, line.method, line.inference, line.network)
        if place in groups and (not line.published or any(cell.mean != MISSING for cell in cells)):
            rows.append(_row(view, table, line, cells, group.columns, columns, groups[place], common))
    if not rows:
        return Html("")
    title = f"{group.dataset}, {group.ipc} per class"
    made = element(
        "table",
        element("caption", title, class_="unseen"),
        element("thead", element("tr", *heads)),
        element("tbody", *rows),
        class_="results",
    )
    over = element("h3", title, " ", marks(common))
    where = {"data_dataset": group.dataset, "data_ipc": group.ipc}
    return element("section", over, scrolling(made, title), class_="block", data_filtered=True, **where)


def _row(
    view: View,
    table: Table,
    line: Line,
    cells: Sequence[Cell],
    mine: Sequence[Column],
    columns: Sequence[Column],
    group: CellGroup,
    common: Sequence[str],
) -> Html:
    own = [note for note in group.notes if note not in common]
    badges = () if line.published else (marks(own), None if line.ranked else badge("not ranked"))
    labels = [element("th", line.label("method"), " ", *badges, scope="row")]
    labels += [element("td", line.label(name)) for name in table.labels[1:]]
    numbers = [
        number_cell(cell, column, columns.index(column), line.published)
        for cell, column in zip(cells, mine, strict=True)
    ]
    return element(
        "tr",
        *labels,
        *numbers,
        class_="published" if line.published else None,
        data_filtered=True,
        data_published=line.published or None,
        data_command=None if line.published else line_command(view.invocation, group),
        **filtered_by(group, "method", "inference", "network"),
    )
