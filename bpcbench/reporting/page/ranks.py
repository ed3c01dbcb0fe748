"""Mean ranks of the lines of a table over its data sets and numbers of images per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bpcbench.reporting.rows import Row
from bpcbench.stats import ranks, t_interval


@dataclass(frozen=True)
class MeanRank:
    """The rank of a line, 1 being best: mean over blocks and seeds, and its 95 % t-interval over the `n` seeds."""

    method: str
    inference: str
    network: str
    mean: float
    low: float | None
    high: float | None
    n: int


def mean_ranks(rows: Sequence[Row], metric: str) -> list[MeanRank]:
    """Return the mean rank of every ranked line that every block has, by one metric; empty if fewer than two compete.

    A block is a data set and a number of images per class, as one evaluator sees it. For each seed of distillation
    lines are ranked within each block by their means over evaluation seeds; the mean over blocks is one observation.
    """
    mine = [row for row in rows if row.metric == metric and row.ranked and row.higher_is_better is not None]
    values: dict[tuple[str, int, str], dict[tuple[str, int], dict[tuple[str, str, str], list[float]]]] = {}
    for row in mine:
        seeds = values.setdefault((row.dataset, row.ipc, row.evaluator), {})
        line = (row.method, row.inference, row.network)
        seeds.setdefault(row.draw, {}).setdefault(line, []).append(row.value)
    present = [{line for lines in seeds.values() for line in lines} for seeds in values.values()]
    lines = [
        line
        for line in dict.fromkeys((row.method, row.inference, row.network) for row in mine)
        if all(line in block for block in present)
    ]
    if len(lines) < 2:
        return []
    higher = bool(mine[0].higher_is_better)
    observed: dict[tuple[str, str, str], list[float]] = {line: [] for line in lines}
    for seed in sorted({row.draw for row in mine}):
        places = [seeds.get(seed, {}) for seeds in values.values()]
        if not all(line in place for place in places for line in lines):
            continue
        ranked = [ranks([sum(place[line]) / len(place[line]) for line in lines], higher) for place in places]
        for index, line in enumerate(lines):
            known = [rank for block in ranked if (rank := block[index]) is not None]
            if len(known) == len(ranked):
                observed[line].append(sum(known) / len(known))
    found = []
    for line, each in observed.items():
        if each:
            low, high = t_interval(each) or (None, None)
            found.append(MeanRank(*line, sum(each) / len(each), low, high, len(each)))
    return sorted(found, key=lambda one: one.mean)
