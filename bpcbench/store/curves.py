"""The curves that a member keeps: a line of JSON per logged point, of which those are read that are points."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from bpcbench.forms import misfit
from bpcbench.reading import parse_json, read_bounded

CURVES = "curves.jsonl"


class _Point(TypedDict):
    what: str
    step: int
    t: float
    m: Mapping[str, float]


def read_curves(member: Path) -> list[dict[str, Any]]:
    """Return the points that lie in a member's folder; what is no point, or cannot be read, is left out."""
    points = []
    with contextlib.suppress(OSError, ValueError):
        for line in read_bounded(member / CURVES).split(b"\n"):
            with contextlib.suppress(ValueError):
                point = parse_json(line)
                if misfit(point, _Point) is None:
                    points.append(point)
    return points
