"""From a table to text: for a terminal, Markdown, LaTeX, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from bpcbench.errors import UserError, unknown
from bpcbench.reporting.table import Cell, Group, Table
from bpcbench.stats import Summary

Format = Literal["text", "md", "latex", "csv", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)

_FIELDS = (
    *("dataset", "ipc", "method", "inference", "network", "evaluator", "metric", "higher_is_better", "unit", "source"),
    *("mean", "std", "n", "within", "low", "high", "best", "second", "tied", "text", "notes"),
)
_TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # At the start of a line these two would be read as arguments of the \\ that ends the line before.
    "[": "{[}",
    "*": "{*}",
    "±": r"$\pm$",
    "—": "---",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
}


def render(table: Table, format: Format = "text", *, color: bool = False, width: int | None = None) -> str:  # noqa: A002
    """Return the table as text that ends with a newline.

    `text` is aligned for a terminal, with ANSI bold and underline if `color`, and broken into panels of whole column
    groups, or of parts of a group that alone is too wide, if it is wider than `width`; `md` is a GitHub table; `latex`
    is a `table` environment that needs booktabs. `csv` and `json` hold one record per cell, unrounded and as the
    evaluator gave it (with the unit `percent` it is a fraction), without n where a number is published. JSON has null
    for what is not a finite number, and the title and footnotes beside its `cells`. Raise UserError for any other
    format.
    """
    if format == "text":
        return _text(table, color, width)
    writers = {"md": _markdown, "latex": _latex, "csv": _csv, "json": _json}
    if format not in writers:
        raise UserError(unknown("format", format, FORMATS))
    return writers[format](table)


def _text(table: Table, color: bool, width: int | None) -> str:
    names = [[name, *(_flat(line.label(name)) for line in table.lines)] for name in table.labels]
    labels = ["  ".join(row) for row in zip(*map(_left, names), strict=True)]
    left = [" " * len(labels[0]), *labels]
    panels = [left]
    for group, start in _pieces(table, color, None if width is None else width - len(labels[0]) - 3):
        right = _panel(table, group, start, color)
        if width is not None and panels[-1] is not left and len(panels[-1][0]) + 3 + len(right[0]) > width:
            panels.append(left)
        panels[-1] = [f"{before}   {after}" for before, after in zip(panels[-1], right, strict=True)]
    out = [_flat(table.title)] if table.title else []
    for panel in panels:
        rule = "─" * len(panel[0])
        out += [*([""] if out else []), *panel[:2], rule, *panel[2:], rule]
    legend = _legend(table, *(("bold", "underlined") if color else ("*", "_")), "~")
    wide = max(80, min(max(len(panel[0]) for panel in panels), 120))
    notes = [_wrapped(_flat(note), wide) for note in (*legend, *table.footnotes)]
    return _lines(*(line.rstrip() for line in out), *notes)


def _pieces(table: Table, color: bool, room: int | None) -> Iterator[tuple[Group, int]]:
    """Yield the groups, each with the number of its first column, in parts where one is wider than there is room."""
    start = 0
    for group in table.groups:
        first, used = 0, 0
        for index, column in enumerate(group.columns):
            cells = [line.cells[start + index] for line in table.lines]
            size = len(_block(_flat(column.label), cells, color)[0]) + 2
            if room is not None and index > first and used + size - 2 > room:
                yield replace(group, columns=group.columns[first:index]), start + first
                first, used = index, 0
            used += size
        yield replace(group, columns=group.columns[first:]), start + first
        start += len(group.columns)


def _panel(table: Table, group: Group, start: int, color: bool) -> list[str]:
    """Return the group's heading, the headings of its columns and its lines, all of the same visible width."""
    blocks = [
        _block(_flat(column.label), [line.cells[index] for line in table.lines], color)
        for index, column in enumerate(group.columns, start)
    ]
    heads, *lines = ("  ".join(row) for row in zip(*blocks, strict=True))
    over = f"─ {_flat(group.label)} ─".center(len(heads), "─")
    lead = " " * (len(over) - len(heads))
    return [over, lead + heads, *(lead + line for line in lines)]


def _block(heading: str, cells: Sequence[Cell], color: bool) -> list[str]:
    """Return a column's heading and cells, aligned where the mean ends, all of the same visible width."""
    size = max(len(cell.mean) for cell in cells)
    rests = _left([_rest(cell) for cell in cells])
    marks = [("" if color else "*" * cell.best + "_" * cell.second) + "~" * cell.tied for cell in cells]
    tails = _left([f" {mark}" if mark else "" for mark in marks])
    over = heading.rjust(size + len(rests[0])).ljust(size + len(rests[0] + tails[0]))
    lead = len(over) - len(rests[0] + tails[0])
    block = [over]
    for cell, rest, tail in zip(cells, rests, tails, strict=True):
        code = ("\033[1m" if cell.best else "\033[4m" if cell.second else "") if color else ""
        mean = f"{code}{cell.mean}\033[0m" if code else cell.mean
        block.append(" " * (lead - len(cell.mean)) + mean + rest + tail)
    return block


def _markdown(table: Table) -> str:
    heads = [f"{_md(group.label)}<br>{_md(column.label)}" for group in table.groups for column in group.columns]
    rows = [[*table.labels, *heads], [*("---" for _ in table.labels), *("---:" for _ in heads)]]
    for line in table.lines:
        cells = (_styled(cell.mean, _rest(cell), cell, ("**", "**"), ("<u>", "</u>"), " ~") for cell in line.cells)
        rows.append([*(_md(line.label(name)) for name in table.labels), *cells])
    legend = _legend(table, "**bold**", "<u>underlined</u>", r"\~")
    notes = [f"- {note}" for note in (*legend, *map(_md, table.footnotes))]
    title = [f"**{_md(table.title)}**", ""] if table.title else []
    return _lines(*title, *(f"| {' | '.join(row)} |" for row in rows), *([""] if notes else []), *notes)


def _latex(table: Table) -> str:
    first = len(table.labels) + 1
    over, rules = [""] * len(table.labels), []
    for group in table.groups:
        last = first + len(group.columns) - 1
        over.append(rf"\multicolumn{{{len(group.columns)}}}{{c}}{{{_tex(group.label)}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{last}}}")
        first = last + 1
    heads = [*table.labels, *(_tex(column.label) for group in table.groups for column in group.columns)]
    body = []
    for line in table.lines:
        style = (r"\textbf{", "}"), (r"\underline{", "}"), r"$^{\sim}$"
        cells = (_styled(_tex(cell.mean), _tex(_rest(cell)), cell, *style) for cell in line.cells)
        body.append(_tex_row([*(_tex(line.label(name)) for name in table.labels), *cells]))
    legend = _legend(table, r"\textbf{bold}", r"\underline{underlined}", r"$^{\sim}$")
    notes = " ".join((*legend, *map(_tex, table.footnotes)))
    return _lines(
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        *([rf"\caption{{{_tex(table.title)}}}"] if table.title else ()),
        rf"\begin{{tabular}}{{{'l' * len(table.labels)}{'c' * (first - 1 - len(table.labels))}}}",
        r"\toprule",
        *([_tex_row(over), "".join(rules)] if rules else ()),
        _tex_row(heads),
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *([r"\par\smallskip", rf"\parbox{{\linewidth}}{{\footnotesize {notes}}}"] if notes else ()),
        r"\end{table}",
    )


def _csv(table: Table) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, _FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_records(table))
    return out.getvalue()


def _json(table: Table) -> str:
    cells = [{key: _finite(value) for key, value in record.items()} for record in _records(table)]
    document = {"title": table.title, "cells": cells, "footnotes": list(table.footnotes)}
    return json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def _records(table: Table) -> Iterator[dict[str, Any]]:
    places = [(group, column) for group in table.groups for column in group.columns]
    for line in table.lines:
        for (group, column), cell in zip(places, line.cells, strict=True):
            values = (
                *(group.dataset, group.ipc, line.method, line.inference, line.network),
                *("" if line.published else column.evaluator, column.metric, column.higher_is_better, column.unit),
                line.published or "measured",
                *_numbers(cell.summary),
                *(cell.best, cell.second, cell.tied, cell.mean + _rest(cell), "; ".join(cell.notes)),
            )
            yield dict(zip(_FIELDS, values, strict=True))


def _numbers(summary: Summary | None) -> tuple[float | None, ...]:
    if summary is None:
        return (None,) * 6
    return (summary.mean, summary.std, summary.n or None, summary.within, summary.low, summary.high)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _legend(table: Table, best: str, second: str, tie: str) -> list[str]:
    if not any(cell.best for line in table.lines for cell in line.cells):
        return []
    noise = "not distinguishable from the best (Welch's t-test at the 0.05 level)"
    return [f"In each column: {best} best, {second} second, {tie} {noise}."]


def _styled(mean: str, rest: str, cell: Cell, best: tuple[str, str], second: tuple[str, str], tie: str) -> str:
    before, after = best if cell.best else second if cell.second else ("", "")
    return f"{before}{mean}{after}{rest}{tie if cell.tied else ''}"


def _rest(cell: Cell) -> str:
    """Return what follows the mean in every format: the spread, and n where it must be shown."""
    return (f"±{cell.spread}" if cell.spread else "") + (f" (n={cell.count})" if cell.count is not None else "")


def _md(text: str) -> str:
    """Return text that GitHub shows as it is; an underscore inside a word needs no escape and gets none."""
    bare = _flat(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"[\\`*|~\[\]]|(?<!\w)_|_(?!\w)", lambda found: f"\\{found[0]}", bare)


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in _flat(text))


def _tex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def _left(cells: Sequence[str]) -> list[str]:
    size = max(map(len, cells))
    return [cell.ljust(size) for cell in cells]


def _lines(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def _wrapped(note: str, width: int) -> str:
    # Words stay whole: a footnote may hold a command, with paths and options, that somebody copies.
    return textwrap.fill(note, width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
