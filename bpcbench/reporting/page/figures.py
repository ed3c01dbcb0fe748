"""The evaluators' figures: compared where they are curves, and one by one, each of the first seeds of its line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bpcbench.figures import Curves, Figure, Reliability, Series, draw, figure_from_json
from bpcbench.reporting.page.cells import filtered_by
from bpcbench.reporting.page.charts import Key, Trace, curve_chart
from bpcbench.reporting.page.document import folded, picture
from bpcbench.reporting.page.markup import Html, element, joined
from bpcbench.reporting.view import View
from bpcbench.store.manifest import Group

FIGURES = 24
"""So many figures of one name are in a page."""
_COMPARED = 4
"""Curves of so many names are compared in each figure."""
_CALIBRATION = "bins with 2 % of the examples or more"
_SMALLEST_BIN = 0.02
_TITLES = {"reliability": "Reliability", "risk_coverage": "Risk and coverage"}
_Found = dict[tuple[str, str], list[tuple[Group, Figure]]]


def evaluator_figures(view: View, key: Key) -> Html | None:
    """Return the figures that the scores hold, by evaluator and name; None if there are none."""
    found = _figures(view)
    if not found:
        return None
    several = len({evaluator for evaluator, _ in found}) > 1
    parts = []
    for (evaluator, name), figures in found.items():
        title = _TITLES.get(name, name.replace("_", " ").capitalize())
        compared = _comparisons([(group, _curves(one)) for group, one in figures], key)
        each = [_card(group, figure) for group, figure in figures[:FIGURES]]
        left_out = len(figures) - len(each)
        more = element("p", f"{left_out} further ones are not shown.", class_="note") if left_out > 0 else None
        alone = joined((element("div", *each, class_="cards"), more))
        parts.append(
            folded(
                f"{title} ({evaluator})" if several else title,
                element("div", *compared, class_="cards") if compared else None,
                folded("Each line on its own", alone) if compared else alone,
                opened=bool(compared),
            )
        )
    words = "Of the first coreset and the first evaluation of each line."
    return joined((element("p", words, class_="note"), *parts))


def _figures(view: View) -> _Found:
    found: _Found = {}
    seen: set[tuple[int, str]] = set()
    for cell in view.manifest.cells:
        for evaluator, address in cell.scores.items() if cell.step is None else ():
            if (id(cell.group), evaluator) in seen or not view.store.has(address):
                continue
            seen.add((id(cell.group), evaluator))
            for name, value in view.store.meta(address).get("figures", {}).items():
                try:
                    figure = figure_from_json(value)
                except ValueError as error:
                    view.store.note(f"{address}: {error}")
                    continue
                found.setdefault((evaluator, name), []).append((cell.group, figure))
    return found


def _card(group: Group, figure: Figure) -> Html:
    drawn = picture(draw(replace(figure, title=f"{group.method} / {group.inference}")))
    words = f"{group.dataset}, {group.ipc} per class, {group.network}"
    return element(
        "figure",
        drawn,
        element("figcaption", words),
        class_="card",
        data_filtered=True,
        **filtered_by(group, "dataset", "ipc", "method", "inference", "network"),
    )


def _curves(figure: Figure) -> Curves | None:
    """Return what of a figure can be compared: curves as they are, and accuracy against confidence.

    Bins of few examples are left out of the latter: their accuracy is noise, and a line through them hides the rest.
    """
    if isinstance(figure, Reliability):
        bins = [
            (confidence, accuracy)
            for confidence, accuracy, count in zip(figure.confidence, figure.accuracy, figure.count, strict=True)
            if count >= _SMALLEST_BIN * sum(figure.count)
        ]
        series = Series([x for x, _ in bins], [y for _, y in bins])
        return Curves("", "confidence", "accuracy", {_CALIBRATION: series})
    return figure if isinstance(figure, Curves) else None


def _comparisons(figures: Sequence[tuple[Group, Curves | None]], key: Key) -> list[Html]:
    """Return a chart per data set, ipc, network and name of a curve, with that curve of every line."""
    blocks: dict[tuple[str, int, str], list[tuple[Group, Curves]]] = {}
    for group, figure in figures:
        if figure is not None:
            blocks.setdefault((group.dataset, group.ipc, group.network), []).append((group, figure))
    charts = []
    for (dataset, ipc, network), mine in blocks.items():
        names = [name for name in dict.fromkeys(n for _, f in mine for n in f.series) if _differs(name, mine)]
        for name in names[:_COMPARED]:
            with_it = [(group, figure) for group, figure in mine if name in figure.series]
            traces = [
                Trace(f"{group.method} / {group.inference}", group.method, group.inference, figure.series[name])
                for group, figure in with_it
            ]
            first = with_it[0][1]
            chart = curve_chart(
                f"{dataset}, {ipc} per class",
                (first.x, first.y),
                f"{name}, {network}",
                traces,
                (),
                key,
                log_x=first.log_x,
                markers=first.markers,
                diagonal=name == _CALIBRATION,
            )
            where = {"data_dataset": dataset, "data_ipc": str(ipc), "data_network": network}
            charts.append(element("figure", chart, class_="card", data_filtered=True, **where))
    return charts


def _differs(name: str, figures: Sequence[tuple[Group, Curves]]) -> bool:
    """Tell whether a curve distinguishes the lines: that of chance, for one, is a straight line."""
    series = [figure.series[name] for _, figure in figures if name in figure.series]
    straight = name != _CALIBRATION and any(len(one.x) < 3 for one in series)
    return len(series) > 1 and not straight and any(one != series[0] for one in series)
