"""The pure part of the report: rows in, text out. Nothing here reads a store or a plan.

`build` turns rows, one number each, into a `Table` of means with marks and footnotes; `render` writes a table as text.
"""

from __future__ import annotations

from bpcbench.reporting.formats import FORMATS, Format, render
from bpcbench.reporting.rows import Place, Row, to_frame
from bpcbench.reporting.table import Cell, Column, Group, Line, Table, build

__all__ = [
    "FORMATS",
    "Cell",
    "Column",
    "Format",
    "Group",
    "Line",
    "Place",
    "Row",
    "Table",
    "build",
    "render",
    "to_frame",
]
