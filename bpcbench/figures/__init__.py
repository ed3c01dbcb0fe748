"""Figures as data, and how they are drawn.

An evaluator returns `Curves`, `Bars`, a `Matrix` or a `Reliability` diagram; the core keeps them as JSON and draws them
as SVG, without the plugin that made them. `image_grid` shows images, as PNG.
"""

from __future__ import annotations

from bpcbench.figures.drawing import draw
from bpcbench.figures.encoding import figure_from_json, figure_to_json
from bpcbench.figures.grid import image_grid
from bpcbench.figures.kinds import Bars, Curves, Figure, Matrix, Reliability, Series

__all__ = [
    "Bars",
    "Curves",
    "Figure",
    "Matrix",
    "Reliability",
    "Series",
    "draw",
    "figure_from_json",
    "figure_to_json",
    "image_grid",
]
