"""Small tables of texts: aligned for a terminal, Markdown or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Literal, get_args

from bpcbench.reporting.escaping import flat, markdown, spreadsheet

PlainFormat = Literal["text", "md", "csv"]
PLAIN_FORMATS: tuple[PlainFormat, ...] = get_args(PlainFormat)


def plain(headings: Sequence[str], lines: Sequence[Sequence[str]], format: PlainFormat = "text") -> str:  # noqa: A002
    """Return the lines under their headings, numbers to the right, as text that ends with a newline."""
    if format == "csv":
        stream = io.StringIO()
        rows = [[spreadsheet(cell) for cell in line] for line in (headings, *lines)]
        csv.writer(stream, lineterminator="\n").writerows(rows)
        return stream.getvalue()
    right = [all(_is_number(line[i]) for line in lines) and bool(lines) for i in range(len(headings))]
    if format == "md":
        rule = ["---:" if r else "---" for r in right]
        escaped = [[markdown(cell) for cell in cells] for cells in (headings, *lines)]
        return "".join("| " + " | ".join(cells) + " |\n" for cells in (escaped[0], rule, *escaped[1:]))
    headings, lines = [flat(cell) for cell in headings], [[flat(cell) for cell in line] for line in lines]
    widths = [max(len(row[i]) for row in (headings, *lines)) for i in range(len(headings))]
    texts = []
    for row in (headings, ["─" * width for width in widths], *lines):
        cells = (cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True))
        texts.append("  ".join(cells).rstrip() + "\n")
    return "".join(texts)


def _is_number(text: str) -> bool:
    return not text or text[0].isdigit() or (len(text) > 1 and text[0] in "+-." and text[1].isdigit())
