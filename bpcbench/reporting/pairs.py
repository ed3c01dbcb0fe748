"""Paired differences: two lines of a table that differ in one label, everything else being equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from bpcbench.errors import UserError, unknown
from bpcbench.records import Unit
from bpcbench.reporting.observations import Observations, Spot, observe, paired_coresets, paired_means
from bpcbench.reporting.rows import Place, Row, number
from bpcbench.reporting.table import MISSING, Cell, Column, Group, Line, Table, label_columns
from bpcbench.stats import Difference, Summary, negligible, paired_difference

HEADINGS = ("data set", "ipc", "method", "inference", "network", "metric", "difference", "95 % interval", "n")
Axis = Literal["method", "inference", "network"]
AXES: tuple[Axis, ...] = get_args(Axis)
IDENTICAL = "identical"
NO_INTERVAL = "n/a"


@dataclass(frozen=True)
class Pair:
    """How much larger a metric is in one line than with the label `against`, everything else being equal.

    `difference` has no bounds where no noise can be estimated: fewer than two pairs of coresets, or pairs that all
    differ by the same amount. `identical` says that no pair differs at all. `seeds` is the number of evaluation seeds
    that all pairs share and `possible` how many there are; if they share none, every pair is averaged over its own.
    """

    dataset: str
    ipc: int
    method: str
    against: str
    inference: str
    network: str
    metric: str
    unit: Unit
    difference: Difference
    evaluator: str = ""
    higher_is_better: bool | None = None
    identical: bool = False
    seeds: int = 0
    possible: int = 0

    @property
    def nonzero(self) -> bool:
        """Whether the interval excludes zero."""
        low, high = self.difference.low, self.difference.high
        return low is not None and high is not None and (low > 0 or high < 0)

    @property
    def size(self) -> str:
        """The mean difference with its sign, as a table shows it."""
        return IDENTICAL if self.identical else self._signed(self.difference.mean)

    @property
    def interval(self) -> str:
        """The bounds of the interval as a table shows them."""
        low, high = self.difference.low, self.difference.high
        if self.identical:
            return ""
        return NO_INTERVAL if low is None or high is None else f"[{self._signed(low)}, {self._signed(high)}]"

    def cells(self) -> tuple[str, ...]:
        """Return the pair as the texts of a line under `HEADINGS`."""
        unit = " points" if self.unit == "percent" and not self.identical else ""
        names = (self.dataset, str(self.ipc), self.method, self.inference, self.network, self.metric)
        return (*names, f"{self.size}{unit}", self.interval + " *" * self.nonzero, str(self.difference.n))

    def _signed(self, value: float) -> str:
        text = number(self.unit, value, self.difference.mean)
        return text if text.startswith("-") else f"+{text}"


def pairs(
    rows: Sequence[Row],
    against: str,
    metrics: Sequence[str],
    axis: Axis = "method",
    order: Sequence[Place] = (),
) -> list[Pair]:
    """Return the difference of every line to the one with the label `against` on an axis.

    Methods are paired by distil seed; two deterministic methods are one pair, however many seeds were asked for.
    Inferences and networks are paired on the same coreset. Means are over the evaluation seeds that all pairs share.
    Pairs are in the order of `order`, then as their rows first appear. UserError if there is no such label.
    """
    labels = dict.fromkeys([*(getattr(place, axis) for place in order), *(getattr(row, axis) for row in rows)])
    if against not in labels:
        raise UserError(unknown(f"{axis} to compare with", against, labels))
    shown = [row for row in rows if row.metric in metrics]
    facts = {(row.evaluator, row.metric): (row.unit, row.higher_is_better) for row in shown}
    ranked = {place: index for index, place in enumerate(dict.fromkeys([*order, *(row.place for row in shown)]))}
    observed = observe(shown)
    found = []
    for spot, mine in observed.items():
        control = observed.get(Spot(**{**spot._asdict(), axis: against}))
        if control is not None and getattr(spot, axis) != against:
            unit, direction = facts[spot.evaluator, spot.metric]
            pair = _pair(spot, mine, control, against, axis)
            found += [] if pair is None else [replace(pair, unit=unit, higher_is_better=direction)]
    wanted = list(metrics)
    return sorted(
        found,
        key=lambda p: (ranked[Place(p.dataset, p.ipc, p.method, p.inference, p.network)], wanted.index(p.metric)),
    )


def _pair(spot: Spot, mine: Observations, control: Observations, against: str, axis: Axis) -> Pair | None:
    if axis == "method":
        coresets = paired_coresets(mine, control)
    else:
        coresets = [(coreset, coreset) for coreset in sorted(mine.values) if coreset in control.values]
    ours, theirs, common = paired_means(mine, control, coresets)
    if not ours:
        return None
    difference = paired_difference(ours, theirs)
    low, high = difference.low, difference.high
    if low is not None and high is not None and negligible(high - low, (*ours.values(), *theirs.values())):
        difference = replace(difference, low=None, high=None)
    every = {seed for side in (mine, control) for by_seed in side.values.values() for seed in by_seed}
    return Pair(
        spot.dataset,
        spot.ipc,
        spot.method,
        against,
        spot.inference,
        spot.network,
        spot.metric,
        "",
        difference,
        spot.evaluator,
        identical=all(ours[key] == theirs[key] for key in ours),
        seeds=len(common),
        possible=len(every),
    )


def difference_table(
    differences: Sequence[Pair],
    title: str = "",
    axis: Axis = "method",
    extra: Sequence[str] = (),
    order: Sequence[Place] = (),
) -> Table:
    """Return paired differences as a table: a line per other method, inference or network, its cells with intervals.

    Lines and groups of `order`, what the suite asks for, are kept where nothing can be paired yet.
    """
    against = differences[0].against if differences else ""
    places = [Place(p.dataset, p.ipc, p.method, p.inference, p.network) for p in differences]
    # What has no counterpart in the suite will never be paired.
    possible = [p for p in order if getattr(p, axis) != against and Place(**{**p._asdict(), axis: against}) in order]
    wanted = dict.fromkeys((*possible, *places))
    columns = list(dict.fromkeys((p.metric, p.evaluator, p.higher_is_better, p.unit) for p in differences))
    several = Counter(metric for metric, *_ in columns)
    groups = []
    for dataset, ipc in dict.fromkeys((place.dataset, place.ipc) for place in wanted):
        here = {(p.metric, p.evaluator) for p in differences if (p.dataset, p.ipc) == (dataset, ipc)}
        here = here or {column[:2] for column in columns}
        mine = (Column(*column, ambiguous=several[column[0]] > 1) for column in columns if column[:2] in here)
        groups.append(Group(dataset, ipc, tuple(mine)))
    counts = Counter(p.difference.n for p in differences)
    usual = max(counts, key=lambda n: (counts[n], n), default=0)
    by_spot = {Spot(p.method, p.inference, p.network, p.dataset, p.ipc, p.evaluator, p.metric): p for p in differences}
    lines = []
    for name in dict.fromkeys((place.method, place.inference, place.network) for place in wanted):
        spots = (Spot(*name, g.dataset, g.ipc, c.evaluator, c.metric) for g in groups for c in g.columns)
        lines.append(Line(*name, tuple(_cell(by_spot.get(spot), usual) for spot in spots), ranked=False))
    unless = " unless given in brackets" if len(counts) > 1 else ""
    what = f"Difference to {against}, paired, 95 % t-interval, n = {usual}{unless}"
    return Table(
        f"{title}. {what}" if title else what,
        label_columns(lines, always="" if axis == "method" else axis),
        tuple(groups),
        tuple(lines),
        (*_footnotes(differences, axis), *_missing(lines), *extra),
        baseline=against,
    )


def _missing(lines: Sequence[Line]) -> list[str]:
    cells = [cell for line in lines for cell in line.cells]
    missing = sum(cell.summary is None for cell in cells)
    return [f"Nothing to pair yet ({MISSING}): {missing} of {len(cells)} cells."] if missing else []


def _cell(pair: Pair | None, usual: int) -> Cell:
    if pair is None:
        return Cell()
    d = pair.difference
    return Cell(
        Summary(d.mean, None, d.n, None, d.low, d.high),
        pair.size,
        count=None if d.n == usual else d.n,
        interval=pair.interval,
        nonzero=pair.nonzero,
    )


def _footnotes(differences: Sequence[Pair], axis: Axis) -> list[str]:
    if axis == "method":
        notes = ["n is the number of pairs of coresets of equal distil seed; means are over equal evaluation seeds."]
    else:
        notes = ["n is the number of coresets; each is compared with itself under the same evaluation seeds."]
    if any(p.unit == "percent" for p in differences):
        notes.append("Differences of percentages are in percentage points.")
    if any(p.difference.n == 2 for p in differences):
        notes.append("With n = 2 only very large differences can be told apart.")
    if any(p.interval == NO_INTERVAL for p in differences):
        notes.append(
            f"{NO_INTERVAL}: no interval from one pair, from equal differences or from values that are not finite."
        )
    if any(p.identical for p in differences):
        notes.append(f"{IDENTICAL}: the values of every pair are equal.")
    if fewer := dict.fromkeys(f"{p.seeds} of {p.possible}" for p in differences if 0 < p.seeds < p.possible):
        notes.append(f"Means are over the evaluation seeds that both sides have: {', '.join(fewer)} where not all.")
    if any(not p.seeds for p in differences):
        notes.append("Where pairs share no evaluation seed, each is averaged over the seeds that its two sides have.")
    return notes
