"""The charts that compare the lines of a table: ranks, closeness to the posterior, cost and time against quality."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from bpcbench.figures import Series
from bpcbench.records import Unit
from bpcbench.reporting.anytime import Point, points
from bpcbench.reporting.costs import Cost
from bpcbench.reporting.page.charts import (
    Dot,
    Interval,
    Key,
    Level,
    Trace,
    cost_chart,
    curve_chart,
    front,
    interval_chart,
)
from bpcbench.reporting.page.markup import Html, element, joined
from bpcbench.reporting.page.ranks import mean_ranks
from bpcbench.reporting.rows import Row, with_unit
from bpcbench.reporting.table import Column, Group, Table
from bpcbench.reporting.view import View
from bpcbench.stats import Summary
from bpcbench.store.invocations import Invocation, invocations

CHARTS = 24
"""So many charts of one kind are in a page."""
AGREEMENT = ("agreement", "total_variation")
"""The metrics that compare predictions with those of the posterior given all data, as `posterior` names them."""
_SHORTEST = 0.01
_Line = tuple[str, str, str]


def rank_charts(rows: Sequence[Row], metrics: Sequence[str], key: Key) -> Html | None:
    """Return the mean ranks of all lines, a chart per metric; None if nothing competes."""
    several = len({row.network for row in rows}) > 1
    charts = []
    for metric in metrics:
        found = mean_ranks(rows, metric)
        if found:
            entries = [
                Interval(
                    _label(one.method, one.inference, one.network, several),
                    one.method,
                    one.mean,
                    None if one.low is None else max(1.0, one.low),
                    None if one.high is None else min(float(len(found)), one.high),
                )
                for one in found
            ]
            note = f"95 % intervals over {found[0].n} seeds" if found[0].low is not None else "one seed: no intervals"
            chart = interval_chart(metric, "mean rank, 1 is best", note, entries, key)
            charts.append(element("figure", chart, class_="card"))
    if not charts:
        return None
    words = "Ranks within each data set and number of images per class, averaged over these; lines that all have."
    return joined((element("p", words, class_="note"), element("div", *charts, class_="cards")))


def agreement_charts(table: Table, ceilings: Collection[str], key: Key) -> Html | None:
    """Return how close every line comes to the posterior given all data, a chart per block, evaluator and metric.

    `ceilings` are the methods that have all data themselves: what they reach is drawn through the chart. None if no
    evaluator measures it.
    """
    several = len({line.network for line in table.lines}) > 1
    charts: list[Html] = []
    skipped = 0
    for (group, column), cells in _columns(table):
        found = [(line, cell) for line, cell in cells if math.isfinite(cell.mean)]
        if column.metric not in AGREEMENT or not found:
            continue
        if len(charts) >= CHARTS:
            skipped += 1
            continue
        bars = [
            Interval(
                _label(*line, several),
                line[0],
                summary.mean,
                None if summary.std is None else summary.mean - summary.std,
                None if summary.std is None else summary.mean + summary.std,
            )
            for line, summary in found
        ]
        levels = [Level(_label(*line, several), *line[:2], cell.mean) for line, cell in found if line[0] in ceilings]
        title = f"{group.dataset}, {group.ipc} per class"
        note = "bars: ± the standard deviation"
        higher = bool(column.higher_is_better)
        chart = interval_chart(title, column.label, note, bars, key, levels=levels, higher_first=higher)
        where = {"data_dataset": group.dataset, "data_ipc": str(group.ipc)}
        charts.append(element("figure", chart, class_="card", data_filtered=True, **where))
    if not charts:
        return None
    words = (
        "Predictions beside those of the posterior given all training data: the share of images of which both predict "
        "the same class, and the total variation distance of their probabilities. "
    )
    if ceilings:
        words += (
            f"Lines down: {', '.join(ceilings)}, all training data under an inference of the suite. Under that of the "
            "reference it is as close as another run of the reference comes, and no coreset can be expected closer."
        )
    more = element("p", f"{skipped} further charts are not shown.", class_="note") if skipped else None
    return joined((element("p", words, class_="note"), element("div", *charts, class_="cards"), more))


def cost_charts(table: Table, costs: Sequence[Cost], metrics: Sequence[str], key: Key) -> Html | None:
    """Return quality against what distilling took, a chart per block and metric, with the front of the best."""
    ranked = {(line.method, line.inference, line.network) for line in table.lines if line.ranked}
    seconds = {(c.dataset, c.ipc, c.method, c.inference, c.network): c.distil.mean + (c.share or 0.0) for c in costs}
    several = len({cost.network for cost in costs}) > 1
    charts: list[Html] = []
    skipped = 0
    for (dataset, ipc, metric), (unit, higher, cells) in _blocks(table, metrics).items():
        dots = {
            line: Dot(
                _label(*line, several),
                line[0],
                line[1],
                max(spent, _SHORTEST),
                _scaled(unit, summary.mean),
                _std(unit, summary),
            )
            for line, summary in cells
            if (spent := seconds.get((dataset, ipc, *line))) is not None and math.isfinite(summary.mean)
        }
        if higher is None or len(dots) < 2:
            continue
        if len(charts) >= CHARTS:
            skipped += 1
            continue
        axes = ("seconds to distil", with_unit(metric, unit))
        title = f"{dataset}, {ipc} per class"
        best = front((dot for line, dot in dots.items() if line in ranked), higher)
        chart = cost_chart(title, *axes, "bars: ± the standard deviation", list(dots.values()), best, key)
        where = {"data_dataset": dataset, "data_ipc": str(ipc)}
        charts.append(element("figure", chart, class_="card", data_filtered=True, **where))
    if not charts:
        return None
    words = (
        "Seconds to distil a coreset, with the method's share of what was prepared for it; times below 0.01 s count as "
        "that. The grey line joins those that no other ranked one beats in both. Hollow markers: the second inference."
    )
    more = element("p", f"{skipped} further charts are not shown.", class_="note") if skipped else None
    return joined((element("p", words, class_="note"), element("div", *charts, class_="cards"), more))


def anytime_invocation(view: View) -> Invocation | None:
    """Return the evaluation of the snapshots of the same suite, if the store has one."""
    mine = view.invocation
    same = [one for one in invocations(view.store, "anytime") if one.name == mine.name]
    asked = [one for one in same if one.requests & mine.requests]
    return next(iter(asked), None)


def anytime_charts(view: View, table: Table, metrics: Sequence[str], key: Key) -> Html | None:
    """Return metrics against the CPU seconds of distillation, with lines for methods without snapshots."""
    invocation = view.invocation if view.manifest.purpose == "anytime" else anytime_invocation(view)
    if invocation is None:
        return None
    found = points(invocation.manifest, view.store, metrics)
    several = len({point.network for point in found}) > 1
    charts: list[Html] = []
    skipped = 0
    for (dataset, ipc, metric), (unit, _, cells) in _blocks(table, metrics).items():
        curves: dict[_Line, list[Point]] = {}
        for point in found:
            if (point.dataset, point.ipc) == (dataset, ipc) and metric in point.metrics and point.method in key.methods:
                curves.setdefault((point.method, point.inference, point.network), []).append(point)
        if not curves:
            continue
        if len(charts) >= CHARTS:
            skipped += 1
            continue
        with_curves = {line[0] for line in curves}
        levels = [
            Level(_label(*line, several), line[0], line[1], _scaled(unit, summary.mean))
            for line, summary in cells
            if line[0] not in with_curves
        ]
        traces = [
            Trace(_label(*line, several), line[0], line[1], _series(mine, metric, unit))
            for line, mine in curves.items()
        ]
        axes = ("CPU seconds of distillation", with_unit(metric, unit))
        title = f"{dataset}, {ipc} per class"
        chart = curve_chart(title, axes, "bands: ± the standard deviation", traces, levels, key, log_x=True)
        where = {"data_dataset": dataset, "data_ipc": str(ipc)}
        charts.append(element("figure", chart, class_="card", data_filtered=True, **where))
    if not charts:
        return None
    words = (
        "Snapshots of the same runs, whose schedules are those of the whole run; lines across are methods that keep no "
        "snapshots."
    )
    more = element("p", f"{skipped} further charts are not shown.", class_="note") if skipped else None
    return joined((element("p", words, class_="note"), element("div", *charts, class_="cards"), more))


_Cells = list[tuple[_Line, Summary]]


def _blocks(table: Table, metrics: Sequence[str]) -> dict[tuple[str, int, str], tuple[Unit, bool | None, _Cells]]:
    """Return the measured cells of every data set, ipc and metric, with the unit and the direction of the metric."""
    blocks: dict[tuple[str, int, str], tuple[Unit, bool | None, _Cells]] = {}
    for (group, column), cells in _columns(table):
        name = (group.dataset, group.ipc, column.metric)
        if column.metric in metrics and name not in blocks:
            blocks[name] = (column.unit, column.higher_is_better, cells)
    return blocks


def _columns(table: Table) -> Iterator[tuple[tuple[Group, Column], _Cells]]:
    """Yield every column, under its group, with its measured cells."""
    columns = [(group, column) for group in table.groups for column in group.columns]
    for index, column in enumerate(columns):
        measured = (line for line in table.lines if not line.published)
        cells = [(line, line.cells[index].summary) for line in measured]
        yield column, [((one.method, one.inference, one.network), found) for one, found in cells if found is not None]


def _series(line: Sequence[Point], metric: str, unit: Unit) -> Series:
    means = [_scaled(unit, point.metrics[metric].mean) for point in line]
    stds = [_std(unit, point.metrics[metric]) for point in line]
    spans = [math.nan if std is None else std for std in stds]
    low, high = ([m + sign * s for m, s in zip(means, spans, strict=True)] for sign in (-1, 1))
    return Series([point.cpu_seconds for point in line], means, low, high)


def _scaled(unit: Unit, value: float) -> float:
    return 100 * value if unit == "percent" else value


def _std(unit: Unit, summary: Summary) -> float | None:
    return None if summary.std is None else _scaled(unit, summary.std)


def _label(method: str, inference: str, network: str, several: bool) -> str:
    return f"{method} / {inference}" + (f" / {network}" if several else "")
