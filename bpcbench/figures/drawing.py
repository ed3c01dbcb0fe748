"""How each kind of figure is drawn, as SVG.

Drawing is a few string operations: a page shows hundreds of figures, which take less than a millisecond each here and
0.2 to 0.3 seconds each with matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bpcbench.figures.axes import Axis, number_text, spanning
from bpcbench.figures.kinds import Bars, Curves, Figure, Matrix, Reliability, Series
from bpcbench.figures.svg import COLOURS, LINE, Frame, Paper, fitted, legend, text_width

_DASHES = ("", "6 3", "2 3", "8 3 2 3")
# Each marker: where its outline starts, seen from its point, and how it goes on.
_MARKERS = (
    (-3.2, 0.0, "a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0z"),
    (-2.8, -2.8, "h5.6v5.6h-5.6z"),
    (0.0, -3.8, "l3.6 6.4h-7.2z"),
    (0.0, -4.0, "l4 4l-4 4l-4 -4z"),
    (0.0, 3.8, "l3.6 -6.4h-7.2z"),
    (-1.2, -3.8, "h2.4v2.6h2.6v2.4h-2.6v2.6h-2.4v-2.6h-2.6v-2.4h2.6z"),
    (-3.2, -1.6, "l1.6 -1.6l1.6 1.6l1.6 -1.6l1.6 1.6l-1.6 1.6l1.6 1.6l-1.6 1.6l-1.6 -1.6l-1.6 1.6l-1.6 -1.6l1.6 -1.6z"),
)


def draw(figure: Figure) -> str:
    """Return a figure as a complete SVG document, with a viewBox, so that it may be shown at any size."""
    if isinstance(figure, Curves):
        return _curves(figure)
    if isinstance(figure, Bars):
        return _bars(figure)
    if isinstance(figure, Matrix):
        return _matrix(figure)
    return _reliability(figure)


def _curves(figure: Curves) -> str:
    every = list(figure.series.values())
    x_axis = spanning((v for one in every for v in one.x), 0.03 if figure.markers else 0.0, figure.log_x)
    y_axis = spanning(v for one in every for values in (one.y, one.low, one.high) for v in values)
    y_ticks = y_axis.ticks(5)
    paper = Paper(figure.title, figure.note)
    left = 34 + max((text_width(text) for _, text in y_ticks), default=0)
    frame = Frame(paper, x_axis, y_axis, left, paper.top, 400, 250)
    frame.axes(figure.x, figure.y, x_axis.ticks(6), y_ticks)
    at = frame.right + 16
    for index, (name, series) in enumerate(figure.series.items()):
        group = f'<g class="s{index % len(COLOURS)}">'
        pattern = _DASHES[(index // len(COLOURS) if figure.markers else index) % len(_DASHES)]
        dash = f' stroke-dasharray="{pattern}"' if pattern else ""
        marker = _MARKERS[index % len(_MARKERS)] if figure.markers else None
        paper.add(group)
        _line(frame, series, dash, marker)
        paper.add("</g>")
        y = frame.top + 8 + index * LINE
        sample = _marked(at + 12, y, marker) if marker else ""
        line = f'<path class="line" d="M{at:.1f} {y:.1f}h24"{dash}/>'
        paper.add(group, line, f'<path class="mark" d="{sample}"/>' if sample else "", "</g>")
        paper.text(at + 32, y + 4, fitted(name, 220))
    frame.border()
    wide = at + 44 + max(min(text_width(name), 220) for name in figure.series)
    high = max(frame.bottom + 24 + 20 * bool(figure.x), frame.top + len(figure.series) * LINE + 8)
    return paper.document(wide, high, f"{figure.y} against {figure.x}: {', '.join(figure.series)}")


def _line(frame: Frame, series: Series, dash: str, marker: tuple[float, float, str] | None) -> None:
    for run in _runs(series.x, series.low, series.high):
        above = "L".join(f"{frame.x(x):.1f} {frame.y(high):.1f}" for x, _, high in run)
        below = "L".join(f"{frame.x(x):.1f} {frame.y(low):.1f}" for x, low, _ in reversed(run))
        frame.paper.path("band", f"M{above}L{below}z")
    runs = [[(frame.x(x), frame.y(y)) for x, y in run] for run in _runs(series.x, series.y)]
    # A point between two gaps is a line of no length, which its round ends make visible.
    lines = ["M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in run) + ("h0" if len(run) == 1 else "") for run in runs]
    if lines:
        frame.paper.path("line", "".join(lines), dash)
    if marker and lines:
        frame.paper.path("mark", "".join(_marked(x, y, marker) for run in runs for x, y in run))


def _runs(*columns: Sequence[float]) -> list[list[tuple[float, ...]]]:
    """Return the points in runs without a gap; a point with a number that is not finite is a gap."""
    runs: list[list[tuple[float, ...]]] = [[]]
    for point in zip(*columns, strict=False):
        if all(map(math.isfinite, point)):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _marked(x: float, y: float, marker: tuple[float, float, str]) -> str:
    across, down, outline = marker
    return f"M{x + across:.1f} {y + down:.1f}{outline}"


def _bars(figure: Bars) -> str:
    axis = spanning([0.0, *(v for values in figure.series.values() for v in values)], 0.08)
    paper = Paper(figure.title, figure.note)
    thick = 14 if len(figure.series) == 1 else 11
    group = thick * len(figure.series) + 8
    several = len(figure.series) > 1 or next(iter(figure.series)) != ""
    top = paper.top + (LINE + 4) * several
    left = 20 + min(max(map(text_width, figure.labels)), 200)
    frame = Frame(paper, axis, Axis(0, 1), left, top, 360, group * len(figure.labels))
    frame.axes(figure.value, "", axis.ticks(5), ())
    entries = [(f"s{i % len(COLOURS)}", name) for i, name in enumerate(figure.series)]
    right = legend(paper, left, paper.top + 6, entries if several else ())
    for row, label in enumerate(figure.labels):
        y = frame.top + row * group + 4
        paper.text(left - 6, y + (group - 8) / 2 + 4, fitted(label, 200), "end")
        for index, (name, values) in enumerate(figure.series.items()):
            value = values[row]
            if math.isfinite(value):
                start, end = sorted((frame.x(0.0), frame.x(value)))
                tip = f"{label}, {name}: {value:.6g}" if name else f"{label}: {value:.6g}"
                paper.add(f'<g class="s{index % len(COLOURS)}">')
                paper.bar("mark", start, y + index * thick, end - start, thick - 1, tip)
                paper.add("</g>")
    frame.border()
    zero = frame.x(0.0)
    paper.path("axis", f"M{zero:.1f} {frame.top:.1f}V{frame.bottom:.1f}")
    high = frame.bottom + 24 + 20 * bool(figure.value)
    return paper.document(max(frame.right + 24, right), high, f"{figure.value or 'bars'} of {', '.join(figure.labels)}")


def _matrix(figure: Matrix) -> str:
    finite = [value for row in figure.values for value in row if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    texts = [[f"{value:.3g}".replace("-", "−") for value in row] for row in figure.values]
    side = min(44.0, max(4.0, 440 / max(len(figure.rows), len(figure.columns))))
    wide = max(side, max(text_width(text) for row in texts for text in row) + 8) if side >= 20 else side
    across = max(map(text_width, figure.columns))
    turned = across > wide - 4
    paper = Paper(figure.title, figure.note)
    head = (min(across, 140) * 0.71 + 14 if turned else 16) + 18 * bool(figure.x)
    left = 16 + 18 * bool(figure.y) + min(max(map(text_width, figure.rows)), 200)
    top, stride = paper.top + head, math.ceil(13 / side)
    for i, name in enumerate(figure.rows):
        if i % stride == 0:
            paper.text(left - 6, top + (i + 0.5) * side + 4, fitted(name, 200), "end")
        for j, value in enumerate(figure.values[i]):
            if not math.isfinite(value):
                continue
            share = (value - low) / (high - low) if high > low else 0.5
            tip = f"{name}, {figure.columns[j]}: {value:.6g}"
            x, y = left + j * wide, top + i * side
            paper.add('<g class="s0">')
            paper.bar("mark", x, y, wide - (side >= 12), side - (side >= 12), tip, f' fill-opacity="{share:.2f}"')
            paper.add("</g>")
            if side >= 20:
                kind = "light small" if share > 0.6 else "ink small"
                paper.text(x + wide / 2, y + side / 2 + 4, texts[i][j], "middle", kind)
    for j, name in enumerate(figure.columns):
        if j % math.ceil(16 / wide) == 0:
            x = left + (j + 0.5) * wide
            if turned:
                paper.text(x + 3, top - 6, fitted(name, 140), turn=-45)
            else:
                paper.text(x, top - 6, name, "middle")
    right, bottom = left + wide * len(figure.columns), top + side * len(figure.rows)
    if figure.x:
        paper.text((left + right) / 2, paper.top + 8, figure.x, "middle")
    if figure.y:
        paper.text(18, (top + bottom) / 2, fitted(figure.y, bottom - top + 20), "middle", turn=-90)
    span = f"{number_text(low)} to {number_text(high)}"
    over = min(across, 140) * 0.71 if turned else 0
    return paper.document(right + 14 + over, bottom + 12, f"{len(figure.rows)} by {len(figure.columns)}, {span}")


def _reliability(figure: Reliability) -> str:
    total = sum(figure.count)
    shares = [number / total for number in figure.count]
    ece = f"ECE = {figure.ece:.4f}"
    paper = Paper(figure.title)
    rows = list(zip(figure.edges, figure.edges[1:], figure.accuracy, figure.confidence, shares, strict=False))
    unit, top = Axis(0, 1), paper.top + LINE + 6
    upper = Frame(paper, unit, unit, 56, top, 300, 240)
    lower = Frame(paper, unit, Axis(0, 1.08 * max(shares)), 56, top + 256, 300, 70)
    ticks = unit.ticks(5)
    upper.axes("", "accuracy", [(value, "") for value, _ in ticks], ticks)
    lower.axes("confidence", "share", ticks, lower.y_axis.ticks(2))
    seen = {"s0": "accuracy"}
    for (left, right, accuracy, confidence, share), number in zip(rows, figure.count, strict=True):
        if not number:
            continue
        x, width = upper.x(left) + 0.5, upper.x(right) - upper.x(left) - 1
        tip = f"confidence {confidence:.3f}, accuracy {accuracy:.3f}, {number} examples"
        paper.add('<g class="s0">')
        paper.bar("mark", x, upper.y(accuracy), width, upper.bottom - upper.y(accuracy), tip)
        paper.add("</g>")
        kind, words = ("over", "overconfident by") if confidence > accuracy else ("under", "underconfident by")
        if confidence != accuracy:
            seen[kind] = words
            high, low = max(confidence, accuracy), min(confidence, accuracy)
            paper.bar(kind, x, upper.y(high), width, upper.y(low) - upper.y(high), tip)
        paper.bar("share", x, lower.y(share), width, lower.bottom - lower.y(share), f"{number} of {total} examples")
    diagonal = f"M{upper.left:.1f} {upper.bottom:.1f}L{upper.right:.1f} {upper.top:.1f}"
    paper.path("axis", diagonal, ' stroke-dasharray="5 4"')
    upper.border()
    lower.border()
    entries = [(kind, seen[kind]) for kind in ("s0", "over", "under") if kind in seen]
    right = legend(paper, upper.left, paper.top + 6, entries)
    end = max(upper.right, right + text_width(ece))
    paper.text(end, paper.top + 10, ece, "end")
    return paper.document(end + 16, lower.bottom + 44, f"reliability diagram, {ece}")
