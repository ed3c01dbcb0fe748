"""From a table to text: for a terminal, Markdown, LaTeX, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from bpcbench.errors import UserError, unknown
from bpcbench.reporting.escaping import flat, markdown, spreadsheet, tex
from bpcbench.reporting.table import Cell, Table
from bpcbench.stats import Summary

Format = Literal["text", "md", "latex", "csv", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)
Layout = Literal["wide", "paper"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

_FIELDS = (
    *("dataset", "ipc", "method", "inference", "network", "evaluator", "metric", "higher_is_better", "unit", "source"),
    *("mean", "std", "n", "within", "low", "high", "best", "second", "tied", "nonzero", "asked", "seeds"),
    *("text", "notes"),
)


def render(
    table: Table,
    format: Format = "text",  # noqa: A002
    *,
    layout: Layout = "wide",
    color: bool = False,
    width: int | None = None,
    ascii: bool = False,  # noqa: A002
) -> str:
    """Return the table as text that ends with a newline.

    In the layout `wide` lines are methods and every data set and ipc has its columns; in `paper` data sets and ipc
    are the rows and every method has its columns. `text` is aligned for a terminal, with ANSI bold and underline if
    `color`, and broken into panels of whole column groups, or of parts of a group that alone is too wide, if it is
    wider than `width`, and without `±` if `ascii`; `md` is a GitHub table; `latex` is a `table` environment that
    needs booktabs. `csv` and `json` hold one record per cell, whatever the layout, unrounded and as the evaluator
    gave it (with the unit `percent` it is a fraction), without n where a number is published. JSON has null for
    what is not a finite number, and the title and footnotes beside its `cells`. Raise UserError for any other
    format or layout.
    """
    if format not in FORMATS:
        raise UserError(unknown("format", format, FORMATS))
    if layout not in LAYOUTS:
        raise UserError(unknown("layout", layout, LAYOUTS))
    if format == "csv":
        return _csv(table)
    if format == "json":
        return _json(table)
    grid = _wide(table) if layout == "wide" else _paper(table)
    if format == "text":
        return _text(table, grid, _Style(color, ascii), width)
    return _markdown(table, grid) if format == "md" else _latex(table, grid)


@dataclass(frozen=True)
class _Style:
    """What a terminal shows: bold and underlined, or only ASCII."""

    color: bool
    ascii: bool


@dataclass(frozen=True)
class _Block:
    """Columns under one heading."""

    label: str
    heads: tuple[str, ...]


@dataclass(frozen=True)
class _Row:
    labels: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class _Grid:
    """A table laid out: label columns, blocks of columns, rows.

    `compared` says among which cells the best is marked. With `sections`, rows of one first label belong together.
    """

    labels: tuple[str, ...]
    blocks: tuple[_Block, ...]
    rows: tuple[_Row, ...]
    compared: str
    sections: bool = False

    def columns(self) -> Iterator[tuple[_Block, str]]:
        """Yield every column: its block and its own heading."""
        for block in self.blocks:
            for head in block.heads:
                yield block, head


def _wide(table: Table) -> _Grid:
    blocks = tuple(_Block(group.label, tuple(column.label for column in group.columns)) for group in table.groups)
    rows = tuple(_Row(tuple(line.label(name) for name in table.labels), line.cells) for line in table.lines)
    return _Grid(table.labels, blocks, rows, "In each column")


def _paper(table: Table) -> _Grid:
    heads = tuple(dict.fromkeys(column.label for group in table.groups for column in group.columns))
    blocks = tuple(_Block(" / ".join(line.label(name) for name in table.labels), heads) for line in table.lines)
    rows, start = [], 0
    for group in table.groups:
        places = {column.label: start + index for index, column in enumerate(group.columns)}
        start += len(group.columns)
        # A metric that this data set does not have leaves its cell empty; what is only missing is a dash.
        cells = (
            line.cells[places[head]] if head in places else Cell(mean="") for line in table.lines for head in heads
        )
        rows.append(_Row((group.dataset, str(group.ipc)), tuple(cells)))
    compared = "For each metric of a row" if len(heads) > 1 else "In each row"
    return _Grid(("data set", "ipc"), blocks, tuple(rows), compared, sections=True)


def _text(table: Table, grid: _Grid, style: _Style, width: int | None) -> str:
    names = [[name, *(flat(row.labels[index]) for row in grid.rows)] for index, name in enumerate(grid.labels)]
    labels = ["  ".join(row) for row in zip(*map(_left, names), strict=True)]
    left = [" " * len(labels[0]), *labels]
    panels = [left]
    for block, start in _pieces(grid, style, None if width is None else width - len(labels[0]) - 3):
        right = _panel(grid, block, start, style)
        if width is not None and panels[-1] is not left and len(panels[-1][0]) + 3 + len(right[0]) > width:
            panels.append(left)
        panels[-1] = [f"{before}   {after}" for before, after in zip(panels[-1], right, strict=True)]
    wide = min(width or 120, max(80, min(max(len(panel[0]) for panel in panels), 120)))
    out = [textwrap.fill(flat(table.title), wide)] if table.title else []
    for panel in panels:
        rule = "─" * len(panel[0])
        out += [*([""] if out else []), *panel[:2], rule, *panel[2:], rule]
    legend = _legend(table, grid, *(("bold", "underlined") if style.color else ("*", "_")), "~", "*")
    notes = [_wrapped(flat(note), wide) for note in (*legend, *table.footnotes)]
    return _lines(*(line.rstrip() for line in out), *notes)


def _pieces(grid: _Grid, style: _Style, room: int | None) -> Iterator[tuple[_Block, int]]:
    """Yield the blocks, each with the number of its first column, in parts where one is wider than there is room."""
    start = 0
    for block in grid.blocks:
        first, used = 0, 0
        for index, head in enumerate(block.heads):
            cells = [row.cells[start + index] for row in grid.rows]
            size = len(_column(flat(head), cells, style)[0]) + 2
            if room is not None and index > first and used + size - 2 > room:
                yield _Block(block.label, block.heads[first:index]), start + first
                first, used = index, 0
            used += size
        yield _Block(block.label, block.heads[first:]), start + first
        start += len(block.heads)


def _panel(grid: _Grid, block: _Block, start: int, style: _Style) -> list[str]:
    """Return the block's heading, the headings of its columns and its rows, all of the same visible width."""
    columns = [
        _column(flat(head), [row.cells[index] for row in grid.rows], style)
        for index, head in enumerate(block.heads, start)
    ]
    heads, *lines = ("  ".join(row) for row in zip(*columns, strict=True))
    over = f"─ {flat(block.label)} ─".center(len(heads), "─")
    lead = " " * (len(over) - len(heads))
    return [over, lead + heads, *(lead + line for line in lines)]


def _column(heading: str, cells: Sequence[Cell], style: _Style) -> list[str]:
    """Return a column's heading and cells, aligned where the mean ends, all of the same visible width."""
    size = max((len(cell.mean) for cell in cells), default=0)
    spread = "+-" if style.ascii else "±"
    rests = _left([_rest(cell).replace("±", spread) for cell in cells]) or [""]
    marks = [
        ("" if style.color else "*" * cell.best + "_" * cell.second) + "~" * cell.tied + "*" * cell.nonzero
        for cell in cells
    ]
    tails = _left([f" {mark}" if mark else "" for mark in marks]) or [""]
    over = heading.rjust(size + len(rests[0])).ljust(size + len(rests[0] + tails[0]))
    lead = len(over) - len(rests[0] + tails[0])
    column = [over]
    for cell, rest, tail in zip(cells, rests, tails, strict=False):
        code = ("\033[1m" if cell.best else "\033[4m" if cell.second else "") if style.color else ""
        mean = f"{code}{cell.mean}\033[0m" if code else cell.mean
        column.append(" " * (lead - len(cell.mean)) + mean + rest + tail)
    return column


def _markdown(table: Table, grid: _Grid) -> str:
    heads = [f"{markdown(block.label)}<br>{markdown(head)}" for block, head in grid.columns()]
    rows = [[*grid.labels, *heads], [*("---" for _ in grid.labels), *("---:" for _ in heads)]]
    # GitHub drops <u> and keeps <ins>.
    style = ("**", "**"), ("<ins>", "</ins>"), r" \~", r" \*"
    for row in grid.rows:
        cells = (_styled(markdown(cell.mean), markdown(_rest(cell)), cell, *style) for cell in row.cells)
        rows.append([*map(markdown, row.labels), *cells])
    legend = _legend(table, grid, "**bold**", "<ins>underlined</ins>", r"\~", r"\*")
    notes = [f"- {note}" for note in (*legend, *map(markdown, table.footnotes))]
    title = [f"**{markdown(table.title)}**", ""] if table.title else []
    return _lines(*title, *(f"| {' | '.join(row)} |" for row in rows), *([""] if notes else []), *notes)


def _latex(table: Table, grid: _Grid) -> str:
    first = len(grid.labels) + 1
    over, rules = [""] * len(grid.labels), []
    for block in grid.blocks:
        last = first + len(block.heads) - 1
        over.append(rf"\multicolumn{{{len(block.heads)}}}{{c}}{{{tex(block.label)}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{last}}}")
        first = last + 1
    heads = [*grid.labels, *(tex(head) for _, head in grid.columns())]
    style = (r"\textbf{", "}"), (r"\underline{", "}"), r"$^{\sim}$", "$^{*}$"
    body: list[str] = []
    above = None
    for row in grid.rows:
        cells = (_styled(tex(cell.mean), tex(_rest(cell)), cell, *style) for cell in row.cells)
        name, *others = map(tex, row.labels)
        if grid.sections and above not in (None, row.labels[0]):
            body.append(r"\midrule")
        body.append(_tex_row(["" if grid.sections and above == row.labels[0] else name, *others, *cells]))
        above = row.labels[0]
    legend = _legend(table, grid, r"\textbf{bold}", r"\underline{underlined}", r"$^{\sim}$", "$^{*}$")
    # The legend holds commands already, but a percent sign would turn the rest of the line into a comment.
    notes = " ".join((*(note.replace("%", r"\%") for note in legend), *map(tex, table.footnotes)))
    return _lines(
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        *([rf"\caption{{{tex(table.title)}}}"] if table.title else ()),
        rf"\begin{{tabular}}{{{'l' * len(grid.labels)}{'c' * (first - 1 - len(grid.labels))}}}",
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
    for record in _records(table):
        written = {**record, "seeds": " ".join(map(str, record["seeds"]))}
        writer.writerow({name: spreadsheet(value) for name, value in written.items()})
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
                *(cell.best, cell.second, cell.tied, cell.nonzero, cell.asked, list(cell.seeds)),
                *(cell.mean + _rest(cell), "; ".join(cell.notes)),
            )
            yield dict(zip(_FIELDS, values, strict=True))


def _numbers(summary: Summary | None) -> tuple[float | None, ...]:
    if summary is None:
        return (None,) * 6
    return (summary.mean, summary.std, summary.n or None, summary.within, summary.low, summary.high)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _legend(table: Table, grid: _Grid, best: str, second: str, tie: str, nonzero: str) -> list[str]:
    if table.baseline:
        marked = any(cell.nonzero for line in table.lines for cell in line.cells)
        return [f"{nonzero} The 95 % interval excludes zero."] if marked else []
    if not any(cell.best for line in table.lines for cell in line.cells):
        return []
    noise = f", {tie} not distinguishable from the best ({table.test})" if table.test else ""
    return [f"{grid.compared}: {best} best, {second} second{noise}."]


def _styled(
    mean: str, rest: str, cell: Cell, best: tuple[str, str], second: tuple[str, str], tie: str, nonzero: str
) -> str:
    before, after = best if cell.best else second if cell.second else ("", "")
    return f"{before}{mean}{after}{rest}{tie if cell.tied else ''}{nonzero if cell.nonzero else ''}"


def _rest(cell: Cell) -> str:
    """Return what follows the mean in every format: the spread or the interval, and n where it must be shown."""
    asked = "" if cell.asked is None else f" of {cell.asked}"
    count = "" if cell.count is None else f" (n={cell.count}{asked})"
    interval = f" {cell.interval}" if cell.interval else ""
    return (f"±{cell.spread}" if cell.spread else "") + interval + count + "†" * cell.partial


def _tex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _left(cells: Sequence[str]) -> list[str]:
    size = max(map(len, cells), default=0)
    return [cell.ljust(size) for cell in cells]


def _lines(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def _wrapped(note: str, width: int) -> str:
    # Words stay whole: a footnote may hold a command, with paths and options, that somebody copies.
    return textwrap.fill(note, width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
