"""What a plan without data would cost: operations and bytes by formula, and the rate that a store shows.

Operations are those that plugins state by `operations`; a stage whose plugin states none is counted as unknown, never
as nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bpcbench.api import Dataset, Method
from bpcbench.errors import BpcbenchError
from bpcbench.planning.planner import PlannedStage
from bpcbench.planning.stages import CoresetStage
from bpcbench.records import FINAL, Facts
from bpcbench.registry.discovery import Registry
from bpcbench.store.store import Store


@dataclass(frozen=True)
class Estimate:
    """The sum over stages of what is known; `unknown` stages state no operations."""

    stages: int
    operations: float
    bytes: float
    unknown: int


@dataclass(frozen=True)
class Rate:
    """Operations per second by the clock: the median over `coresets` of a store, made on `device`."""

    operations: float
    coresets: int
    device: str


def estimate(stages: Iterable[PlannedStage], kind: str) -> Estimate:
    """Return what stages without data of a kind would cost."""
    mine = [one for one in stages if one.status == "no data" and one.kind == kind]
    known = [one.operations for one in mine if one.operations is not None]
    return Estimate(len(mine), sum(known), sum(one.bytes or 0.0 for one in mine), len(mine) - len(known))


def measured_rate(registry: Registry, store: Store, root: Path) -> Rate | None:
    """Return the rate at which a store's coresets were distilled, on the device that made most; None if none tells.

    What tells is a coreset whose method states its operations and whose data set is there or declares its facts.
    """
    found: dict[str, list[float]] = {}
    for address, meta in store.listing():
        if address.kind != CoresetStage.kind or address.member != FINAL:
            continue
        try:
            stage = CoresetStage.from_json(meta["stage"])
            method: Method = stage.method.build(registry)
            dataset: Dataset = stage.data.dataset.build(registry)
            operations = method.operations(_facts(dataset, root), stage.ipc or 1)
            seconds = float(meta["seconds"])
        except (BpcbenchError, KeyError, TypeError, ValueError):
            continue  # made by a plugin that is not installed, or from data of which nothing is known
        if operations and seconds > 0:
            found.setdefault(str(meta.get("device", "cpu")), []).append(operations / seconds)
    if not found:
        return None
    device, rates = max(found.items(), key=lambda one: len(one[1]))
    return Rate(statistics.median(rates), len(rates), device)


def _facts(dataset: Dataset, root: Path) -> Facts:
    declared = dataset.declared()
    return dataset.facts(root) if declared is None else declared
