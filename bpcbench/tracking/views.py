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
from bpcbench.tracking.names import AXES, DIGEST_TAG, KIND_TAG, ORDER_TAG, allowed, varying

VIEW_TAG = "mlflow.sharedViewState."
_CREATED = 1735689600000
"""A fixed time, so that an unchanged view is an unchanged tag."""

_DURATION = "duration"
"""A column that is always there; only its position can be chosen."""
_WIDTHS = {"metrics": 92, "params": 80, "tags": 140}


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
        _column("metrics", f"cost/{stage}_{what}")
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
    return (
        SavedView("results", "Results", _state(summary, results, order, ascending=True)),
        SavedView("charts", "Charts", _charts(summary, shown, axes, order), "CHART"),
        SavedView("cells", "Cells", _state(cell, [*labels, *seeds, *cell_metrics], first, ascending=cells_ascending)),
        SavedView("costs", "Costs", _state(cell, costs, costs[0], ascending=False, first=(_DURATION,))),
    )


def _filter(manifest: Manifest, kind: str) -> str:
    return f"tags.`{KIND_TAG}` = '{kind}' and tags.`{DIGEST_TAG}` LIKE '%{manifest.digest}%'"


def _column(kind: str, name: str) -> str:
    return f"{kind}.`{name}`"


def _width(column: str) -> int:
    """Return how many pixels wide a column is: its name must be readable."""
    kind, _, name = column.partition(".")
    return max(_WIDTHS.get(kind, 92), 7 * len(name) + 16)


def _state(
    search: str, columns: Sequence[str], order: str, *, ascending: bool, first: Sequence[str] = ()
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
        "columnOrder": [*first, *columns],
        "columnWidths": {column: _width(column) for column in columns},
        "runsHiddenMode": "SHOW_ALL",
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": None,
    }


def _charts(search: str, shown: Sequence[str], axes: Sequence[str], order: str) -> dict[str, Any]:
    sections = [
        {"uuid": "bpcbench-results", "name": "Results", "display": True, "isReordered": True, "deleted": False},
        {"uuid": "bpcbench-other", "name": "Model metrics", "display": False, "isReordered": True, "deleted": False},
        {"uuid": "bpcbench-coresets", "name": "coresets", "display": True, "isReordered": True, "deleted": False},
    ]

    def chart(kind: str, name: str, section: str = "bpcbench-results", **more: Any) -> dict[str, Any]:
        return {
            "type": kind,
            "uuid": f"bpcbench-{name}",
            "runsCountToCompare": 20,
            "metricSectionId": section,
            "deleted": False,
            "isGenerated": False,
            **more,
        }

    charts = [chart("BAR", f"bar-{name}", metricKey=name, displayName=name) for name in shown]
    if "ipc" in axes:
        charts += [
            chart(
                "SCATTER",
                f"ipc-{name}",
                xaxis={"key": "ipc", "type": "PARAM"},
                yaxis={"key": name, "type": "METRIC"},
                runsCountToCompare=100,
            )
            for name in shown
        ]
    params = [axis for axis in AXES if axis in axes]
    charts.append(chart("PARALLEL", "parallel", selectedParams=params, selectedMetrics=list(shown), showAllRuns=True))
    return {
        **_state(search, [_column("metrics", name) for name in shown], order, ascending=True),
        "compareRunCharts": charts,
        "compareRunSections": sections,
        "isAccordionReordered": True,
        "runsHiddenMode": "FIRST_20_RUNS",
    }
