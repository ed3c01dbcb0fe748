"""Anytime curves: how good each coreset was after a number of steps, against the time it had taken by then.

Methods keep their coresets on a 1-2-5 grid of steps; here these snapshots are evaluated like any other coreset. The
learning-rate schedule is that of the whole run, so a point of a curve is not what a run set up for that budget gives.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from bpcbench.figures import Curves, Series
from bpcbench.records import FINAL, Unit
from bpcbench.reporting import Row
from bpcbench.reporting.collect import collect, place_of
from bpcbench.reporting.pairs import Pair, pairs
from bpcbench.reporting.rows import number, with_unit
from bpcbench.stats import Summary, summarise
from bpcbench.store.address import Address
from bpcbench.store.manifest import Manifest
from bpcbench.store.store import Store

FINAL_LABEL = "end"
START = "its start"
HEADINGS = ("data set", "ipc", "method", "inference", "network", "step", "seconds", "CPU s")


@dataclass(frozen=True)
class Point:
    """The metrics of the coresets of one line of a table after `step` steps (None: at the end), means over coresets.

    `seconds` and `cpu_seconds` are what distilling had taken by then, means over coresets; in class-incremental
    learning the coresets of all steps count together.
    """

    dataset: str
    ipc: int
    method: str
    inference: str
    network: str
    step: int | None
    seconds: float
    cpu_seconds: float
    metrics: dict[str, Summary]
    units: dict[str, Unit]

    @property
    def curve(self) -> tuple[str, int, str, str, str]:
        """Which curve the point lies on."""
        return (self.dataset, self.ipc, self.method, self.inference, self.network)

    def cells(self, metrics: Sequence[str]) -> tuple[str, ...]:
        """Return the point as the texts of a line under `HEADINGS` and the metrics."""
        step = FINAL_LABEL if self.step is None else str(self.step)
        values = []
        for metric in metrics:
            summary = self.metrics.get(metric)
            if summary is None:
                values.append("")
                continue
            unit = self.units[metric]
            spread = "" if summary.std is None else f"±{number(unit, summary.std, summary.mean)}"
            values.append(f"{number(unit, summary.mean)}{spread}")
        names = (self.dataset, str(self.ipc), self.method, self.inference, self.network)
        return (*names, step, f"{self.seconds:.1f}", f"{self.cpu_seconds:.1f}", *values)


def headings(found: Sequence[Point], metrics: Sequence[str]) -> tuple[str, ...]:
    """Return the headings of a table of points."""
    units = {metric: unit for point in found for metric, unit in point.units.items()}
    return (*HEADINGS, *(with_unit(metric, units.get(metric, "")) for metric in metrics))


def kept_snapshots(store: Store, wanted: Collection[int] | None = None) -> Callable[[str], Sequence[int]]:
    """Return a function from a coreset's key to the steps at which it was kept, all or those wanted, in order."""

    def steps(key: str) -> Sequence[int]:
        folder = store.path(Address("coreset", key, FINAL)).parent
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        kept = sorted(int(match[1]) for name in names if (match := re.fullmatch(r"step-(\d+)", name)))
        return [step for step in kept if wanted is None or step in wanted]

    return steps


def points(manifest: Manifest, store: Store, metrics: Sequence[str]) -> list[Point]:
    """Return the points of all curves that the store holds, each curve from its start to its end."""
    found = []
    for step in sorted({cell.step for cell in manifest.cells}, key=lambda step: (step is None, step)):
        groups: dict[tuple[str, int, str, str, str], list[Row]] = {}
        for row in collect(manifest, store, step):
            groups.setdefault((row.dataset, row.ipc, row.method, row.inference, row.network), []).append(row)
        for curve, rows in groups.items():
            coresets = dict.fromkeys(row.coreset for row in rows)
            costs = [store.meta(Address.parse(part)) for coreset in coresets for part in coreset.split("+")]
            found.append(
                Point(
                    *curve,
                    step,
                    sum(cost.get("seconds", math.nan) for cost in costs) / len(coresets),
                    sum(cost.get("cpu_seconds", math.nan) for cost in costs) / len(coresets),
                    {metric: _summary(rows, metric) for metric in metrics if any(r.metric == metric for r in rows)},
                    {row.metric: row.unit for row in rows},
                )
            )
    order = [tuple(place_of(group)) for group in manifest.groups]
    several = {point.curve for point in found if point.step is not None}
    # Sorting is stable: the points of a curve stay in the order of their steps.
    return sorted((point for point in found if point.curve in several), key=lambda point: order.index(point.curve))


def progress(manifest: Manifest, store: Store, metrics: Sequence[str]) -> list[Pair]:
    """Return how far every method came: the paired difference between the ends of its runs and their starts."""
    found = []
    starts, ends = collect(manifest, store, 0), collect(manifest, store)
    for method in dict.fromkeys(row.method for row in starts):
        mine = [row for row in ends if row.method == method]
        control = [replace(row, method=START) for row in starts if row.method == method]
        found += pairs([*mine, *control], START, metrics)
    return found


def _summary(rows: Sequence[Row], metric: str) -> Summary:
    by_coreset: dict[str, list[float]] = {}
    for row in rows:
        if row.metric == metric:
            by_coreset.setdefault(row.coreset, []).append(row.value)
    return summarise(by_coreset)


def pictures(found: Sequence[Point], metrics: Sequence[str]) -> dict[str, Curves]:
    """Return a figure per data set, ipc and metric: every curve of it against CPU seconds."""
    drawn = {}
    for dataset, ipc in dict.fromkeys((point.dataset, point.ipc) for point in found):
        for metric in metrics:
            mine = [p for p in found if (p.dataset, p.ipc) == (dataset, ipc) and metric in p.metrics]
            if mine:
                several = len({point.network for point in mine}) > 1
                lines: dict[str, list[Point]] = {}
                for point in mine:
                    name = f"{point.method} / {point.inference}" + (f" / {point.network}" if several else "")
                    lines.setdefault(name, []).append(point)
                spread = any(point.metrics[metric].std is not None for point in mine)
                drawn[f"{dataset}-ipc{ipc}-{metric.replace('/', '-')}"] = Curves(
                    f"{dataset}, {ipc} per class",
                    "CPU seconds of distillation",
                    with_unit(metric, mine[0].units[metric]),
                    {name: _series(line, metric) for name, line in lines.items()},
                    log_x=True,
                    note="Bands: ± the sample standard deviation over coresets" if spread else "",
                )
    return drawn


def _series(line: Sequence[Point], metric: str) -> Series:
    scale = 100 if line[0].units[metric] == "percent" else 1
    means = [scale * point.metrics[metric].mean for point in line]
    stds = [math.nan if (std := point.metrics[metric].std) is None else scale * std for point in line]
    low, high = ([m + sign * s for m, s in zip(means, stds, strict=True)] for sign in (-1, 1))
    band = (low, high) if any(map(math.isfinite, stds)) else ()
    return Series([point.cpu_seconds for point in line], means, *band)
