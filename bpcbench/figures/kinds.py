"""The kinds of figures: frozen records of plain numbers and texts.

Numbers are kept as tuples of floats, whatever sequence they were given as. NaN and infinities are allowed: a curve has
a gap there. At most about 100 points per curve are of use to an eye, and every figure is kept with its scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Series:
    """A line through the points (x, y), with an optional band from `low` to `high` around it."""

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()

    def __post_init__(self) -> None:
        for name in ("x", "y", "low", "high"):
            object.__setattr__(self, name, _floats(getattr(self, name)))
        if len(self.x) != len(self.y):
            raise ValueError(f"a series has {len(self.x)} x values and {len(self.y)} y values")
        if len(self.low) != len(self.high) or len(self.low) not in (0, len(self.x)):
            raise ValueError(
                f"a band has a low and a high value per point, got {len(self.low)} and {len(self.high)} "
                f"for {len(self.x)} points"
            )


@dataclass(frozen=True)
class Curves:
    """Lines by name; `x` and `y` are the labels of the axes.

    On a logarithmic axis zero and negative numbers have a place too: it is linear below the smallest positive x.
    `markers` shows where the points are. `note` is a small line under the title.
    """

    title: str
    x: str
    y: str
    series: Mapping[str, Series]
    log_x: bool = False
    markers: bool = True
    note: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "series", dict(self.series))
        if not self.series:
            raise ValueError("curves need at least one series")


@dataclass(frozen=True)
class Bars:
    """A bar per label and series, horizontal; `value` labels the axis of their lengths."""

    title: str
    labels: Sequence[str]
    series: Mapping[str, Sequence[float]]
    value: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))
        object.__setattr__(self, "series", {name: _floats(values) for name, values in self.series.items()})
        if not self.labels or not self.series:
            raise ValueError("bars need at least one label and one series")
        for name, values in self.series.items():
            if len(values) != len(self.labels):
                raise ValueError(f"series {name!r} has {len(values)} values for {len(self.labels)} labels")


@dataclass(frozen=True)
class Matrix:
    """A table of numbers as colours: `values[i][j]` belongs to `rows[i]` and `columns[j]`."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]
    x: str = ""
    y: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "values", tuple(_floats(row) for row in self.values))
        shape = (len(self.rows), len(self.columns))
        if 0 in shape or len(self.values) != shape[0] or any(len(row) != shape[1] for row in self.values):
            got = f"{len(self.values)} rows of {sorted({len(row) for row in self.values})}"
            raise ValueError(f"a matrix of {shape[0]} rows and {shape[1]} columns cannot have values of {got}")


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: what `bpcbench.metrics.reliability` returns, bin by bin; NaN where a bin is empty."""

    edges: Sequence[float]
    count: Sequence[int]
    accuracy: Sequence[float]
    confidence: Sequence[float]
    title: str = ""

    def __post_init__(self) -> None:
        for name in ("edges", "accuracy", "confidence"):
            object.__setattr__(self, name, _floats(getattr(self, name)))
        object.__setattr__(self, "count", tuple(int(number) for number in self.count))
        bins = len(self.count)
        if (len(self.edges), len(self.accuracy), len(self.confidence)) != (bins + 1, bins, bins):
            raise ValueError(
                f"{bins} bins have {bins + 1} edges and {bins} accuracies and confidences, got {len(self.edges)}, "
                f"{len(self.accuracy)} and {len(self.confidence)}"
            )
        if sum(self.count) < 1:
            raise ValueError("a reliability diagram needs at least one example")

    @property
    def ece(self) -> float:
        """The expected calibration error: the mean gap between confidence and accuracy, weighted by the counts."""
        bins = zip(self.count, self.accuracy, self.confidence, strict=True)
        return sum(n * abs(accuracy - confidence) for n, accuracy, confidence in bins if n) / sum(self.count)


Figure: TypeAlias = Curves | Bars | Matrix | Reliability


def _floats(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(map(float, values))
