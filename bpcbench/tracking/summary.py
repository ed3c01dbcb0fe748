"""A line of the table as MLflow shows it: means, stds and ranks of the cells of a group, read from the store."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bpcbench.stats import Standing, Summary, standings, summarise
from bpcbench.store.address import Address, digest
from bpcbench.store.manifest import CellRecord, Group, Manifest
from bpcbench.store.store import Store
from bpcbench.tracking.cell import milliseconds
from bpcbench.tracking.names import ORDER_TAG, RESULTS_TAG, allowed

_Metric = tuple[str, str]
"""An evaluator and the name of a metric."""


@dataclass(frozen=True, eq=False)
class SummaryRun:
    """The summary of one group: what its run shows. Times are milliseconds since 1970.

    `coresets` are the coresets of the group by the distillation seed that they were first asked for with.
    """

    group: Group
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    coresets: Mapping[int, tuple[Address, ...]]
    began: int
    ended: int

    @property
    def results(self) -> str:
        """A digest of all that is shown, by which a change is noticed."""
        return self.tags[RESULTS_TAG]


@dataclass
class _Gathered:
    """What the store has of one group."""

    values: dict[_Metric, dict[str, dict[int, float]]] = field(default_factory=dict)
    directions: dict[_Metric, bool | None] = field(default_factory=dict)
    coresets: dict[str, tuple[int, tuple[Address, ...]]] = field(default_factory=dict)
    times: list[int] = field(default_factory=list)
    cells: int = 0

    def add(self, cell: CellRecord, store: Store) -> None:
        """Add the scores of a cell that are in the store."""
        seen = False
        for evaluator, address in cell.scores.items():
            if not store.has(address):
                continue
            seen, meta = True, store.meta(address)
            self.times.append(milliseconds(meta["committed"]))
            for name, value in meta["metrics"].items():
                metric = (evaluator, name)
                direction = meta["directions"][name]
                self.directions[metric] = None if direction is None else direction == "higher"
                seeds = self.values.setdefault(metric, {}).setdefault(cell.coreset, {})
                # A deterministic method evaluates one coreset under several seeds; each evaluation counts once.
                seeds.setdefault(cell.evaluate_seed, float(value))
        if seen:
            self.cells += 1
            if cell.coreset not in self.coresets:
                self.coresets[cell.coreset] = cell.distil_seed, cell.coresets
                metas = (store.meta(address) for address in cell.coresets if store.has(address))
                self.times += [milliseconds(meta["started"]) for meta in metas if "started" in meta]

    def summaries(self) -> dict[_Metric, Summary]:
        """Return mean and std of every metric over the coresets, as the table has them."""
        return {
            metric: summarise({coreset: list(seeds.values()) for coreset, seeds in coresets.items()})
            for metric, coresets in self.values.items()
        }


def summaries(manifest: Manifest, store: Store) -> list[SummaryRun]:
    """Return the summary of every group that has results, in the order of the table, the best of a block first."""
    gathered = {id(group): _Gathered() for group in manifest.groups}
    for cell in manifest.cells:
        if cell.step is None:
            gathered[id(cell.group)].add(cell, store)
    blocks: dict[tuple[str, int], list[Group]] = {}
    for group in manifest.groups:
        if gathered[id(group)].values:
            blocks.setdefault((group.dataset, group.ipc), []).append(group)
    inputs = list(_ordered(manifest, gathered, [blocks[block] for block in sorted(blocks)]))
    return [_summary_run(manifest, *each, number) for number, each in enumerate(inputs)]


_Ranked = tuple[Group, _Gathered, dict[_Metric, Summary], dict[_Metric, Standing]]


def _ordered(manifest: Manifest, gathered: Mapping[int, _Gathered], blocks: Iterable[list[Group]]) -> Iterator[_Ranked]:
    for groups in blocks:
        made = [gathered[id(group)].summaries() for group in groups]
        directions = {m: d for group in groups for m, d in gathered[id(group)].directions.items()}
        ranked: list[dict[_Metric, Standing]] = [{} for _ in groups]
        for metric, higher in directions.items():
            rivals = [s.get(metric) if group.ranked else None for group, s in zip(groups, made, strict=True)]
            for into, standing in zip(ranked, standings(rivals, higher), strict=True):
                if standing is not None:
                    into[metric] = standing
        first = next((m for name in manifest.shown for m in directions if m[1] == name), None)
        last = len(groups) + 1.0
        order = sorted(
            range(len(groups)),
            key=lambda index: (ranked[index][first].rank if first in ranked[index] else last, index),
        )
        for index in order:
            yield groups[index], gathered[id(groups[index])], made[index], ranked[index]


def _summary_run(
    manifest: Manifest,
    group: Group,
    gathered: _Gathered,
    made: Mapping[_Metric, Summary],
    ranked: Mapping[_Metric, Standing],
    number: int,
) -> SummaryRun:
    inputs = Counter(name for _, name in made)
    # Two evaluators may give a metric of one name; each then carries its evaluator's label.
    names = {metric: allowed(metric[1] if inputs[metric[1]] == 1 else "/".join(metric)) for metric in made}
    counts = {summary.n for summary in made.values()}
    metrics: dict[str, float] = {}
    tags = {
        f"rank.{names[metric]}": str(standing) for metric, standing in ranked.items() if metric[1] in manifest.shown
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
    return SummaryRun(group, metrics, tags, coresets, min(gathered.times), max(gathered.times))


def _position(metric: str, shown: Sequence[str]) -> int:
    return shown.index(metric) if metric in shown else len(shown)
