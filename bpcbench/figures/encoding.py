"""Figures as JSON values and back.

A row of numbers is one text, "0 0.25 nan": it is kept in a file that every table reads, where a list of 100 numbers
takes ten times as long to parse, and JSON has no NaN. Six significant digits are more than a picture shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bpcbench.errors import unknown
from bpcbench.figures.kinds import Bars, Curves, Figure, Matrix, Reliability, Series
from bpcbench.forms import check

KINDS = ("curves", "bars", "matrix", "reliability")


def figure_to_json(figure: Figure) -> dict[str, Any]:
    """Return a figure as JSON values, numbers rounded to six significant digits; TypeError if it is none."""
    if isinstance(figure, Curves):
        series = [
            {"name": name, "x": _text(one.x), "y": _text(one.y)}
            | ({"low": _text(one.low), "high": _text(one.high)} if one.low else {})
            for name, one in figure.series.items()
        ]
        flags = {"log_x": figure.log_x, "markers": figure.markers}
        labels = {"title": figure.title, "x": figure.x, "y": figure.y, "note": figure.note}
        return {"kind": "curves", **labels, **flags, "series": series}
    if isinstance(figure, Bars):
        bars = [{"name": name, "values": _text(values)} for name, values in figure.series.items()]
        labels = {"title": figure.title, "value": figure.value, "note": figure.note}
        return {"kind": "bars", **labels, "labels": list(figure.labels), "series": bars}
    if isinstance(figure, Matrix):
        names = {"rows": list(figure.rows), "columns": list(figure.columns)}
        labels = {"title": figure.title, "x": figure.x, "y": figure.y, "note": figure.note}
        return {"kind": "matrix", **labels, **names, "values": [_text(row) for row in figure.values]}
    if isinstance(figure, Reliability):
        rows = {name: _text(getattr(figure, name)) for name in ("edges", "accuracy", "confidence")}
        return {"kind": "reliability", "title": figure.title, **rows, "count": " ".join(map(str, figure.count))}
    raise TypeError(f"a figure is one of {', '.join(KINDS)} of bpcbench.figures, not a {type(figure).__name__}")


def figure_from_json(value: Mapping[str, Any]) -> Figure:
    """Return the figure that `figure_to_json` encoded; ValueError if it is of an unknown kind or incomplete."""
    kind = value.get("kind")
    if kind not in KINDS:
        raise ValueError(unknown("kind of figure", kind, KINDS))
    try:
        figure = _decoded(kind, value)
        check(figure, type(figure))
        return figure
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"not a figure of kind {kind!r}: {type(error).__name__}: {error}") from error


def _decoded(kind: str, value: Mapping[str, Any]) -> Figure:
    title, note = value["title"], value.get("note", "")
    if kind == "curves":
        series = {
            one["name"]: Series(*(_floats(one.get(name, "")) for name in ("x", "y", "low", "high")))
            for one in value["series"]
        }
        return Curves(title, value["x"], value["y"], series, value["log_x"], value["markers"], note)
    if kind == "bars":
        bars = {one["name"]: _floats(one["values"]) for one in value["series"]}
        return Bars(title, value["labels"], bars, value["value"], note)
    if kind == "matrix":
        rows = [_floats(row) for row in value["values"]]
        return Matrix(title, value["rows"], value["columns"], rows, value["x"], value["y"], note)
    count = [int(number) for number in value["count"].split()]
    edges, accuracy, confidence = (_floats(value[name]) for name in ("edges", "accuracy", "confidence"))
    return Reliability(edges, count, accuracy, confidence, title)


def _text(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:.6g}" for number in numbers)


def _floats(text: str) -> list[float]:
    return [float(word) for word in text.split()]
