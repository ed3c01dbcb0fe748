"""A line of the table as MLflow shows it: means, stds and ranks of the cells of a group, read from the store."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bpcbench.reporting.collect import asked, collect, place_of
from bpcbench.reporting.rows import Place
from bpcbench.reporting.table import Cell, Table, build
from bpcbench.stats import ranks
from bpcbench.store.address import Address, digest
from bpcbench.store.manifest import CellRecord, Group, Manifest
from bpcbench.store.store import Store
from bpcbench.tracking.cell import milliseconds
from bpcbench.tracking.names import ORDER_TAG, RESULTS_TAG, allowed, block_metric, block_name, varying

_Metric = tuple[str, str]
"""An evaluator and the name of a metric."""


@dataclass(frozen=True, eq=False)
class SummaryRun:
    """The summary of one group: what its run shows.

    `coresets` are the coresets of the group by what they were first asked for with, such as `seed 0`. `ended` is when
    its last score was made, in milliseconds since 1970, and `milliseconds` the sum of what its stages took: coresets
    may be much older than their scores.
    """

    group: Group
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    coresets: Mapping[str, tuple[Address, ...]]
    ended: int
    milliseconds: int

    @property
    def results(self) -> str:
        """A digest of all that is shown, by which a change is noticed."""
        return self.tags[RESULTS_TAG]


@dataclass
class _Gathered:
    """When the results of a group were made, from which coresets, and what each stage took."""

    coresets: dict[str, tuple[str, tuple[Address, ...]]] = field(default_factory=dict)
    scored: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    cells: int = 0

    def add(self, cell: CellRecord, store: Store) -> None:
        """Add a cell that has scores in the store."""
        made = [milliseconds(store.meta(a)["committed"]) for a in cell.scores.values() if store.has(a)]
        if not made:
            return
        self.scored += made
        self.cells += 1
        # One member of a stage tells what the whole of it took.
        earlier = (Address("predict", key, split) for key in cell.earlier for split in cell.earlier_splits[:1])
        for address in (*cell.coresets, *earlier, *cell.predictions[:1], *cell.scores.values()):
            if address.stage not in self.seconds and store.has(address):
                self.seconds[address.stage] = float(store.meta(address).get("seconds") or 0.0)
        if cell.coreset not in self.coresets:
            order = f"order {cell.order} " if cell.order else ""
            self.coresets[cell.coreset] = f"{order}seed {cell.distil_seed}", cell.coresets


_Filled = dict[_Metric, Cell]


def summaries(manifest: Manifest, store: Store) -> list[SummaryRun]:
    """Return the summary of every group that has results, in the order of the table, the best of a block first.

    Means, spreads, ties and ranks are those of the report's own table.
    """
    gathered = {place_of(group): _Gathered() for group in manifest.groups}
    for cell in manifest.cells:
        if cell.step is None:
            gathered[place_of(cell.group)].add(cell, store)
    names = tuple(dict.fromkeys([*manifest.shown, *(metric.name for metric in manifest.metrics)]))
    table = build(collect(manifest, store), metrics=names, asked=asked(manifest))
    filled = _filled(table)
    blocks: dict[tuple[str, int], list[Group]] = {}
    for group in manifest.groups:
        if filled.get(place_of(group)):
            blocks.setdefault((group.dataset, group.ipc), []).append(group)
    runs: list[SummaryRun] = []
    for groups in blocks.values():
        ranked = _ranks(groups, filled)
        first = next((m for name in manifest.shown for m in ranked if m[1] == name), None)
        places = ranked[first] if first is not None else {}
        for group in sorted(groups, key=lambda group: places.get(place_of(group), len(groups) + 1.0)):
            place = place_of(group)
            mine = {metric: ranks_of[place] for metric, ranks_of in ranked.items() if place in ranks_of}
            runs.append(_summary_run(manifest, group, gathered[place], filled[place], mine, len(runs)))
    return runs


def _filled(table: Table) -> dict[Place, _Filled]:
    """Return the cells that have a number, by place and metric."""
    spots = [(group, column) for group in table.groups for column in group.columns]
    filled: dict[Place, _Filled] = {}
    for line in table.lines:
        for (group, column), cell in zip(spots, line.cells, strict=True):
            if cell.summary is not None:
                place = Place(group.dataset, group.ipc, line.method, line.inference, line.network)
                filled.setdefault(place, {})[column.evaluator, column.metric] = cell
    return filled


def _ranks(groups: Sequence[Group], filled: Mapping[Place, _Filled]) -> dict[_Metric, dict[Place, float]]:
    """Return the ranks of a block by metric, where the table marks a best one."""
    rivals = [place_of(group) for group in groups if group.ranked]
    ranked: dict[_Metric, dict[Place, float]] = {}
    for metric in dict.fromkeys(metric for place in rivals for metric in filled[place]):
        cells = {place: filled[place][metric] for place in rivals if metric in filled[place]}
        means = {p: c.summary.mean for p, c in cells.items() if c.summary and math.isfinite(c.summary.mean)}
        best = [place for place, cell in cells.items() if cell.best]
        if best:
            higher = all(means[best[0]] >= mean for mean in means.values())
            order = ranks(list(means.values()), higher)
            ranked[metric] = {place: rank for place, rank in zip(means, order, strict=True) if rank is not None}
    return ranked


def _summary_run(
    manifest: Manifest,
    group: Group,
    gathered: _Gathered,
    filled: _Filled,
    ranked: Mapping[_Metric, float],
    number: int,
) -> SummaryRun:
    given = Counter(name for _, name in filled)
    # Two evaluators may give a metric of one name; each then carries its evaluator's label.
    names = {metric: allowed(metric[1] if given[metric[1]] == 1 else "/".join(metric)) for metric in filled}
    made = {metric: cell.summary for metric, cell in filled.items() if cell.summary is not None}
    counts = {summary.n for summary in made.values()}
    metrics: dict[str, float] = {}
    tags = {
        f"rank.{names[metric]}": f"{rank:g}{' (tied with best)' if filled[metric].tied else ''}"
        for metric, rank in ranked.items()
        if metric[1] in manifest.shown
    }
    unusual = []
    # MLflow's comparison opens on the first.
    for metric, summary in sorted(made.items(), key=lambda item: _position(item[0][1], manifest.shown)):
        name = names[metric]
        if not math.isfinite(summary.mean):
            unusual.append(name)
            continue
        metrics[name] = summary.mean
        if summary.std is not None:
            metrics[f"{name}_std"] = summary.std
        if len(counts) > 1:
            metrics[f"{name}_n"] = float(summary.n)
    metrics["n"] = float(max(counts))
    if block := block_name(group, varying(manifest)):
        metrics |= {
            block_metric(block, name): metrics[name] for name in map(allowed, manifest.shown) if name in metrics
        }
    if unusual:
        tags["not finite"] = ", ".join(unusual)
    if group.notes:
        tags["notes"] = "; ".join(group.notes)
    if not group.ranked:
        tags["notes"] = "; ".join([*group.notes, "shown for reference, not ranked"])
    tags[ORDER_TAG] = f"{number:06d}"
    tags["cells"] = str(gathered.cells)
    tags[RESULTS_TAG] = digest([sorted(metrics.items()), sorted(tags.items())])[:12]
    coresets = dict(gathered.coresets.values())
    took = round(1000 * sum(gathered.seconds.values()))
    return SummaryRun(group, metrics, tags, coresets, max(gathered.scored), took)


def _position(metric: str, shown: Sequence[str]) -> int:
    return shown.index(metric) if metric in shown else len(shown)
