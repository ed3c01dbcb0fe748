"""Saved views have the form that MLflow's page reads."""

from __future__ import annotations

import base64
import json
import zlib
from urllib.parse import parse_qs, urlsplit

from bpcbench.store.manifest import Group, Manifest, MetricRecord
from bpcbench.tracking.names import group_name, varying
from bpcbench.tracking.views import saved_views


def manifest(*groups: Group) -> Manifest:
    metrics = (MetricRecord("c", "acc", "higher"), MetricRecord("c", "nll", "lower"))
    return Manifest("s", "s", "run", "", "", 1, "test", ("acc", "nll"), {}, {}, metrics, (), groups, ())


MANIFEST = manifest(Group("d", 1, "a", "i", "n"), Group("d", 10, "a", "i", "n"), Group("d", 10, "b", "i", "n"))


def state(tag: str) -> dict:
    envelope = json.loads(tag)
    # MLflow 3.17 refuses an envelope without these.
    assert isinstance(envelope["name"], str)
    assert isinstance(envelope["createdAt"], int)
    kind, _, packed = envelope["state"].partition(";")
    assert kind == "deflate"
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def test_the_results_are_the_summaries_of_this_manifest_in_the_tables_order():
    view = saved_views(MANIFEST)[0]
    name, value = view.tag
    assert name == "mlflow.sharedViewState.results"
    shown = state(value)
    assert shown["searchFilter"] == (
        f"tags.`bpcbench.kind` = 'summary' and tags.`bpcbench.digest` LIKE '%{MANIFEST.digest}%'"
    )
    assert shown["selectedColumns"][:5] == [
        "metrics.`acc`",
        "metrics.`acc_std`",
        "metrics.`nll`",
        "metrics.`nll_std`",
        "metrics.`n`",
    ]
    assert shown["orderByKey"] == "tags.`bpcbench.order`"
    assert shown["orderByAsc"] is True


def test_addresses_open_the_training_pages():
    for view in saved_views(MANIFEST):
        split = urlsplit(view.address("http://127.0.0.1:5000", "7"))
        path, _, query = split.fragment.partition("?")
        assert path == "/experiments/7/runs"
        chosen = parse_qs(query)
        assert chosen["workflowType"] == ["machine_learning"]
        assert chosen["viewStateShareKey"] == [view.key]
        assert chosen.get("compareRunsMode", ["TABLE"]) == [view.mode]


def test_charts_show_every_metric_of_the_table():
    charts = state({view.key: view for view in saved_views(MANIFEST)}["charts"].tag[1])["compareRunCharts"]
    assert [chart["metricKey"] for chart in charts if chart["type"] == "BAR"] == ["acc", "nll"]
    assert len({chart["uuid"] for chart in charts}) == len(charts)


def test_names_hold_only_what_varies():
    assert varying(MANIFEST) == ("ipc", "method")
    assert [group_name(group, varying(MANIFEST)) for group in MANIFEST.groups] == ["a ipc 1", "a ipc 10", "b ipc 10"]
    assert group_name(MANIFEST.groups[0], varying(manifest(MANIFEST.groups[0]))) == "a"
