"""The pure part of the report: rows in, text out. Nothing here reads a store or a plan.

`build` turns rows, one number each, into a `Table` of means with marks and footnotes; `render` writes a table as text.
"""

from __future__ import annotations

from bpcbench.reporting.formats import FORMATS, LAYOUTS, Format, Layout, render
from bpcbench.reporting.rows import Asked, Place, Row, to_frame
from bpcbench.reporting.table import Cell, Column, Group, Line, Table, build

__all__ = [
    "FORMATS",
    "LAYOUTS",
    "Asked",
    "Cell",
    "Column",
    "Format",
    "Group",
    "Layout",
    "Line",
    "Place",
    "Row",
    "Table",
    "build",
    "render",
    "to_frame",
]
