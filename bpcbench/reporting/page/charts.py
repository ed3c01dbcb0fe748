"""The charts of a page: means with intervals, cost against quality, and quality against time.

Colours and markers belong to methods and dashes to inferences, the same in every chart, so that one legend serves all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bpcbench.figures import Series
from bpcbench.figures.axes import Axis, spanning
from bpcbench.figures.svg import COLOURS, Frame, Paper, fitted, text_width
from bpcbench.reporting.page.document import picture
from bpcbench.reporting.page.markup import Html, element

_DASHES = ("", "6 3", "2 3", "8 3 2 3")
_MARKERS = (
    "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",
    "m-3 -3h6v6h-6z",
    "m0 -4l3.8 6.8h-7.6z",
    "m0 -4.4l4.4 4.4l-4.4 4.4l-4.4 -4.4z",
    "m0 4l3.8 -6.8h-7.6z",
    "m-1.3 -4h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
)
_WIDTH, _HEIGHT = 288, 200
_RANKS_WIDTH = 210


@dataclass(frozen=True)
class Key:
    """How the lines of a table look in all charts of a page: colour and marker by method, dash by inference."""

    methods: tuple[str, ...]
    inferences: tuple[str, ...]

    def colour(self, method: str) -> str:
        """Return the class of a method's colour."""
        return f"s{self.methods.index(method) % len(COLOURS)}"

    def marker(self, method: str) -> str:
        """Return the outline of a method's marker, relative to its point."""
        return _MARKERS[self.methods.index(method) % len(_MARKERS)]

    def dash(self, inference: str) -> str:
        """Return the attribute that dashes an inference's lines, or an empty text."""
        pattern = _DASHES[self.inferences.index(inference) % len(_DASHES)]
        return f' stroke-dasharray="{pattern}"' if pattern else ""

    def legend(self) -> Html:
        """Return the legend of all charts."""
        samples = [
            (f'<path class="mark" d="M14 7{self.marker(method)}"/>', self.colour(method), method)
            for method in self.methods
        ]
        if len(self.inferences) > 1:
            samples += [
                (f'<path class="line" d="M1 7h26"{self.dash(inference)}/>', "ink", f"{inference} (inference)")
                for inference in self.inferences
            ]
        entries = []
        for drawn, colour, name in samples:
            swatch = Html(f'<svg class="bpc-figure" width="28" height="14" aria-hidden="true"><g class="{colour}">')
            entries.append(element("li", Html(f"{swatch}{drawn}</g></svg>"), name))
        return element("ul", *entries, class_="legend", aria_label="legend of the charts")


@dataclass(frozen=True)
class Interval:
    """A mean with its interval; without one where `low` and `high` are None."""

    label: str
    method: str
    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Dot:
    """A line of a table in a plane: `std` is the spread of y, `x` is positive."""

    label: str
    method: str
    inference: str
    x: float
    y: float
    std: float | None = None


@dataclass(frozen=True)
class Trace:
    """A curve of a line of a table."""

    label: str
    method: str
    inference: str
    series: Series


@dataclass(frozen=True)
class Level:
    """A line of a table that stands at one value, whatever the other axis says."""

    label: str
    method: str
    inference: str
    value: float


def interval_chart(
    title: str,
    x: str,
    note: str,
    entries: Sequence[Interval],
    key: Key,
    *,
    levels: Sequence[Level] = (),
    higher_first: bool = False,
) -> Html:
    """Return means with intervals, one below the other, by their size; levels are lines from top to bottom."""
    ordered = sorted(entries, key=lambda entry: entry.mean, reverse=higher_first)
    values = [v for e in entries for v in (e.mean, e.low, e.high) if v is not None]
    axis = spanning((*values, *(level.value for level in levels)), 0.05)
    paper = Paper(title, note)
    left = 20 + min(max(text_width(entry.label) for entry in entries), 130)
    frame = Frame(paper, axis, Axis(0, 1), left, paper.top, _RANKS_WIDTH, 20 * len(entries) + 4)
    frame.axes(x, "", axis.ticks(5), ())
    for level in levels:
        paper.add(f'<g class="{key.colour(level.method)}">')
        down = f"M{frame.x(level.value):.1f} {frame.top:.1f}V{frame.bottom:.1f}"
        paper.path("line level", down, key.dash(level.inference))
        paper.add(f"{_tip(level.label)}</g>")
    for row, entry in enumerate(ordered):
        at = frame.top + 12 + 20 * row
        paper.text(left - 6, at + 4, fitted(entry.label, 130), "end")
        paper.add(f'<g class="{key.colour(entry.method)}">')
        if entry.low is not None and entry.high is not None:
            paper.path("line", f"M{frame.x(entry.low):.1f} {at:.1f}H{frame.x(entry.high):.1f}")
        paper.path("mark", f"M{frame.x(entry.mean):.1f} {at:.1f}{key.marker(entry.method)}")
        paper.add("</g>")
    frame.border()
    listed = "; ".join(f"{entry.label} {entry.mean:.3g}" for entry in ordered)
    return picture(paper.document(frame.right + 14, frame.bottom + 44, listed))


def front(dots: Iterable[Dot], higher_is_better: bool) -> list[Dot]:
    """Return the dots that no other beats in both: cheaper to dearer, each better than all before it."""
    kept: list[Dot] = []
    sign = 1 if higher_is_better else -1
    for dot in sorted(dots, key=lambda each: (each.x, -sign * each.y)):
        if not kept or sign * dot.y > sign * kept[-1].y:
            kept.append(dot)
    return kept


def cost_chart(title: str, x: str, y: str, note: str, dots: Sequence[Dot], best: Sequence[Dot], key: Key) -> Html:
    """Return dots on a logarithmic x axis, and a line along the front; a ring is of an inference after the first."""
    bounds = [b for d in dots for b in (d.y - (d.std or 0.0), d.y + (d.std or 0.0))]
    frame = _frame(title, note, spanning((d.x for d in dots), 0.06, True), spanning(bounds), x, y)
    paper = frame.paper
    if len(best) > 1:
        steps = "".join(f"H{frame.x(d.x):.1f}V{frame.y(d.y):.1f}" for d in best[1:])
        paper.add('<g class="front">')
        paper.path("line", f"M{frame.x(best[0].x):.1f} {frame.y(best[0].y):.1f}{steps}")
        paper.add("</g>")
    for dot in dots:
        at, height = frame.x(dot.x), frame.y(dot.y)
        spread = "" if dot.std is None else f" ± {dot.std:.3g}"
        paper.add(f'<g class="{key.colour(dot.method)}">', _tip(f"{dot.label}: {dot.x:.3g} s, {dot.y:.4g}{spread}"))
        if dot.std:
            ends = f"{frame.y(dot.y - dot.std):.1f}V{frame.y(dot.y + dot.std):.1f}"
            paper.path("line", f"M{at:.1f} {ends}")
        hollow = key.inferences.index(dot.inference) % 2 == 1
        paper.path("line hollow" if hollow else "mark", f"M{at:.1f} {height:.1f}{key.marker(dot.method)}")
        paper.add("</g>")
    listed = "; ".join(f"{dot.label} {dot.x:.3g} s, {dot.y:.3g}" for dot in dots)
    return _finished(frame, listed)


def curve_chart(
    title: str,
    axes: tuple[str, str],
    note: str,
    traces: Sequence[Trace],
    levels: Sequence[Level],
    key: Key,
    *,
    log_x: bool = False,
    markers: bool = True,
    diagonal: bool = False,
) -> Html:
    """Return curves with bands over the axes (x, y), and lines across for what has no curve.

    With `diagonal` both axes go from 0 to 1, and a line shows where x and y are equal.
    """
    x, y = axes
    every = [trace.series for trace in traces]
    heights = [v for one in every for v in (*one.y, *one.low, *one.high)] + [level.value for level in levels]
    x_axis = spanning((v for one in every for v in one.x), 0.02 if markers else 0.0, log_x)
    unit = Axis(0, 1)
    frame = _frame(title, note, unit if diagonal else x_axis, unit if diagonal else spanning(heights), x, y)
    if diagonal:
        corners = f"M{frame.left:.1f} {frame.bottom:.1f}L{frame.right:.1f} {frame.top:.1f}"
        frame.paper.path("axis", corners, ' stroke-dasharray="2 3"')
    for level in levels:
        if math.isfinite(level.value):
            frame.paper.add(f'<g class="{key.colour(level.method)}">')
            across = f"M{frame.left:.1f} {frame.y(level.value):.1f}H{frame.right:.1f}"
            frame.paper.path("line level", across, key.dash(level.inference))
            frame.paper.add(f"{_tip(level.label)}</g>")
    for trace in traces:
        one = trace.series
        points = [i for i in range(len(one.x)) if math.isfinite(one.x[i]) and math.isfinite(one.y[i])]
        if not points:
            continue
        frame.paper.add(f'<g class="{key.colour(trace.method)}">')
        banded = [i for i in points if one.low and math.isfinite(one.low[i]) and math.isfinite(one.high[i])]
        if len(banded) > 1:
            above = [f"{frame.x(one.x[i]):.1f} {frame.y(one.high[i]):.1f}" for i in banded]
            below = [f"{frame.x(one.x[i]):.1f} {frame.y(one.low[i]):.1f}" for i in reversed(banded)]
            frame.paper.path("band", f"M{'L'.join((*above, *below))}z")
        places = [f"{frame.x(one.x[i]):.1f} {frame.y(one.y[i]):.1f}" for i in points]
        frame.paper.path("line", f"M{'L'.join(places)}", key.dash(trace.inference))
        if markers:
            frame.paper.path("mark", "".join(f"M{place}{key.marker(trace.method)}" for place in places))
        frame.paper.add(f"{_tip(trace.label)}</g>")
    names = "; ".join([*(trace.label for trace in traces), *(level.label for level in levels)])
    return _finished(frame, f"{y} against {x}: {names}")


def _frame(title: str, note: str, x_axis: Axis, y_axis: Axis, x: str, y: str) -> Frame:
    paper = Paper(title, note)
    ticks = y_axis.ticks(5)
    left = 34 + max((text_width(words) for _, words in ticks), default=0)
    frame = Frame(paper, x_axis, y_axis, left, paper.top, _WIDTH, _HEIGHT)
    frame.axes(x, y, x_axis.ticks(5), ticks)
    return frame


def _finished(frame: Frame, label: str) -> Html:
    frame.border()
    return picture(frame.paper.document(frame.right + 14, frame.bottom + 44, label))


def _tip(words: str) -> Html:
    return element("title", words)
