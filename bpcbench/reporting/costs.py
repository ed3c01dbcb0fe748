"""What coresets and their evaluations took: seconds, memory and size, read from the store."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bpcbench.records import COST, FIT
from bpcbench.reporting.collect import place_of
from bpcbench.reporting.rows import Place
from bpcbench.reporting.table import Cell, Column, Group, Line, Table, label_columns, with_published
from bpcbench.stats import Summary, summarise
from bpcbench.store.address import Address
from bpcbench.store.curves import read_curves
from bpcbench.store.manifest import CellRecord, Manifest, PublishedRecord
from bpcbench.store.store import Store

COLUMNS = tuple(map(Column, ("bytes", "distil s", "s/100 steps", "prep s", "share s", "infer s", "peak MB", "timed")))
FOOTNOTES = (
    "CPU seconds of stages on the CPU, wall-clock seconds of those on a GPU; ± is the sample standard deviation over "
    "coresets.",
    "bytes: images and targets of a coreset. distil s: one coreset. s/100 steps: without the first steps. "
    "prep s: everything that must exist first, such as experts, in full; share s: divided among the methods of the "
    "suite that use it. infer s: one fit and its predictions. peak MB: memory of the process that distilled, its "
    "libraries included.",
    "timed shared: other stages ran at the same time, so its seconds cannot be compared.",
)
_MEASURED = (
    "MB of a loss or of BMA: the largest amount that its tensors take at a time; libraries, networks and images are "
    "not counted."
)
_Fits = dict[tuple[Address, ...], list[list[Address]]]


@dataclass(frozen=True)
class Cost:
    """What one line of a table took; `prepare` and `share` are None where the store no longer has it all."""

    dataset: str
    ipc: int
    method: str
    inference: str
    network: str
    size: int
    distil: Summary
    prepare: float | None
    share: float | None
    infer: Summary
    peak: float
    shared: bool
    pace: float | None = None
    """Seconds per 100 steps; None where a method takes no steps, or too few to tell."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """What the plugins logged as costs, by name without `COST`; means over what logged it."""

    def cells(self) -> tuple[Cell, ...]:
        """Return the cost as the cells of a table, in the order of `COLUMNS`."""
        return (
            _number(self.size, "d"),
            _spread(self.distil),
            _number(self.pace, ".2f"),
            _number(self.prepare, ".1f"),
            _number(self.share, ".1f"),
            _spread(self.infer),
            _number(self.peak / 1e6, ".0f"),
            Cell(mean="shared" if self.shared else "alone"),
        )


def costs(manifest: Manifest, store: Store) -> list[Cost]:
    """Return a cost for every line of the suite's table whose coresets and predictions the store has."""
    groups: dict[Place, _Fits] = {}
    users: dict[Address, set[str]] = {}
    for cell in manifest.cells:
        if not cell.coresets or cell.step is not None or not all(store.has(address) for address in cell.coresets):
            continue
        for address in _prepared(store, cell.coresets):
            users.setdefault(address, set()).add(cell.group.method)
        if fitted := _fitted(store, cell):
            groups.setdefault(place_of(cell.group), {}).setdefault(cell.coresets, []).append(fitted)
    return [_cost(place, fits, store, users) for place, fits in groups.items()]


def cost_table(
    every: Sequence[Cost],
    title: str = "",
    extra: Sequence[str] = (),
    *,
    order: Sequence[Place] = (),
    published: Mapping[Place, Sequence[PublishedRecord]] | None = None,
    publications: Mapping[str, str] | None = None,
) -> Table:
    """Return costs as a table with a line per method, inference and network and a group per data set and ipc.

    Both are in the order of `order`, what the suite asks for; a line that the store knows nothing of is kept. What
    plugins measured follows the columns that every table has. With `published`, the costs that papers print for a line
    stand below it.
    """
    more = tuple(dict.fromkeys(name for cost in every for name in cost.measured))
    columns = (*COLUMNS, *map(Column, more))
    by_place = {
        Place(c.dataset, c.ipc, c.method, c.inference, c.network): (
            *c.cells(),
            *(_number(c.measured.get(name), ".2f") for name in more),
        )
        for c in every
    }
    places = dict.fromkeys((*(order if every else ()), *by_place))
    groups = tuple(Group(*key, columns) for key in dict.fromkeys(place[:2] for place in places))
    nothing = tuple(Cell() for _ in columns)
    lines = []
    for name in dict.fromkeys(place[2:] for place in places):
        blocks = (by_place.get(Place(group.dataset, group.ipc, *name), nothing) for group in groups)
        lines.append(Line(*name, tuple(cell for block in blocks for cell in block), ranked=False))
    heading = f"{title}. Costs" if title else "Costs"
    measured = (_MEASURED,) if any(name.endswith(" MB") for name in more) else ()
    table = Table(heading, label_columns(lines), groups, tuple(lines), (*FOOTNOTES, *measured, *extra))
    if published is None:
        return table
    costs_only = {
        place: [replace(one, metric=one.metric.removeprefix(COST)) for one in records if one.metric.startswith(COST)]
        for place, records in published.items()
    }
    return with_published(table, costs_only, publications or {})


def _cost(place: Place, fits: _Fits, store: Store, users: Mapping[Address, set[str]]) -> Cost:
    first = next(iter(fits))
    distilled = [address for coresets in fits for address in coresets]
    prepared = _prepared(store, first)
    known = all(store.has(address) for address in prepared)
    timed = [*distilled, *(address for made in fits.values() for fitted in made for address in fitted)]
    return Cost(
        *place,
        size=sum(int(store.meta(address)["coreset"]["bytes"]) for address in first),
        distil=summarise({c: [sum(_seconds(store, address) for address in c)] for c in fits}),
        prepare=sum(_seconds(store, address) for address in prepared) if known else None,
        share=sum(_seconds(store, address) / len(users[address]) for address in prepared) if known else None,
        infer=summarise({coreset: [_taken(store, fitted) for fitted in made] for coreset, made in fits.items()}),
        peak=max(float(store.meta(address).get("peak_memory_bytes") or 0.0) for address in distilled),
        shared=any(int(store.meta(address).get("jobs", 1)) > 1 for address in timed),
        pace=_mean([pace for address in distilled if (pace := _pace(store, address)) is not None]),
        measured=_measured(store, timed),
    )


def _pace(store: Store, address: Address) -> float | None:
    """Return the seconds per 100 steps of a stage's first loop, from the first to the last time noted.

    Times of curves are by the clock; on the CPU they are taken times the share of it that the stage had.
    """
    last: dict[str, dict[float, int]] = {}
    for point in read_curves(store.path(address)):
        # Points are noted in groups, with the time of the last of them.
        last.setdefault(point["what"], {})[float(point["t"])] = int(point["step"])
    reached: dict[float, int] = next(iter(last.values()), {})
    if len(reached) < 2:
        return None
    (start, first), (end, final) = min(reached.items()), max(reached.items())
    share = _seconds(store, address) / max(float(store.meta(address).get("seconds", 0.0)), 1e-9)
    return 100 * share * (end - start) / (final - first) if final > first else None


def _measured(store: Store, addresses: Iterable[Address]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for address in addresses:
        for point in read_curves(store.path(address)):
            for name, value in point["m"].items():
                if name.startswith(COST):
                    found.setdefault(name.removeprefix(COST), []).append(float(value))
    return {name: statistics.fmean(values) for name, values in found.items()}


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _prepared(store: Store, addresses: Sequence[Address]) -> Sequence[Address]:
    """Return the prerequisites of artefacts and theirs, each once."""
    found: dict[Address, None] = {}
    waiting = list(addresses)
    while waiting:
        one = waiting.pop()
        needs = store.meta(one).get("inputs", ()) if store.has(one) else ()
        for need in _prerequisites(needs):
            if need not in found:
                found[need] = None
                waiting.append(need)
    return tuple(found)


def _prerequisites(needs: Iterable[str]) -> list[Address]:
    return [Address.parse(need) for need in needs if need.startswith("prerequisite:")]


def _fitted(store: Store, cell: CellRecord) -> list[Address]:
    """Return a cell's fit and its predictions, as far as the store has them."""
    scores = [store.meta(address) for address in cell.scores.values() if store.has(address)]
    inputs = [Address.parse(text) for meta in scores for text in meta.get("stage", {}).get("predictions", ())]
    mine = dict.fromkeys(address for address in inputs if address.key == cell.predict)
    return [address for address in (Address("predict", cell.predict, FIT), *mine) if store.has(address)]


def _taken(store: Store, fitted: Iterable[Address]) -> float:
    # Each tells what its process had spent by then; one that only added a split has spent less than the fit.
    return max(_seconds(store, address) for address in fitted)


def _seconds(store: Store, address: Address) -> float:
    meta = store.meta(address)
    return float(meta.get("cpu_seconds" if meta.get("device", "cpu") == "cpu" else "seconds", math.nan))


def _spread(summary: Summary) -> Cell:
    return Cell(summary, f"{summary.mean:.1f}", "" if summary.std is None else f"{summary.std:.1f}")


def _number(value: float | None, form: str) -> Cell:
    return Cell() if value is None else Cell(Summary(value, None, 1, None, None, None), format(value, form))
