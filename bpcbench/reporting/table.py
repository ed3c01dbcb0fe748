"""From rows to a table: means over coresets, who is best, who is second, who is tied, and what must be said below."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from bpcbench.errors import UserError
from bpcbench.records import Unit
from bpcbench.reporting.observations import Observations, Spot, observe, paired_coresets, paired_means
from bpcbench.reporting.rows import Asked, Place, Row, notes, number, with_unit
from bpcbench.stats import Summary, paired_test, ranks, welch_test
from bpcbench.store.manifest import PublishedRecord

if TYPE_CHECKING:
    from bpcbench.reporting.formats import Format, Layout

MISSING = "—"
_WELCH = "Welch's"
LEVEL = 0.05
"""Differences with a p-value of at least this are called ties."""


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
    where it must be shown because it is not the usual one of the table, and `asked` the number of distil seeds that
    the suite asks for where fewer have results. `seeds` are the evaluation seeds that were averaged; with `partial`
    they are not those of the rest of the column. `untested` says that the difference to the best could not be tested.
    `interval` is the text of an interval, where a table has them, and `nonzero` says that it excludes zero. `notes` are
    those of its rows.
    """

    summary: Summary | None = None
    mean: str = MISSING
    spread: str = ""
    count: int | None = None
    best: bool = False
    second: bool = False
    tied: bool = False
    notes: tuple[str, ...] = ()
    asked: int | None = None
    seeds: tuple[int, ...] = ()
    partial: bool = False
    untested: bool = False
    interval: str = ""
    nonzero: bool = False


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

    @property
    def missing(self) -> bool:
        """Whether there is no number in the line at all."""
        return all(cell.summary is None for cell in self.cells)

    def label(self, name: str) -> str:
        """Return what stands in the label column `name`: `method`, `inference` or `network`."""
        text = str(getattr(self, name))
        return f"{text} ({self.published})" if self.published and name == "method" else text


@dataclass(frozen=True)
class Table:
    """A table to be rendered. `labels` are the label columns that tell lines apart; footnotes are plain sentences.

    `test` names the test by which cells are tied, empty if none was made. `baseline` is set where the numbers are
    differences to it.
    """

    title: str
    labels: tuple[str, ...]
    groups: tuple[Group, ...]
    lines: tuple[Line, ...]
    footnotes: tuple[str, ...] = ()
    test: str = ""
    baseline: str = ""

    def __str__(self) -> str:
        return self.render()

    def __repr__(self) -> str:
        columns = sum(len(group.columns) for group in self.groups)
        return f"Table({self.title!r}: {len(self.lines)} lines, {columns} columns)"

    def render(self, format: Format = "text", *, layout: Layout = "wide", width: int | None = None) -> str:  # noqa: A002
        """Return the table as text that ends with a newline, as `bpcbench.reporting.render` writes it."""
        from bpcbench.reporting.formats import render

        return render(self, format, layout=layout, width=width)

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        from bpcbench.reporting.page.notebook import notebook_table

        return notebook_table(self)


def build(
    rows: Iterable[Row],
    metrics: Sequence[str] = ("acc", "nll"),
    title: str = "",
    *,
    published: Mapping[Place, Sequence[PublishedRecord]] | None = None,
    publications: Mapping[str, str] | None = None,
    extra: Sequence[str] = (),
    tried: Mapping[str, int] | None = None,
    asked: Mapping[Place, Asked] | None = None,
) -> Table:
    """Return a line per (method, inference, network) and a group per (data set, ipc).

    Both are in the order of `asked`, which is what the suite asks for; lines without any result are kept. Whatever is
    not in it follows as it first appears. A group has a column per metric and evaluator, but for a metric that its
    evaluator does not give there at all. A cell is the summary over coresets of the means over their evaluations; an
    evaluation given twice counts once. Means of a column are over the evaluation seeds that all coresets of its ranked
    lines have; if there is none, each is over its own, and nothing is ranked there.
    Per column the best and the second of the finite means are marked, and all that are tied with the best inside
    noise; methods whose rows say so are shown without being ranked, and nothing is marked where fewer than two compete.
    With `published`, the numbers that match a line stand below it, unranked, and a footnote names the lines for which
    there is none; `publications` are the notes of the publications by name. `extra` are further footnotes.
    `tried` says how many settings were tried on the validation split for a method; it becomes a footnote.
    Raise UserError if rows contradict each other.
    """
    every = list(rows)
    rows = [row for row in every if row.metric in metrics]
    order = {place: index for index, place in enumerate(dict.fromkeys((*(asked or ()), *(row.place for row in rows))))}
    rows.sort(key=lambda row: order[row.place])
    columns = tuple(column for metric in dict.fromkeys(metrics) for column in _columns(rows, metric))
    groups = tuple(_groups(every, columns, dict.fromkeys((place.dataset, place.ipc) for place in order)))
    spots = [(group, column) for group in groups for column in group.columns]
    aside = {(row.method, row.inference, row.network) for row in rows if not row.ranked}
    aside |= {(p.method, p.inference, p.network) for p, wanted in (asked or {}).items() if not wanted.ranked}
    names = dict.fromkeys((place.method, place.inference, place.network) for place in order)
    ranked = [name not in aside for name in names]
    observed = observe(rows)
    filled = []
    for group, column in spots:
        mine = [observed.get(Spot(*name, group.dataset, group.ipc, column.evaluator, column.metric)) for name in names]
        wanted = [(asked or {}).get(Place(group.dataset, group.ipc, *name)) for name in names]
        filled.append(_Filled(group, column, tuple(mine), tuple(wanted), _compared(mine, ranked)))
    counts = _Counts.of(filled)
    texts = {
        Spot(*name, row.dataset, row.ipc, row.evaluator, row.metric): row.notes
        for row in rows
        for name in [(row.method, row.inference, row.network)]
    }
    tests: list[_Test] = []
    marked = [_marked(one, one.cells(counts.usual), ranked, tests) for one in filled]
    lines = []
    for index, name in enumerate(names):
        keys = [Spot(*name, group.dataset, group.ipc, column.evaluator, column.metric) for group, column in spots]
        cells = (replace(made[index], notes=texts.get(key, ())) for made, key in zip(marked, keys, strict=True))
        lines.append(Line(*name, tuple(cells), ranked=ranked[index]))
    labels = label_columns(lines)
    footnotes = (
        *_spread_notes(lines, [column for _, column in spots], counts),
        *_seed_notes(filled, marked),
        *_test_notes(lines, tests, labels, counts),
        *_cell_notes(lines),
        *notes(rows),
        *_tried_notes(lines, tried or {}),
    )
    table = Table(title, labels, groups, tuple(lines), test=_test_name(tests))
    if published is not None:
        table = with_published(replace(table, footnotes=footnotes), published, publications or {})
        footnotes = table.footnotes
    return replace(table, footnotes=(*footnotes, *extra))


def label_columns(lines: Sequence[Line], always: str = "") -> tuple[str, ...]:
    """Return the label columns that tell lines apart: the method, and what else varies or is to be shown `always`."""
    varying = [
        name for name in ("inference", "network") if name == always or len({getattr(line, name) for line in lines}) > 1
    ]
    return ("method", *varying)


def with_published(
    table: Table,
    published: Mapping[Place, Sequence[PublishedRecord]],
    publications: Mapping[str, str],
) -> Table:
    """Return the table with the printed numbers below the lines that they stand beside, and what must be said of them.

    `publications` are the notes of the publications by name.
    """
    spots = [(group, column) for group in table.groups for column in group.columns]
    below = [_published_lines(line, spots, published) for line in table.lines]
    names = list(dict.fromkeys(name for printed in below for name in printed))
    marks = {name: "published" if len(names) == 1 else f"published in {name}" for name in names}
    shown = [
        each
        for line, printed in zip(table.lines, below, strict=True)
        for each in (line, *(replace(other, published=marks[name]) for name, other in printed.items()))
    ]
    footnotes = tuple(_publication_notes(publications, marks))
    if without := [line for line, printed in zip(table.lines, below, strict=True) if not printed]:
        named = ", ".join(" / ".join(line.label(name) for name in table.labels) for line in without)
        footnotes += (f"No published number for {named}.",)
    return replace(table, lines=tuple(shown), footnotes=(*table.footnotes, *footnotes))


@dataclass(frozen=True)
class _Filled:
    """A column with what was observed of every line, what was asked for, and the evaluation seeds that it averages."""

    group: Group
    column: Column
    observed: tuple[Observations | None, ...]
    asked: tuple[Asked | None, ...]
    seeds: frozenset[int]

    @property
    def possible(self) -> int:
        """How many evaluation seeds there are: those asked for, or those that any coreset has."""
        have = {seed for one in self.observed if one for by_seed in one.values.values() for seed in by_seed}
        return max(len(have), *(one.evaluate for one in self.asked if one), 0)

    def complete(self, index: int) -> bool:
        """Whether a line has all distil seeds that are asked for; a line that nobody asked for always has."""
        mine, wanted = self.observed[index], self.asked[index]
        return mine is not None and (wanted is None or len({seed for seed, _ in mine.seeds}) >= wanted.distil)

    def cells(self, usual: int) -> list[Cell]:
        """Return the cells of the column, without marks."""
        made = []
        for index, (mine, wanted) in enumerate(zip(self.observed, self.asked, strict=True)):
            if mine is None:
                made.append(Cell())
                continue
            shared = bool(self.seeds) and self.seeds <= mine.common
            own = {seed for by_seed in mine.values.values() for seed in by_seed}
            cell = replace(
                _cell(self.column, mine.summary(self.seeds if shared else None), usual),
                seeds=tuple(sorted(self.seeds if shared else own)),
                partial=not shared,
            )
            if wanted is not None and not self.complete(index):
                cell = replace(cell, count=len(mine.values), asked=wanted.distil)
            made.append(cell)
        return made


def _compared(observed: Sequence[Observations | None], ranked: Sequence[bool]) -> frozenset[int]:
    """Return the evaluation seeds that all coresets of the ranked lines have; of all lines if none is ranked."""
    present = [(one, rank) for one, rank in zip(observed, ranked, strict=True) if one is not None]
    compared = [one.common for one, rank in present if rank] or [one.common for one, _ in present]
    return frozenset.intersection(*compared) if compared else frozenset()


@dataclass(frozen=True)
class _Counts:
    """How many coresets cells have: all numbers that occur, and the usual one of complete cells (0 if none is)."""

    every: frozenset[int]
    usual: int
    complete: bool

    @classmethod
    def of(cls, filled: Sequence[_Filled]) -> _Counts:
        cells = [
            (len(mine.values), one.complete(index))
            for one in filled
            for index, mine in enumerate(one.observed)
            if mine is not None
        ]
        counts = Counter(n for n, complete in cells if complete)
        usual = max(counts, key=lambda n: (counts[n], n), default=0)
        return cls(frozenset(n for n, _ in cells), usual, all(complete for _, complete in cells))


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


def _cell(column: Column, summary: Summary | None, usual: int) -> Cell:
    if summary is None:
        return Cell()
    spread = "" if summary.std is None else number(column.unit, summary.std, like=summary.mean)
    return Cell(summary, number(column.unit, summary.mean), spread, None if summary.n == usual else summary.n)


@dataclass(frozen=True)
class _Test:
    """A test of one line against the best: which one, its p-value and the number of pairs or of coresets."""

    kind: Literal["paired", "Welch"]
    p: float
    n: int


def _test(a: Observations, b: Observations, seeds: frozenset[int]) -> _Test | None:
    """Test two lines of a column: paired where at least two coresets are, else Welch's test; None if neither works."""
    within = seeds if seeds <= a.common & b.common else None
    ours, theirs, _ = paired_means(a, b, paired_coresets(a, b), within)
    p = paired_test(ours, theirs)
    if p is not None:
        return _Test("paired", p, len(ours))
    mine, other = a.summary(within), b.summary(within)
    p = welch_test(mine, other)
    return None if p is None else _Test("Welch", p, min(mine.n, other.n))


def _marked(filled: _Filled, cells: list[Cell], ranked: Sequence[bool], tests: list[_Test]) -> list[Cell]:
    """Mark the best, the second and the ties of a column; what was tested is added to `tests`."""
    rivals = [
        (cell.summary.mean, mine) if rank and cell.summary and mine and _finite(cell) else None
        for cell, mine, rank in zip(cells, filled.observed, ranked, strict=True)
    ]
    direction = filled.column.higher_is_better
    if direction is None or len(rivals) - rivals.count(None) < 2 or not filled.seeds:
        return cells
    places = ranks([rival[0] if rival else None for rival in rivals], direction)
    order = [*sorted({place for place in places if place is not None}), None]
    bests = [rival[1] for rival, place in zip(rivals, places, strict=True) if rival and place == order[0]]
    marked = list(cells)
    for index, (rival, place) in enumerate(zip(rivals, places, strict=True)):
        if rival is None:
            continue
        if place == order[0]:
            marked[index] = replace(cells[index], best=True)
            continue
        made = [test for best in bests if (test := _test(best, rival[1], filled.seeds)) is not None]
        tests += made
        marked[index] = replace(
            cells[index],
            second=place == order[1],
            tied=any(test.p >= LEVEL for test in made),
            untested=not made,
        )
    return marked


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


def _spread_notes(lines: Sequence[Line], columns: Sequence[Column], counts: _Counts) -> Iterator[str]:
    if not counts.every:
        yield "There are no results to show."
    elif counts.every == {1}:
        yield "n = 1 coreset per cell: no ± can be given, and no difference can be told from noise."
    else:
        unless = "" if counts.every == {counts.usual} and counts.complete else " unless given in brackets"
        n = f"n = {counts.usual}{unless}" if counts.usual else "n is given in brackets"
        yield f"± is the sample standard deviation over n coresets of their means over evaluation seeds; {n}."
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


def _seed_notes(filled: Sequence[_Filled], marked: Sequence[Sequence[Cell]]) -> Iterator[str]:
    """Say how many evaluation seeds were averaged where it is not all, and where columns mix them."""
    fewer: dict[str, dict[str, list[_Filled]]] = {}
    mixed, strangers = [], False
    for one, cells in zip(filled, marked, strict=True):
        if not any(one.observed):
            continue
        if not one.seeds:
            mixed.append(one)
        else:
            strangers = strangers or any(cell.partial for cell in cells)
            if len(one.seeds) < one.possible:
                count = f"{len(one.seeds)} of {one.possible}"
                fewer.setdefault(count, {}).setdefault(one.group.label, []).append(one)
    if fewer:
        counts = "; ".join(f"{count} in {_where(groups)}" for count, groups in fewer.items())
        yield f"Means are over the evaluation seeds that all compared coresets have: {counts}."
    if strangers:
        yield "† averages other evaluation seeds than the rest of its column."
    if mixed:
        groups: dict[str, list[_Filled]] = {}
        for one in mixed:
            groups.setdefault(one.group.label, []).append(one)
        yield (
            f"† in {_where(groups)}: the coresets have no evaluation seed in common, so each is averaged over its own. "
            "Differences may come from the seeds, and nothing is ranked there."
        )


def _where(groups: Mapping[str, Sequence[_Filled]]) -> str:
    return ", ".join(
        label
        if len(mine) == len(mine[0].group.columns)
        else f"{label} ({', '.join(one.column.metric for one in mine)})"
        for label, mine in groups.items()
    )


def _test_name(tests: Sequence[_Test]) -> str:
    kinds = {test.kind for test in tests}
    if kinds == {"paired", "Welch"}:
        return f"paired t-test at the {LEVEL} level, Welch's t-test where seeds cannot be paired"
    return f"{'paired' if 'paired' in kinds else _WELCH} t-test at the {LEVEL} level" if kinds else ""


def _test_notes(lines: Sequence[Line], tests: Sequence[_Test], labels: Sequence[str], counts: _Counts) -> Iterator[str]:
    if any(test.n == 2 for test in tests):
        yield "With n = 2 only very large differences can be told apart."
    untested = [line for line in lines if any(cell.untested for cell in line.cells)]
    if untested and counts.every != {1}:
        named = ", ".join(" / ".join(line.label(name) for name in labels) for line in untested)
        yield f"Not tested against the best everywhere, for want of a second coreset or of any spread: {named}."


def _cell_notes(lines: Sequence[Line]) -> Iterator[str]:
    cells = [cell for line in lines for cell in line.cells]
    if missing := sum(cell.summary is None for cell in cells):
        yield f"No result ({MISSING}): {missing} of {len(cells)} cells."
    if infinite := sum(cell.summary is not None and not _finite(cell) for cell in cells):
        yield f"Not finite, and so not ranked: {infinite} of {len(cells)} cells."
    if aside := dict.fromkeys(line.method for line in lines if not line.ranked):
        yield f"Shown for reference, not ranked: {', '.join(aside)}."
