"""The evaluations behind one number of a table, and which of them two lines can be compared by."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from bpcbench.errors import UserError
from bpcbench.reporting.rows import Row
from bpcbench.stats import Summary, summarise

Draw: TypeAlias = tuple[str, int]
"""The order of the classes, empty outside class-incremental learning, and the distil seed."""


class Spot(NamedTuple):
    """Where a number stands in a table: its line, its group of columns and its column."""

    method: str
    inference: str
    network: str
    dataset: str
    ipc: int
    evaluator: str
    metric: str


@dataclass(frozen=True)
class Observations:
    """The values of one metric by coreset and evaluation seed, and the draws that each coreset belongs to."""

    values: Mapping[str, Mapping[int, float]]
    seeds: frozenset[tuple[Draw, str]]

    @property
    def deterministic(self) -> bool:
        """Whether several distil seeds gave one coreset."""
        return len(self.values) == 1 and len(self.seeds) > 1

    @property
    def common(self) -> frozenset[int]:
        """The evaluation seeds that all coresets were evaluated with."""
        return frozenset.intersection(*(frozenset(by_seed) for by_seed in self.values.values()))

    def mean_of(self, coreset: str, seeds: Collection[int]) -> float:
        """Return the mean over some evaluation seeds of one coreset."""
        return summarise({0: [self.values[coreset][seed] for seed in seeds]}).mean

    def summary(self, seeds: Collection[int] | None = None) -> Summary:
        """Return the summary over these evaluation seeds, which all coresets must have, or over all that each has."""
        return summarise(
            {
                coreset: [value for seed, value in by_seed.items() if seeds is None or seed in seeds]
                for coreset, by_seed in self.values.items()
            }
        )


def observe(rows: Iterable[Row]) -> dict[Spot, Observations]:
    """Return the evaluations by where they stand; one given twice counts once.

    Raise UserError if two rows give different values for one evaluation.
    """
    values: dict[Spot, dict[str, dict[int, float]]] = {}
    seeds: dict[Spot, set[tuple[Draw, str]]] = {}
    for row in rows:
        spot = Spot(row.method, row.inference, row.network, row.dataset, row.ipc, row.evaluator, row.metric)
        seeds.setdefault(spot, set()).add((row.draw, row.coreset))
        by_seed = values.setdefault(spot, {}).setdefault(row.coreset, {})
        known = by_seed.setdefault(row.evaluate_seed, row.value)
        if known != row.value and not (math.isnan(known) and math.isnan(row.value)):
            line = f"{row.method} / {row.inference} / {row.network}"
            where = f"{line} on {row.dataset} ipc {row.ipc}, evaluation seed {row.evaluate_seed}"
            raise UserError(f"{row.metric} of one evaluation is both {known} and {row.value}: {where}")
    return {spot: Observations(by_coreset, frozenset(seeds[spot])) for spot, by_coreset in values.items()}


def paired_coresets(a: Observations, b: Observations) -> list[tuple[str, str]]:
    """Return the pairs of coresets of equal distil seeds, each pair once, sorted.

    The coreset of a deterministic method belongs to every seed, so it is paired with every coreset of the other line.
    """
    if a.deterministic or b.deterministic:
        return sorted((one, other) for one in a.values for other in b.values)
    return sorted({(one, other) for seed, one in a.seeds for same, other in b.seeds if same == seed})


def paired_means(
    a: Observations, b: Observations, pairs: Collection[tuple[str, str]], seeds: Collection[int] | None = None
) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float], frozenset[int]]:
    """Return the means of both sides of every pair, and the evaluation seeds (of `seeds`) that all pairs share.

    Means are over these seeds. If there are none, they are over the seeds that the two of a pair share, and a pair
    that shares none is left out.
    """
    both = {pair: frozenset(a.values[pair[0]]) & frozenset(b.values[pair[1]]) for pair in pairs}
    shared = {pair: mine if seeds is None else mine.intersection(seeds) for pair, mine in both.items()}
    common = frozenset.intersection(*shared.values()) if shared else frozenset()
    used = {pair: common or mine for pair, mine in shared.items() if common or mine}
    ours = {pair: a.mean_of(pair[0], mine) for pair, mine in used.items()}
    theirs = {pair: b.mean_of(pair[1], mine) for pair, mine in used.items()}
    return ours, theirs, common
