"""What a stage.json holds, by the kind of its stage: the types on which every reader may rely."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict

from bpcbench.forms import Rule, misfit
from bpcbench.store.address import Address

_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z", re.ASCII)

Moment = Annotated[str, Rule("a time such as 2026-01-31T12:00:00Z", lambda text: is_moment(text))]
Amount = Annotated[float, Rule("a number, 0 or more", lambda value: 0 <= value < math.inf)]
Count = Annotated[int, Rule("a whole number, 0 or more", lambda value: value >= 0)]
Number = float | Literal["nan", "inf", "-inf"]
"""As scores keep it: JSON has no NaN."""
Place = Annotated[str, Rule("an address", lambda text: is_address(text))]


class _Any(TypedDict, total=False):
    label: str
    committed: Moment
    started: Moment
    seconds: Amount
    cpu_seconds: Amount
    predict_seconds: Amount
    peak_memory_bytes: Amount | None
    jobs: Count
    device: str
    code: str | None
    environment: Mapping[str, str | int | float | None]
    inputs: list[Place]
    stage: Mapping[str, Any]


class _Coreset(TypedDict):
    bytes: Count
    classes: Count
    convention: str


class _CoresetMember(_Any):
    coreset: _Coreset


class _Predicted(TypedDict, total=False):
    predictions: list[Place]


class _ScoreMember(_Any):
    metrics: Mapping[str, Number]
    directions: Mapping[str, Literal["higher", "lower"] | None]
    units: Mapping[str, str]
    stage: _Predicted  # type: ignore[misc] # narrower: what a score is made of is read again


class _Figures(TypedDict, total=False):
    figures: Mapping[str, Mapping[str, Any]]


_FORMS: Mapping[str, tuple[Any, ...]] = {"coreset": (_CoresetMember,), "score": (_ScoreMember, _Figures)}


def is_moment(text: str) -> bool:
    """Say whether a text is a time as the store writes it."""
    return _MOMENT.fullmatch(text) is not None and datetime.fromisoformat(text[:19]).year >= 1970


def is_address(text: str) -> bool:
    """Say whether a text names a place in a store."""
    try:
        return Address.parse(text).proper
    except ValueError:
        return False


def wrong_content(kind: str, meta: Mapping[str, Any]) -> str | None:
    """Return what in a stage.json is not of the type that its readers rely on, or None."""
    for form in _FORMS.get(kind, (_Any,)):
        if wrong := misfit(meta, form):
            return f"`{wrong.removeprefix('.').replace(' is ', '` is ', 1)}"
    for part in ("directions", "units") if kind == "score" else ():
        if lacking := meta["metrics"].keys() - meta[part].keys():
            return f"`{part}` lacks {min(lacking)[:60]!r}"
    return None
