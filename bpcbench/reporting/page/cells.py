"""The cells of a page's tables: numbers, their headings, and the badges beside names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from bpcbench.records import Unit
from bpcbench.reporting.page.markup import Html, element, joined
from bpcbench.reporting.rows import Place, number
from bpcbench.reporting.table import Cell, Column, Group, Line
from bpcbench.stats import Summary
from bpcbench.store.manifest import Group as CellGroup


def filtered_by(what: Place | CellGroup | Line | Group, *axes: str) -> dict[str, str]:
    """Return the attributes by which the filters of a page find an element."""
    return {f"data_{axis}": str(getattr(what, axis)) for axis in axes}


def marks(words: Iterable[str]) -> Html:
    """Return notes of one word as badges; longer notes stand below the table."""
    return joined(badge(word) for word in dict.fromkeys(words) if " " not in word)


def badge(words: str) -> Html:
    """Return words that stand out beside a name."""
    return element("span", words, class_="badge")


def common_notes(group: Group, groups: Mapping[Place, CellGroup]) -> list[str]:
    """Return the notes that all lines of a data set and ipc carry."""
    inside = [one for place, one in groups.items() if (place.dataset, place.ipc) == (group.dataset, group.ipc)]
    return [note for note in inside[0].notes if all(note in one.notes for one in inside)] if inside else []


def heading(column: Column, index: int, shown: bool, help: str) -> Html:  # noqa: A002
    """Return the heading of the column that the controls of a page know as number `index`."""
    return element(
        "th",
        column.label,
        scope="col",
        class_="r",
        title=explained(column, help),
        data_c=index,
        data_shown=shown,
        data_metric=column.metric,
        data_evaluator=column.evaluator,
        data_unit=column.unit or None,
    )


def explained(column: Column, help: str) -> str | None:  # noqa: A002
    """Return what a column's heading tells to whoever points at it, if there is anything."""
    better = {True: "higher is better", False: "lower is better", None: ""}[column.higher_is_better]
    return "; ".join(part for part in (help, better, column.evaluator) if part) or None


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
