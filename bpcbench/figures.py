"""Pictures as PNG bytes: grids of images, reliability diagrams, curves.

Nothing here touches pyplot or any other global state, so pictures may be drawn in any process or thread.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bpcbench.records import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIDE = 32
_GAP = 2
_NAN_COLOUR = (255, 0, 255)

# Okabe and Ito's palette: told apart with any colour vision. Yellow is left out, being illegible on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_STYLES = ("-", "--", ":", "-.")
_INK = "#333333"
_PALE = "#DDDDDD"


def image_grid(images: Array, class_ids: Array | None = None, limit: int = 100) -> bytes:
    """Return a grid of at most `limit` images (n, c, h, w) in pixel space, one or three channels, as PNG.

    0 is black and 1 white; values outside are clipped for display only, and NaN is drawn in magenta. With `class_ids`
    (n,) there is a row per class, in the order of the numbers, which shows the first images of each; where it would
    have one image only, classes fill the rows of a square instead, as images without classes do. Small images are
    enlarged by a whole number, without smoothing, to at least 32 pixels a side; a white gap of 2 pixels surrounds each.
    """
    pixels = np.asarray(images)
    if pixels.ndim != 4 or pixels.shape[1] not in (1, 3) or pixels.size == 0:
        raise ValueError(f"images must have shape (n, 1 or 3, height, width) and not be empty, got {pixels.shape}")
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    rows = _rows(len(pixels), class_ids, limit)
    zoom = -(-_SIDE // min(pixels.shape[2:]))
    high, wide = pixels.shape[2] * zoom, pixels.shape[3] * zoom
    columns = max(len(row) for row in rows)
    canvas = np.full((len(rows) * (high + _GAP) + _GAP, columns * (wide + _GAP) + _GAP, 3), 255, dtype=np.uint8)
    for r, row in enumerate(rows):
        for c, index in enumerate(row):
            top, left = r * (high + _GAP) + _GAP, c * (wide + _GAP) + _GAP
            canvas[top : top + high, left : left + wide] = _rgb(pixels[index]).repeat(zoom, 0).repeat(zoom, 1)
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(canvas).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def reliability_diagram(reliability: Mapping[str, Array], title: str = "") -> bytes:
    """Return the picture of what `bpcbench.metrics.reliability` returned, as PNG.

    Above, the accuracy of each bin of confidence and its gap to the bin's mean confidence; below, the share of
    examples in each bin.
    """
    edges, count = np.asarray(reliability["edges"]), np.asarray(reliability["count"])
    filled = count > 0
    if not filled.any():
        raise ValueError("a reliability diagram needs at least one example")
    left, width = edges[:-1][filled], np.diff(edges)[filled]
    accuracy, confidence = np.asarray(reliability["accuracy"])[filled], np.asarray(reliability["confidence"])[filled]
    share = count[filled] / count.sum()
    gap = confidence - accuracy

    figure = _figure(4.4, 5.2)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
    bars: dict[str, Any] = {"align": "edge", "edgecolor": "white", "linewidth": 0.8}
    upper.bar(left, accuracy, width, color=_COLOURS[0], label="accuracy", zorder=2, **bars)
    for side, label, colour in ((gap > 0, "overconfident by", "#F2B48A"), (gap < 0, "underconfident by", "#A6CEE3")):
        if side.any():
            upper.bar(left[side], gap[side], width[side], accuracy[side], color=colour, label=label, zorder=3, **bars)
    upper.plot((0, 1), (0, 1), color=_INK, linestyle="--", linewidth=1, zorder=4)
    upper.set_ylim(0, 1)
    upper.set_ylabel("accuracy")
    box = {"facecolor": "white", "edgecolor": _PALE, "boxstyle": "round,pad=0.35"}
    ece = f"ECE = {np.sum(share * np.abs(gap)):.4f}"
    upper.text(0.97, 0.04, ece, transform=upper.transAxes, ha="right", zorder=5, bbox=box)
    upper.legend(loc="upper left", framealpha=1, edgecolor=_PALE, fontsize=9).set_zorder(5)
    lower.bar(left, share, width, color="#888888", zorder=2, **bars)
    lower.set_xlim(0, 1)
    lower.set_ylim(0, 1.08 * share.max())
    lower.set_xlabel("confidence")
    lower.set_ylabel("share")
    upper.set_title(title, parse_math=False)
    return _png(figure, upper, lower)


def curves(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x: str,
    y: str,
    title: str = "",
    log_x: bool = False,
    markers: bool = True,
) -> bytes:
    """Return lines through the (xs, ys) of each name, with `x` and `y` as the names of the axes, as PNG.

    Points that are not finite are left out, with a gap in the line; `markers` shows where the points are. On a
    logarithmic axis 0 and negative numbers have their place too: it is linear below the smallest positive x.
    """
    if not series:
        raise ValueError("there is no curve to draw")
    figure = _figure(6.4, 4.0)
    axes = figure.subplots()
    for index, (name, (xs, ys)) in enumerate(series.items()):
        if len(xs) != len(ys):
            raise ValueError(f"curve {name!r} has {len(xs)} x values and {len(ys)} y values")
        across, up = np.asarray(xs, dtype=np.float64), np.asarray(ys, dtype=np.float64)
        axes.plot(
            across,
            np.where(np.isfinite(across) & np.isfinite(up), up, np.nan),
            color=_COLOURS[index % len(_COLOURS)],
            marker=_MARKERS[index % len(_MARKERS)] if markers else "",
            linestyle=_STYLES[index // len(_COLOURS) % len(_STYLES)],
            linewidth=1.6,
            markersize=4.5,
            # A label that starts with an underscore would be missing from the legend.
            label=f" {name}" if name.startswith("_") else name,
        )
    if log_x:
        _log_axis(axes, np.concatenate([np.asarray(xs, dtype=np.float64) for xs, _ in series.values()]))
    axes.set_xlabel(x, parse_math=False)
    axes.set_ylabel(y, parse_math=False)
    axes.set_title(title, parse_math=False)
    legend = figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return _png(figure, axes)


def _rows(n: int, class_ids: Array | None, limit: int) -> list[list[int]]:
    """Return the numbers of the images to show, row by row."""
    chosen = list(range(min(n, limit)))
    if class_ids is not None:
        ids = np.asarray(class_ids)
        if ids.shape != (n,):
            raise ValueError(f"class_ids must have shape {(n,)}, got {ids.shape}")
        classes = np.unique(ids)[:limit]
        rows = [np.flatnonzero(ids == each)[: limit // len(classes)].tolist() for each in classes]
        if any(len(row) > 1 for row in rows):
            return rows
        chosen = [row[0] for row in rows]
    columns = int(np.ceil(np.sqrt(len(chosen))))
    return [chosen[start : start + columns] for start in range(0, len(chosen), columns)]


def _rgb(image: Array) -> npt.NDArray[np.uint8]:
    """Return one (c, h, w) image as (h, w, 3) bytes."""
    colours = np.broadcast_to(image, (3, *image.shape[1:])).transpose(1, 2, 0).astype(np.float64)
    shown = np.rint(np.clip(np.nan_to_num(colours, nan=0.0), 0.0, 1.0) * 255.0).astype(np.uint8)
    shown[np.isnan(colours).any(axis=2)] = _NAN_COLOUR
    return shown


def _log_axis(axes: Axes, values: Array) -> None:
    positive = values[np.isfinite(values) & (values > 0)]
    if len(positive) and np.any(values <= 0):
        axes.set_xscale("symlog", linthresh=float(positive.min()))
    elif len(positive):
        axes.set_xscale("log")


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _png(figure: Figure, *all_axes: Axes) -> bytes:
    for axes in all_axes:
        axes.grid(color=_PALE, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_INK)
        axes.tick_params(colors=_INK, labelsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
