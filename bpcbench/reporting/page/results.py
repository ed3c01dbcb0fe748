"""The tables of results as HTML: a block per data set and number of images per class, and what filters them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bpcbench.records import Unit
from bpcbench.reporting.collect import place_of
from bpcbench.reporting.page.commands import line_command
from bpcbench.reporting.page.markup import Html, element, joined, scrolling
from bpcbench.reporting.rows import Place, Row, number
from bpcbench.reporting.table import MISSING, Cell, Column, Group, Line, Table
from bpcbench.reporting.view import View
from bpcbench.stats import Summary
from bpcbench.store.manifest import Group as CellGroup

FURTHER_METRICS = 24
"""So many metrics beyond those that the suite shows are in a page."""
AXES = ("method", "dataset", "ipc", "inference", "network")
_NAMES = {"dataset": "data set"}


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


def results(view: View, table: Table, metrics: Metrics, footnotes: Iterable[str]) -> Html:
    """Return the controls, all blocks and the footnotes."""
    groups = {place_of(group): group for group in view.manifest.groups}
    columns = list(dict.fromkeys(column for group in table.groups for column in group.columns))
    blocks = [_block(view, table, group, start, columns, metrics, groups) for group, start in _starts(table)]
    legend = (
        "In each column: ",
        element("b", "bold"),
        " best, ",
        element("u", "underlined"),
        f" second{f', ~ not distinguishable from the best ({table.test})' if table.test else ''}. ",
        "Point at a number for its n, interval and spread.",
    )
    notes = [element("li", joined(legend)), *(element("li", note) for note in footnotes)]
    if metrics.left_out:
        notes.append(element("li", f"{metrics.left_out} further metrics are not in this page; --metrics names them."))
    return joined(
        (
            controls({axis: axis_values(view.manifest.groups, axis) for axis in AXES}, columns, metrics.shown),
            element("div", *blocks, class_="blocks"),
            element("p", "No line matches the filters.", class_="nothing", hidden=True),
            element("ul", *notes, class_="notes"),
        )
    )


def axis_values(groups: Iterable[CellGroup], axis: str) -> list[str]:
    """Return the labels on an axis in the order of the suite; numbers in their own order."""
    values = dict.fromkeys(getattr(group, axis) for group in groups)
    return [str(value) for value in (sorted(values) if axis == "ipc" else values)]


def filtered_by(place: Place | CellGroup, *axes: str) -> dict[str, str]:
    """Return the attributes by which the filters of a page find an element."""
    return {f"data_{axis}": str(getattr(place, axis)) for axis in axes}


def marks(words: Iterable[str]) -> Html:
    """Return notes of one word as badges; longer notes stand below the table."""
    return joined(element("span", word, class_="badge") for word in dict.fromkeys(words) if " " not in word)


def _starts(table: Table) -> Iterator[tuple[Group, int]]:
    start = 0
    for group in table.groups:
        yield group, start
        start += len(group.columns)


def controls(axes: Mapping[str, Sequence[str]], columns: Sequence[Column], shown: Sequence[str]) -> Html:
    """Return what filters a page by the values of its axes, chooses columns, and downloads what is shown."""
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


def _block(
    view: View,
    table: Table,
    group: Group,
    start: int,
    columns: Sequence[Column],
    metrics: Metrics,
    groups: Mapping[Place, CellGroup],
) -> Html:
    inside = [groups[place] for place in groups if (place.dataset, place.ipc) == (group.dataset, group.ipc)]
    common = [note for note in inside[0].notes if all(note in one.notes for one in inside)] if inside else []
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


def heading(column: Column, index: int, shown: bool, help: str) -> Html:  # noqa: A002
    """Return the heading of the column that the controls of a page know as number `index`."""
    better = {True: "higher is better", False: "lower is better", None: ""}[column.higher_is_better]
    words = "; ".join(part for part in (help, better, column.evaluator) if part)
    return element(
        "th",
        column.label,
        scope="col",
        class_="r",
        title=words or None,
        data_c=index,
        data_shown=shown,
        data_metric=column.metric,
        data_evaluator=column.evaluator,
        data_unit=column.unit or None,
    )


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
    aside = [] if line.ranked or line.published else ["not ranked"]
    badges = joined((marks(own), *(element("span", word, class_="badge") for word in aside)))
    labels = [element("th", line.label("method"), " ", None if line.published else badges, scope="row")]
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


def number_cell(cell: Cell, column: Column, index: int, published: str = "") -> Html:
    """Return a number as a cell of a page's table; `published` names the publication that prints it."""
    summary = cell.summary
    tag = "b" if cell.best else "u" if cell.second else "span"
    spread = element("small", f"±{cell.spread}") if cell.spread else None
    asked = "" if cell.asked is None else f" of {cell.asked}"
    count = element("small", f" (n={cell.count}{asked})") if cell.count is not None else None
    partial = element("small", "†", title="averaged over other evaluation seeds") if cell.partial else None
    tie = element("i", "~", title="not distinguishable from the best") if cell.tied else None
    known = summary is not None and math.isfinite(summary.mean)
    return element(
        "td",
        element(tag, cell.mean),
        spread,
        count,
        partial,
        tie,
        class_="r",
        title=_told(summary, column.unit, published) if summary is not None else None,
        data_c=index,
        data_v=repr(summary.mean) if summary is not None and known else None,
        data_s=None if summary is None or summary.std is None else repr(summary.std),
        data_n=summary.n or None if summary is not None else None,
    )


def _told(summary: Summary, unit: Unit, published: str) -> str:
    if published:
        return f"{published}; its n is not known"
    sign = " %" if unit == "percent" else ""
    parts = [f"n = {summary.n} coreset{'s' if summary.n != 1 else ''}"]
    if summary.std is not None:
        parts.append(f"standard deviation {number(unit, summary.std)}{sign}")
    if summary.low is not None and summary.high is not None:
        ends = f"{number(unit, summary.low, summary.mean)} to {number(unit, summary.high, summary.mean)}"
        parts.append(f"95 % interval of the mean {ends}{sign}")
    if summary.within is not None:
        parts.append(f"standard deviation over evaluation seeds {number(unit, summary.within)}{sign}")
    return "; ".join(parts)
