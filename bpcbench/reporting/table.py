"""From rows to a table: means over coresets, who is best, who is second, who is tied, and what must be said below."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bpcbench.errors import UserError
from bpcbench.records import Unit
from bpcbench.reporting.rows import Place, Row, notes, number, with_unit
from bpcbench.stats import Summary, standings, summarise
from bpcbench.store.manifest import PublishedRecord

MISSING = "—"


@dataclass(frozen=True)
class Column:
    """A metric; `ambiguous` where several evaluators give one of that name, each of which then has its column."""

    metric: str
    evaluator: str = ""
    higher_is_better: bool | None = None
    unit: Unit = ""
    ambiguous: bool = False

    @property
    def label(self) -> str:
        """The heading: the metric, its unit, and an arrow that points to where the better values are."""
        name = f"{self.metric} ({self.evaluator})" if self.ambiguous else self.metric
        arrow = {True: " ↑", False: " ↓", None: ""}[self.higher_is_better]
        return f"{with_unit(name, self.unit)}{arrow}"


@dataclass(frozen=True)
class Group:
    """The columns of one data set and one number of images per class."""

    dataset: str
    ipc: int
    columns: tuple[Column, ...]

    @property
    def label(self) -> str:
        """The heading over the group."""
        return f"{self.dataset} ipc {self.ipc}"


@dataclass(frozen=True)
class Cell:
    """A number of the table: what was measured, in the metric's own unit, and how it is shown.

    `summary` is None where there is no number; its `n` is 0 for a published one, whose n is not known. `count` is n
    where it must be shown because it is not the usual one of the table. `notes` are those of its rows.
    """

    summary: Summary | None = None
    mean: str = MISSING
    spread: str = ""
    count: int | None = None
    best: bool = False
    second: bool = False
    tied: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line:
    """A line of the table; its cells are those of the first group's columns, then of the second's, and so on.

    `published` marks a line of printed numbers, which stands below the measured line of the same labels; it is the
    words in brackets behind the method, and empty for a measured line.
    """

    method: str
    inference: str
    network: str
    cells: tuple[Cell, ...]
    ranked: bool = True
    published: str = ""

    def label(self, name: str) -> str:
        """Return what stands in the label column `name`: `method`, `inference` or `network`."""
        text = str(getattr(self, name))
        return f"{text} ({self.published})" if self.published and name == "method" else text


@dataclass(frozen=True)
class Table:
    """A table to be rendered. `labels` are the label columns that tell lines apart; footnotes are plain sentences."""

    title: str
    labels: tuple[str, ...]
    groups: tuple[Group, ...]
    lines: tuple[Line, ...]
    footnotes: tuple[str, ...] = ()


def build(
    rows: Iterable[Row],
    metrics: Sequence[str] = ("acc", "nll"),
    title: str = "",
    *,
    published: Mapping[Place, Sequence[PublishedRecord]] | None = None,
    publications: Mapping[str, str] | None = None,
    extra: Sequence[str] = (),
    tried: Mapping[str, int] | None = None,
) -> Table:
    """Return a line per (method, inference, network) as they first appear and a group per (data set, ipc), sorted.

    A group has a column per metric and evaluator, but for a metric that its evaluator does not give there at all.
    A cell is the summary over coresets of the means over their evaluations; an evaluation given twice counts once.
    Per column the best and the second of the finite means are marked, and all that are tied with the best inside
    noise; methods whose rows say so are shown without being ranked, and nothing is marked where fewer than two compete.
    With `published`, the numbers that match a line stand below it, unranked, and a footnote names the lines for which
    there is none; `publications` are the notes of the publications by name. `extra` are further footnotes.
    `tried` says how many settings were tried on the validation split for a method; it becomes a footnote.
    Raise UserError if rows contradict each other.
    """
    every = list(rows)
    rows = [row for row in every if row.metric in metrics]
    columns = tuple(column for metric in dict.fromkeys(metrics) for column in _columns(rows, metric))
    groups = tuple(_groups(every, columns, sorted({(row.dataset, row.ipc) for row in rows})))
    places = [(group, column) for group in groups for column in group.columns]
    summaries = _summaries(rows)
    said = {_place(row): row.notes for row in rows}
    counts = Counter(summary.n for summary in summaries.values())
    usual = max(counts, key=lambda n: (counts[n], n), default=0)
    aside = {(row.method, row.inference, row.network) for row in rows if not row.ranked}
    lines = []
    for line in dict.fromkeys((row.method, row.inference, row.network) for row in rows):
        keys = [(c, (*line, g.dataset, g.ipc, c.evaluator, c.metric)) for g, c in places]
        cells = tuple(replace(_cell(c, summaries.get(k), usual), notes=said.get(k, ())) for c, k in keys)
        lines.append(Line(*line, cells, ranked=line not in aside))
    lines = _marked(lines, [column for _, column in places])
    labels = [name for name in ("inference", "network") if len({getattr(row, name) for row in rows}) > 1]
    footnotes = (
        *_spread_notes(lines, [column for _, column in places], counts, usual),
        *_cell_notes(lines),
        *notes(rows),
        *_tried_notes(lines, tried or {}),
    )
    if published is None:
        return Table(title, ("method", *labels), groups, tuple(lines), (*footnotes, *extra))
    below = [_published_lines(line, places, published) for line in lines]
    names = list(dict.fromkeys(name for printed in below for name in printed))
    marks = {name: "published" if len(names) == 1 else f"published in {name}" for name in names}
    shown = [
        each
        for line, printed in zip(lines, below, strict=True)
        for each in (line, *(replace(other, published=marks[name]) for name, other in printed.items()))
    ]
    footnotes += tuple(_publication_notes(publications or {}, marks))
    if without := [line for line, printed in zip(lines, below, strict=True) if not printed]:
        named = ", ".join(" / ".join(line.label(name) for name in ("method", *labels)) for line in without)
        footnotes += (f"No published number for {named}.",)
    return Table(title, ("method", *labels), groups, tuple(shown), (*footnotes, *extra))


def _groups(rows: Sequence[Row], columns: Sequence[Column], keys: Iterable[tuple[str, int]]) -> Iterator[Group]:
    inputs = {(row.dataset, row.ipc, row.evaluator, row.metric) for row in rows}
    heard = {place[:3] for place in inputs}
    for key in keys:
        # An evaluator that has given nothing yet may still give it; one that was heard without it will not.
        mine = (c for c in columns if (*key, c.evaluator, c.metric) in inputs or (*key, c.evaluator) not in heard)
        yield Group(*key, tuple(mine))


def _tried_notes(lines: Sequence[Line], tried: Mapping[str, int]) -> list[str]:
    shown = dict.fromkeys(line.method for line in lines if line.method in tried)
    counts = ", ".join(f"{method} {tried[method]}" for method in shown)
    return [f"Settings tried on the validation split, per data set and ipc: {counts}."] if shown else []


def _columns(rows: Sequence[Row], metric: str) -> list[Column]:
    mine = [row for row in rows if row.metric == metric]
    evaluators = list(dict.fromkeys(row.evaluator for row in mine)) or [""]
    columns = []
    for evaluator in evaluators:
        directions = {row.higher_is_better for row in mine if row.evaluator == evaluator} - {None}
        if len(directions) > 1:
            raise UserError(f"evaluator {evaluator!r} says of {metric!r} both that higher and that lower is better")
        units: set[Unit] = {row.unit for row in mine if row.evaluator == evaluator} or {""}
        if len(units) > 1:
            raise UserError(f"evaluator {evaluator!r} gives {metric!r} both in percent and not")
        direction, (unit,) = next(iter(directions), None), units
        columns.append(Column(metric, evaluator, direction, unit, len(evaluators) > 1))
    return columns


def _place(row: Row) -> tuple[str | int, ...]:
    return (row.method, row.inference, row.network, row.dataset, row.ipc, row.evaluator, row.metric)


def _summaries(rows: Iterable[Row]) -> Mapping[Hashable, Summary]:
    values: dict[Hashable, dict[str, dict[int, float]]] = {}
    for row in rows:
        coresets = values.setdefault(_place(row), {})
        known = coresets.setdefault(row.coreset, {}).setdefault(row.evaluate_seed, row.value)
        if known != row.value and not (math.isnan(known) and math.isnan(row.value)):
            line = f"{row.method} / {row.inference} / {row.network}"
            where = f"{line} on {row.dataset} ipc {row.ipc}, evaluation seed {row.evaluate_seed}"
            raise UserError(f"{row.metric} of one evaluation is both {known} and {row.value}: {where}")
    return {
        key: summarise({coreset: list(seeds.values()) for coreset, seeds in coresets.items()})
        for key, coresets in values.items()
    }


def _cell(column: Column, summary: Summary | None, usual: int) -> Cell:
    if summary is None:
        return Cell()
    spread = "" if summary.std is None else number(column.unit, summary.std, like=summary.mean)
    return Cell(summary, number(column.unit, summary.mean), spread, None if summary.n == usual else summary.n)


def _marked(lines: Sequence[Line], columns: Sequence[Column]) -> list[Line]:
    marked = [list(line.cells) for line in lines]
    for index, column in enumerate(columns):
        rivals = [cells[index].summary if line.ranked else None for line, cells in zip(lines, marked, strict=True)]
        for cells, standing in zip(marked, standings(rivals, column.higher_is_better), strict=True):
            if standing is not None:
                best, second, noise = standing.best, standing.second, standing.tied
                cells[index] = replace(cells[index], best=best, second=second, tied=noise)
    return [replace(line, cells=tuple(cells)) for line, cells in zip(lines, marked, strict=True)]


def _finite(cell: Cell) -> bool:
    return cell.summary is not None and math.isfinite(cell.summary.mean)


def _published_lines(
    line: Line, places: Sequence[tuple[Group, Column]], published: Mapping[Place, Sequence[PublishedRecord]]
) -> dict[str, Line]:
    """Return what stands below a line: a line of printed numbers for every publication that has any, by its name."""
    printed: dict[str, dict[int, PublishedRecord]] = {}
    for index, (group, column) in enumerate(places):
        place = Place(group.dataset, group.ipc, line.method, line.inference, line.network)
        for record in published.get(place, ()):
            if record.metric == column.metric:
                printed.setdefault(record.publication, {}).setdefault(index, record)
    below = {}
    for publication, numbers in printed.items():
        cells = (_published_cell(column, numbers.get(index)) for index, (_, column) in enumerate(places))
        below[publication] = replace(line, cells=tuple(cells), ranked=False)
    return below


def _published_cell(column: Column, record: PublishedRecord | None) -> Cell:
    if record is None:
        return Cell()
    # Its n is not known.
    known = None if record.mean is None else Summary(record.mean, record.std, 0, None, None, None)
    if record.printed[0] or known is None:
        return Cell(known, *record.printed)
    return _cell(column, known, usual=known.n)


def _publication_notes(notes_by_name: Mapping[str, str], marks: Mapping[str, str]) -> Iterator[str]:
    for name, mark in marks.items():
        text = f"Lines marked ({mark}) are printed in {name} and not ranked here. {notes_by_name.get(name, '')}"
        yield text.rstrip()


def _spread_notes(
    lines: Sequence[Line], columns: Sequence[Column], counts: Collection[int], usual: int
) -> Iterator[str]:
    if not lines:
        yield "There are no results to show."
    elif set(counts) == {1}:
        yield "n = 1 coreset per cell: no ± can be given, and no difference can be told from noise."
    else:
        unless = " unless given in brackets" if len(counts) > 1 else ""
        yield (
            "± is the sample standard deviation over n coresets of their means over evaluation seeds; "
            f"n = {usual}{unless}."
        )
    withins: dict[tuple[str, Unit], list[float]] = {}
    for index, cell in ((index, cell) for line in lines for index, cell in enumerate(line.cells)):
        if cell.summary is not None and cell.summary.within is not None:
            withins.setdefault((columns[index].metric, columns[index].unit), []).append(cell.summary.within)
    if withins:
        spans = ", ".join(f"{metric} {_span(unit, values)}" for (metric, unit), values in withins.items())
        yield f"Standard deviation within a coreset, over its evaluation seeds, smallest to largest: {spans}."


def _span(unit: Unit, values: Sequence[float]) -> str:
    ends = dict.fromkeys(number(unit, value) for value in (min(values), max(values)))
    return " to ".join(ends) + (" %" if unit == "percent" else "")


def _cell_notes(lines: Sequence[Line]) -> Iterator[str]:
    cells = [cell for line in lines for cell in line.cells]
    if missing := sum(cell.summary is None for cell in cells):
        yield f"No result ({MISSING}): {missing} of {len(cells)} cells."
    if infinite := sum(cell.summary is not None and not _finite(cell) for cell in cells):
        yield f"Not finite, and so not ranked: {infinite} of {len(cells)} cells."
    if aside := dict.fromkeys(line.method for line in lines if not line.ranked):
        yield f"Shown for reference, not ranked: {', '.join(aside)}."
