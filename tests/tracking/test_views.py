"""Saved views have the form that MLflow's page reads."""

from __future__ import annotations

import base64
import json
import zlib
from urllib.parse import parse_qs, urlsplit

from bpcbench.store.manifest import Group, Manifest, MetricRecord
from bpcbench.tracking.names import dated, group_name, varying
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


def test_cells_show_their_metrics_first_and_their_data_set_last():
    (shown,) = [state(view.tag[1]) for view in saved_views(MANIFEST) if view.key == "cells"]
    columns = shown["selectedColumns"]
    assert columns[:2] == ["metrics.`acc`", "metrics.`nll`"]
    assert columns[-1] == "attributes.`Dataset`"
    assert shown["columnOrder"][1:] == columns
    name = shown["columnOrder"][0]
    assert shown["columnWidths"][name] >= 190


def test_addresses_open_the_training_pages():
    for view in saved_views(MANIFEST):
        split = urlsplit(view.address("http://127.0.0.1:5000", "7"))
        path, _, query = split.fragment.partition("?")
        assert path == "/experiments/7/runs"
        chosen = parse_qs(query)
        assert chosen["workflowType"] == ["machine_learning"]
        assert chosen["viewStateShareKey"] == [view.key]
        assert chosen.get("compareRunsMode", ["TABLE"]) == [view.mode]


def bars_by_section(shown: dict) -> dict[str, list[str]]:
    charts = shown["compareRunCharts"]
    assert len({chart["uuid"] for chart in charts}) == len(charts)
    assert all(chart["runsCountToCompare"] >= 100 for chart in charts)
    names = {section["uuid"]: section["name"] for section in shown["compareRunSections"]}
    bars = [chart for chart in charts if chart["type"] == "BAR"]
    return {
        name: keys
        for uuid, name in names.items()
        if (keys := [chart["metricKey"] for chart in bars if chart["metricSectionId"] == uuid])
    }


def charts_of(suite: Manifest) -> dict:
    return state({view.key: view for view in saved_views(suite)}["charts"].tag[1])


def test_charts_show_every_metric_in_every_block_and_over_all_of_them():
    shown = charts_of(MANIFEST)
    assert bars_by_section(shown) == {
        "ipc 1": ["within/ipc 1/acc", "within/ipc 1/nll"],
        "ipc 10": ["within/ipc 10/acc", "within/ipc 10/nll"],
        "All": ["acc", "nll"],
    }
    assert shown["runsHiddenMode"] == "SHOW_ALL"


def test_a_table_of_one_block_has_its_charts_once():
    assert bars_by_section(charts_of(manifest(MANIFEST.groups[1], MANIFEST.groups[2]))) == {"Results": ["acc", "nll"]}


def test_older_names_begin_with_their_settings():
    assert dated("a ipc 1", "3fa2b1c4d5e6") == "older 3fa2: a ipc 1"
    assert dated("older 3fa2: a ipc 1", "77aa00000000") == "older 77aa: a ipc 1"
    assert dated("older 3fa2: a ipc 1", None) == dated("a ipc 1", None) == "a ipc 1"


def test_names_hold_only_what_varies():
    assert varying(MANIFEST) == ("ipc", "method")
    assert [group_name(group, varying(MANIFEST)) for group in MANIFEST.groups] == ["a ipc 1", "a ipc 10", "b ipc 10"]
    assert group_name(MANIFEST.groups[0], varying(manifest(MANIFEST.groups[0]))) == "a"
