"""A cell as MLflow shows it: parameters, tags, final metrics, curves and pictures, all read from the store."""

from __future__ import annotations

import calendar
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bpcbench.coresets.files import transform_of
from bpcbench.figures import draw, figure_from_json, image_grid
from bpcbench.planning.plan import Cell
from bpcbench.store.address import Address
from bpcbench.store.store import STAGE, Artefact, Store

MAX_POINTS = 200
"""Points per curve of a run that is logged when it has ended; a curve that is followed live has up to 1,000."""

Point = tuple[str, float, int]


def names(cell: Cell) -> dict[str, str]:
    """Return the cell's place in the grid, as texts."""
    return {
        "dataset": cell.dataset,
        "ipc": str(cell.ipc),
        "method": cell.method,
        "inference": cell.inference,
        "network": cell.network,
        "distil_seed": str(cell.distil_seed),
        "evaluate_seed": str(cell.evaluate_seed),
    }


def run_name(cell: Cell) -> str:
    """Return the cell in words, what differs most first: MLflow's column is narrow."""
    seeds = f"{cell.distil_seed}.{cell.evaluate_seed}"
    return f"{cell.method} ipc {cell.ipc} {cell.inference} {seeds} ({cell.dataset}, {cell.network})"


def curve_name(kind: str, what: str, name: str) -> str:
    """Return the name of a curve, such as `coreset/loss` or `predict/member 2/loss`."""
    return _allowed("/".join(part for part in (kind, what, name) if part))


def curve_points(kind: str, lines: list[dict[str, Any]]) -> list[Point]:
    """Return the points in events of a stage: (name, value, step)."""
    return [
        (curve_name(kind, line["what"], name), value, line["step"])
        for line in lines
        if "m" in line
        for name, value in line["m"].items()
    ]


@dataclass(frozen=True)
class CellRun:
    """Everything that is logged of a finished cell."""

    params: Mapping[str, str]
    tags: Mapping[str, str]
    metrics: Mapping[str, float]
    points: tuple[Point, ...]
    began: int
    ended: int
    """Milliseconds since 1970: when its last score was committed, and that less what its stages took."""
    files: Mapping[str, bytes]
    notes: tuple[str, ...] = ()
    """What could not be had, such as a picture whose drawing failed."""


def read_cell(cell: Cell, store: Store) -> CellRun:
    """Read a finished cell; what was pruned from the store, or cannot be drawn, is left out."""
    assert cell.coreset is not None
    params, tags = names(cell), names(cell)
    if cell.notes:
        tags["notes"] = "; ".join(cell.notes)
    metrics: dict[str, float] = {}
    files: dict[str, bytes] = {}
    points: list[Point] = []
    notes: list[str] = []
    artefacts = {"coreset": _find(store, cell.coreset), "predict": _first(store, "predict", cell.predict)}
    for kind, artefact in artefacts.items():
        if artefact is None:
            continue
        tags[f"{kind}.key"] = artefact.address.key
        tags["commit"] = artefact.meta["environment"].get("commit") or "wheel"
        tags["device"] = artefact.meta.get("device", "cpu")
        for name, cost in (
            ("seconds", "seconds"),
            ("cpu_seconds", "cpu_seconds"),
            ("peak_memory_bytes", "peak_memory"),
        ):
            if name in artefact.meta:
                metrics[f"cost/{kind}_{cost}"] = float(artefact.meta[name])
        files[f"{kind}/{STAGE}"] = (artefact.folder / STAGE).read_bytes()
        points += _thin(_curves(kind, artefact))
    params |= _options(artefacts)
    if artefacts["coreset"] is not None:
        metrics["cost/coreset_bytes"] = float(artefacts["coreset"].meta["coreset"]["bytes"])
        try:
            files["coreset.png"] = _grid(artefacts["coreset"])
        except Exception as error:
            notes.append(f"{cell.label}: no picture of the coreset: {type(error).__name__}: {error}")
    scores = {label: store.read(address) for label, address in cell.scores.items()}
    given = Counter(name for score in scores.values() for name in score.meta["metrics"])
    for label, score in scores.items():
        tags[f"score.{label}.key"] = score.address.key
        for name, value in score.meta["metrics"].items():
            if np.isfinite(float(value)):
                # Two evaluators may give a metric of one name; each then carries its evaluator's label.
                metrics[_allowed(name if given[name] == 1 else f"{label}/{name}")] = float(value)
        files[f"score/{label}/{STAGE}"] = (score.folder / STAGE).read_bytes()
        try:
            pictures = _figures(score)
        except Exception as error:
            notes.append(f"{cell.label}: no figures of {label}: {type(error).__name__}: {error}")
        else:
            prefix = "" if len(scores) == 1 else f"{label}/"
            files |= {f"{prefix}{name}.svg": svg for name, svg in pictures.items()}
    ended = max(_milliseconds(store.meta(address)["committed"]) for address in cell.scores.values())
    took = sum(artefact.meta.get("seconds", 0.0) for artefact in artefacts.values() if artefact is not None)
    return CellRun(params, tags, metrics, tuple(points), ended - round(1000 * took), ended, files, tuple(notes))


def _figures(score: Artefact) -> dict[str, bytes]:
    return {name: draw(figure_from_json(figure)).encode() for name, figure in score.meta["figures"].items()}


def _allowed(name: str) -> str:
    """Return the name with what MLflow refuses replaced."""
    return re.sub(r"[^\w\-./ :]", "_", name)


def _milliseconds(committed: str) -> int:
    return calendar.timegm(time.strptime(committed, "%Y-%m-%dT%H:%M:%SZ")) * 1000


def _options(artefacts: Mapping[str, Artefact | None]) -> dict[str, str]:
    result = {}
    for kind, parts in (("coreset", ("method",)), ("predict", ("inference", "network"))):
        artefact = artefacts[kind]
        for part in parts if artefact is not None else ():
            for name, value in artefact.meta["body"][part].items():  # type: ignore[union-attr]
                result[f"{part}.{name}"] = json.dumps(value) if isinstance(value, dict | list) else str(value)
    return result


def _find(store: Store, address: Address) -> Artefact | None:
    return store.read(address) if store.has(address) else None


def _first(store: Store, kind: str, key: str) -> Artefact | None:
    folder = store.root / "stages" / kind / key
    for path in sorted(folder.glob(f"*/{STAGE}")):
        member = json.loads(path.read_bytes())["member"]
        found = _find(store, Address(kind, key, member))
        if found is not None and "split" in found.meta:
            return found
    return None


def _curves(kind: str, artefact: Artefact) -> list[Point]:
    path = artefact.folder / "curves.jsonl"
    if not path.exists():
        return []
    return curve_points(kind, [json.loads(line) for line in path.read_text().splitlines()])


def _thin(points: list[Point]) -> Iterator[Point]:
    by_name: dict[str, list[Point]] = {}
    for point in points:
        by_name.setdefault(point[0], []).append(point)
    for curve in by_name.values():
        stride = -(-len(curve) // MAX_POINTS)
        yield from curve[::stride]
        if (len(curve) - 1) % stride:
            yield curve[-1]


def _grid(artefact: Artefact) -> bytes:
    images = np.asarray(artefact.arrays["images"])
    class_ids = np.asarray(artefact.arrays["class_ids"])
    if len(images) > 100:
        # The first few of each class; a whole data set is not a picture.
        per = max(1, 100 // int(artefact.meta["coreset"]["classes"]))
        chosen = np.concatenate([np.flatnonzero(class_ids == c)[:per] for c in np.unique(class_ids)])
        images, class_ids = images[chosen], class_ids[chosen]
    return image_grid(transform_of(artefact).invert(images), class_ids)
