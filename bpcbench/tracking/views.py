"""Saved views of the MLflow UI: experiment tags that open a page with its columns, filter and charts prepared.

MLflow 3.17 keeps a saved view in the experiment tag `mlflow.sharedViewState.KEY`: JSON with a name, two times and a
state, which is `deflate;` and the base64 of the compressed JSON of the page's state. Another version that does not
understand the tag opens the plain page.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlencode

from bpcbench.store.manifest import Manifest
from bpcbench.tracking.names import (
    AXES,
    DIGEST_TAG,
    KIND_TAG,
    ORDER_TAG,
    USAGE,
    allowed,
    block_metric,
    block_name,
    group_name,
    varying,
)

VIEW_TAG = "mlflow.sharedViewState."
_CREATED = 1735689600000
"""A fixed time, so that an unchanged view is an unchanged tag."""

_NAME = "attributes.`Run Name`"
_DURATION = "duration"
"""Columns that are always there; only their positions and widths can be chosen."""
_DATASET = "attributes.`Dataset`"
_MOST_RUNS = 500
"""How many runs a chart shows; more than a table has lines."""
_WIDTHS = {"metrics": 92, "params": 80, "tags": 140, "attributes": 140}


@dataclass(frozen=True)
class SavedView:
    """A page of the runs of an experiment: its key in the address, its name, its state and how runs are shown."""

    key: str
    name: str
    state: Mapping[str, Any]
    mode: Literal["TABLE", "CHART"] = "TABLE"

    @property
    def tag(self) -> tuple[str, str]:
        """The experiment tag that holds the view: its key and its value."""
        packed = base64.b64encode(zlib.compress(json.dumps(self.state, sort_keys=True).encode(), 9)).decode()
        times = {"createdAt": _CREATED, "updatedAt": _CREATED}
        return f"{VIEW_TAG}{self.key}", json.dumps({"name": self.name, **times, "state": f"deflate;{packed}"})

    def address(self, base: str, experiment: str) -> str:
        """Return the address that opens the view at a server."""
        shown = {"compareRunsMode": self.mode} if self.mode != "TABLE" else {}
        query = urlencode({"workflowType": "machine_learning", **shown, "viewStateShareKey": self.key})
        return f"{base}/#/experiments/{experiment}/runs?{query}"


def saved_views(manifest: Manifest) -> tuple[SavedView, ...]:
    """Return the views of a suite, of the runs of this manifest alone: Results, Charts, Cells and Costs."""
    shown = [allowed(name) for name in manifest.shown]
    axes = varying(manifest)
    # The run's name already says what varies.
    labels = [_column("params", axis) for axis in AXES if axis in axes and axis != "method"]
    means = [_column("metrics", name) for metric in shown for name in (metric, f"{metric}_std")]
    ranks = [_column("tags", f"rank.{metric}") for metric in shown]
    drawn = ("class_order",) if any(cell.order for cell in manifest.cells) else ()
    seeds = [_column("params", name) for name in (*drawn, "distil_seed", "evaluate_seed")]
    cell_metrics = [_column("metrics", metric) for metric in shown]
    costs = [
        _column("metrics", f"{USAGE}/{stage}_{what}")
        for stage in ("coreset", "predict")
        for what in ("seconds", "cpu_seconds", "peak_memory", "bytes")
        if (stage, what) != ("predict", "bytes")
    ]
    order = _column("tags", ORDER_TAG)
    first = _column("metrics", shown[0]) if shown else "attributes.start_time"
    summary, cell = _filter(manifest, "summary"), _filter(manifest, "cell")
    higher = [metric.direction != "lower" for metric in manifest.metrics if shown and metric.name == manifest.shown[0]]
    cells_ascending = not (higher[0] if higher else True)
    results = [*means, _column("metrics", "n"), *ranks]
    cells = [*cell_metrics, *labels, *seeds, _DATASET]
    line = max((len(group_name(group, axes)) for group in manifest.groups), default=0)
    wide, wider = _name_width(line), _name_width(line + len(" seed 0.0"))
    return (
        SavedView("results", "Results", _state(summary, results, order, ascending=True, name=wide)),
        SavedView("charts", "Charts", _charts(manifest, summary, shown, axes, order), "CHART"),
        SavedView("cells", "Cells", _state(cell, cells, first, ascending=cells_ascending, name=wider)),
        SavedView("costs", "Costs", _state(cell, costs, costs[0], ascending=False, name=wider, first=(_DURATION,))),
    )


def _filter(manifest: Manifest, kind: str) -> str:
    return f"tags.`{KIND_TAG}` = '{kind}' and tags.`{DIGEST_TAG}` LIKE '%{manifest.digest}%'"


def _column(kind: str, name: str) -> str:
    return f"{kind}.`{name}`"


def _name_width(letters: int) -> int:
    """Return how many pixels wide the column of names is: as wide as MLflow's own, or as the longest name needs."""
    return min(max(190, 7 * letters + 60), 360)


def _width(column: str) -> int:
    """Return how many pixels wide a column is: its name must be readable."""
    kind, _, name = column.partition(".")
    return max(_WIDTHS.get(kind, 92), 7 * len(name) + 30)


def _state(
    search: str, columns: Sequence[str], order: str, *, ascending: bool, name: int, first: Sequence[str] = ()
) -> dict[str, Any]:
    return {
        "searchFilter": search,
        "orderByKey": order,
        "orderByAsc": ascending,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": list(columns),
        "columnOrder": [_NAME, *first, *columns],
        "columnWidths": {_NAME: name, **{column: _width(column) for column in columns}},
        "runsHiddenMode": "SHOW_ALL",
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": None,
    }


def _charts(manifest: Manifest, search: str, shown: Sequence[str], axes: tuple[str, ...], order: str) -> dict[str, Any]:
    """Return the charts: every metric by method in each block of the table, then across blocks, then the coresets."""
    blocks = tuple(dict.fromkeys(block_name(group, axes) for group in manifest.groups))
    sections: list[dict[str, Any]] = []
    charts: list[dict[str, Any]] = []

    def section(name: str, *, display: bool = True) -> str:
        uuid = f"bpcbench-{len(sections)}"
        shown_as = {"display": display, "columns": 2, "isReordered": True, "deleted": False}
        sections.append({"uuid": uuid, "name": name, **shown_as})
        return uuid

    def chart(kind: str, where: str, **more: Any) -> None:
        charts.append(
            {
                "type": kind,
                "uuid": f"bpcbench-chart-{len(charts)}",
                "runsCountToCompare": _MOST_RUNS,
                "metricSectionId": where,
                "deleted": False,
                "isGenerated": False,
                **more,
            }
        )

    for block in blocks:
        place = section(block or "Results")
        for name in shown:
            own = block_metric(block, name)
            chart("BAR", place, metricKey=own, displayName=own)
            # Bars have no labels; here the methods are written below the axis.
            chart("SCATTER", place, xaxis={"key": "method", "type": "PARAM"}, yaxis={"key": own, "type": "METRIC"})
    if len(blocks) > 1:
        place = section("All")
        for name in shown:
            chart("BAR", place, metricKey=name, displayName=name)
            if "ipc" in axes:
                chart("SCATTER", place, xaxis={"key": "ipc", "type": "PARAM"}, yaxis={"key": name, "type": "METRIC"})
    else:
        place = sections[0]["uuid"]
    params = [axis for axis in AXES if axis in axes]
    chart("PARALLEL", place, selectedParams=params, selectedMetrics=list(shown), showAllRuns=True)
    section("Model metrics", display=False)
    section("coresets")
    return {
        **_state(search, [_column("metrics", name) for name in shown], order, ascending=True, name=_name_width(0)),
        "compareRunCharts": charts,
        "compareRunSections": sections,
        "isAccordionReordered": True,
    }
