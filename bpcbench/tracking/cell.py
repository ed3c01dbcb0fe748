"""A cell as MLflow shows it: parameters, tags, final metrics and curves, all read from the store."""

from __future__ import annotations

import calendar
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bpcbench.store.address import Address
from bpcbench.store.curves import read_curves
from bpcbench.store.manifest import CellRecord
from bpcbench.store.store import Artefact, Store
from bpcbench.tracking.names import CURVE, USAGE, allowed, place

MAX_POINTS = 200
"""Points per curve of a run that is logged when it has ended; a curve that is followed live has up to 1,000."""

Point = tuple[str, float, int]


def curve_points(kind: str, lines: list[dict[str, Any]], task: str = "") -> list[Point]:
    """Return the points in events of a stage: (name, value, step), such as (`trace/coreset/loss`, 0.1, 20).

    `task` tells the steps of class-incremental learning apart: `trace/coreset/task-2/loss`.
    """
    return [
        (allowed("/".join(part for part in (CURVE, kind, task, line["what"], name) if part)), value, line["step"])
        for line in lines
        if "m" in line
        for name, value in line["m"].items()
    ]


@dataclass(frozen=True)
class CellRun:
    """Everything that is logged of a finished cell. Times are milliseconds since 1970.

    It ended with its last score, and lasted as long as its prediction and its scores took together.
    """

    params: Mapping[str, str]
    tags: Mapping[str, str]
    metrics: Mapping[str, float]
    points: tuple[Point, ...]
    began: int
    ended: int


def read_cell(cell: CellRecord, store: Store) -> CellRun:
    """Read a finished cell; what was pruned from the store is left out."""
    params, tags = cell_params(cell), {}
    if cell.group.notes:
        tags["notes"] = "; ".join(cell.group.notes)
    metrics: dict[str, float] = {}
    usage: dict[str, float] = {}
    points: list[Point] = []
    parts = {"coreset": _present(store, cell.coresets), "predict": _predicted(store, cell)}
    for kind, artefacts in parts.items():
        if not artefacts:
            continue
        last = artefacts[-1]
        tags[f"{kind}.key"] = last.address.key if len(artefacts) == 1 else " ".join(a.address.key for a in artefacts)
        tags["commit"] = last.meta.get("environment", {}).get("commit") or "wheel"
        tags["device"] = last.meta.get("device", "cpu")
        for name, cost, combined in (
            ("seconds", "seconds", sum),
            ("cpu_seconds", "cpu_seconds", sum),
            ("peak_memory_bytes", "peak_memory", max),
        ):
            values = [float(a.meta[name]) for a in artefacts if a.meta.get(name) is not None]
            if values:
                usage[f"{USAGE}/{kind}_{cost}"] = combined(values)
        for artefact in artefacts:
            points += _thin(_curves(kind, artefact, cell.task(artefact.address.stage)))
    for role in ("method", "inference", "network"):
        for name, value in cell.group.plugins[role].options.items() if role in cell.group.plugins else ():
            params[f"option.{role}.{name}"] = json.dumps(value) if isinstance(value, dict | list) else str(value)
    if parts["coreset"]:
        usage[f"{USAGE}/coreset_bytes"] = sum(float(part.meta["coreset"]["bytes"]) for part in parts["coreset"])
    scores = {label: store.read(address) for label, address in cell.scores.items()}
    inputs = Counter(name for score in scores.values() for name in score.meta["metrics"])
    for label, score in scores.items():
        tags[f"score.{label}.key"] = score.address.key
        for name, value in score.meta["metrics"].items():
            if np.isfinite(float(value)):
                # Two evaluators may give a metric of one name; each then carries its evaluator's label.
                metrics[allowed(name if inputs[name] == 1 else f"{label}/{name}")] = float(value)
    # The coreset is shared, and its time is a cost of its own; a score may be much younger than its predictions.
    own = [*(parts["predict"] or parts["coreset"]), *scores.values()]
    took = round(1000 * sum(float(part.meta.get("seconds") or 0.0) for part in own))
    ended = max(milliseconds(score.meta["committed"]) for score in scores.values())
    return CellRun(params, tags, metrics | usage, tuple(points), ended - took, ended)


def cell_params(cell: CellRecord) -> dict[str, str]:
    """Return the cell's place in the grid and its seeds, as texts."""
    return {
        **place(cell.group),
        "distil_seed": str(cell.distil_seed),
        "evaluate_seed": str(cell.evaluate_seed),
        **({"class_order": cell.order} if cell.order else {}),
    }


def milliseconds(moment: str) -> int:
    """Return a time of the store in milliseconds since 1970."""
    whole, _, fraction = moment.rstrip("Z").partition(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) * 1000 + int((fraction + "000")[:3])


def _present(store: Store, addresses: tuple[Address, ...]) -> list[Artefact]:
    return [store.read(address) for address in addresses if store.has(address)]


def _predicted(store: Store, cell: CellRecord) -> list[Artefact]:
    """Return one prediction of the cell, and one after every earlier step of class-incremental learning."""
    earlier = [tuple(Address("predict", key, split) for split in cell.earlier_splits) for key in cell.earlier]
    every = (_present(store, addresses) for addresses in (*earlier, cell.predictions))
    return [found[0] for found in every if found]


def _curves(kind: str, artefact: Artefact, task: str = "") -> list[Point]:
    return curve_points(kind, read_curves(artefact.folder), task)


def _thin(points: list[Point]) -> Iterator[Point]:
    by_name: dict[str, list[Point]] = {}
    for point in points:
        by_name.setdefault(point[0], []).append(point)
    for curve in by_name.values():
        stride = -(-len(curve) // MAX_POINTS)
        yield from curve[::stride]
        if (len(curve) - 1) % stride:
            yield curve[-1]
