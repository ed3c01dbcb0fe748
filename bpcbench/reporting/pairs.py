"""Paired differences: the same seeds, the same inference, one method against another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bpcbench.errors import UserError, unknown
from bpcbench.records import Unit
from bpcbench.reporting.rows import Row, number
from bpcbench.stats import Difference, paired_difference

HEADINGS = ("data set", "ipc", "method", "inference", "network", "metric", "difference", "95 % interval", "n")


@dataclass(frozen=True)
class Pair:
    """How much larger a metric is with `method` than with `against`, everything else being equal."""

    dataset: str
    ipc: int
    method: str
    against: str
    inference: str
    network: str
    metric: str
    unit: Unit
    difference: Difference

    def cells(self) -> tuple[str, ...]:
        """Return the pair as the texts of a line under `HEADINGS`."""
        d = self.difference
        unit = " points" if self.unit == "percent" else ""
        bounds = "" if d.low is None or d.high is None else f"{self._signed(d.low)} ... {self._signed(d.high)}"
        what = f"{self._signed(d.mean)}{unit}"
        names = (self.dataset, str(self.ipc), self.method, self.inference, self.network, self.metric)
        return (*names, what, bounds, str(d.n))

    def _signed(self, value: float) -> str:
        text = number(self.unit, value, self.difference.mean)
        return text if text.startswith("-") else f"+{text}"


def pairs(rows: Sequence[Row], against: str, metrics: Sequence[str]) -> list[Pair]:
    """Return every other method's difference to `against`: evaluations averaged per coreset, coresets paired by seed.

    Two deterministic methods are one pair, however many seeds were asked for. UserError if there is no such method.
    """
    methods = dict.fromkeys(row.method for row in rows)
    if against not in methods:
        raise UserError(unknown("method to compare with", against, methods))
    means: dict[_Place, dict[str, dict[int, tuple[str, float]]]] = {}
    for (place, method, seed), group in _grouped(row for row in rows if row.metric in metrics).items():
        value = sum(row.value for row in group) / len(group)
        means.setdefault(place, {}).setdefault(method, {})[seed] = (group[0].coreset, value)
    found = []
    for place, by_method in means.items():
        control = by_method.pop(against, {})
        for method, values in by_method.items():
            # By both coresets: seeds that share them are one observation.
            shared = {
                (coreset, control[seed][0]): (value, control[seed][1])
                for seed, (coreset, value) in values.items()
                if seed in control
            }
            if shared:
                ours = {key: value for key, (value, _) in shared.items()}
                theirs = {key: value for key, (_, value) in shared.items()}
                found.append(
                    Pair(
                        place.dataset,
                        place.ipc,
                        method,
                        against,
                        place.inference,
                        place.network,
                        place.metric,
                        place.unit,
                        paired_difference(ours, theirs),
                    )
                )
    names, order = list(methods), list(metrics)
    return sorted(
        found,
        key=lambda p: (p.dataset, p.ipc, names.index(p.method), p.inference, p.network, order.index(p.metric)),
    )


class _Place(NamedTuple):
    dataset: str
    ipc: int
    inference: str
    network: str
    evaluator: str
    metric: str
    unit: Unit


def _grouped(rows: Iterable[Row]) -> dict[tuple[_Place, str, int], list[Row]]:
    groups: dict[tuple[_Place, str, int], list[Row]] = {}
    for row in rows:
        place = _Place(row.dataset, row.ipc, row.inference, row.network, row.evaluator, row.metric, row.unit)
        groups.setdefault((place, row.method, row.distil_seed), []).append(row)
    return groups
