"""Every shipped suite is valid, and the ones on embedded data can be planned anywhere."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
import yaml

import bpcbench
from bpcbench import Session
from bpcbench.suite.files import load, shipped

SUITES = [name for name in sorted(shipped()) if not name.startswith("presets/")]


@pytest.mark.parametrize("name", SUITES)
def test_it_is_valid(name, registry):
    suite = load(registry, name)
    assert suite.description
    assert suite.protocol == 1


PRESETS = [path for name, path in sorted(shipped().items()) if name.startswith("presets/")]


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_tuned_preset_sets_what_its_record_says_is_best(path):
    preset = yaml.safe_load(path.read_text())
    cells = [tuple(case["when"].items()) for case in preset["cases"]]
    assert len(set(map(str, cells))) == len(cells)
    for method, tuned in preset.get("tuned", {}).items():
        with (path.parent / tuned["record"]).open(newline="") as file:
            trials = [row for row in csv.DictReader(file) if row["method"] == method]
        assert trials
        assert tuned["objective"] == f"validation {trials[0]['objective']}"
        groups = {(row["dataset"], int(row["ipc"])): [] for row in trials}
        for row in trials:
            groups[row["dataset"], int(row["ipc"])].append(row)
        for (dataset, ipc), rows in groups.items():
            assert len(rows) <= tuned["trials"]
            (best,) = [row for row in rows if row["best"] == "true"]
            assert float(best["value"]) == min(float(row["value"]) for row in rows)
            setting = {
                f"methods.{method}.{column[4:]}": yaml.safe_load(text)
                for column, text in best.items()
                if column.startswith("set.") and text
            }
            (chosen,) = [case["set"] for case in preset["cases"] if case["when"] == {"dataset": dataset, "ipc": ipc}]
            assert {key: value for key, value in chosen.items() if key.startswith(f"methods.{method}.")} == setting


@pytest.mark.parametrize("name", [name for name in SUITES if "digits" in name or name == "quickstart"])
def test_it_can_be_planned(name, tmp_path):
    plan = Session(name, out=tmp_path / "store").plan()
    assert plan.to_do()
    assert not plan.skipped()


def test_labels_of_the_paper_table_have_their_settings(registry):
    suite = load(registry, "paper/main")
    vbpc = {key: setting.methods["vbpc"].plugin for key, setting in suite.settings.items()}
    assert {key: (m.rho, m.gamma, m.evaluation_steps) for key, m in vbpc.items()} == {
        ("mnist", 1): (1, 100, 100),
        ("mnist", 10): (1, 100, 500),
        ("mnist", 50): (10, 100, 1000),
        ("fashion_mnist", 1): (1, 100, 100),
        ("fashion_mnist", 10): (1, 100, 500),
        ("fashion_mnist", 50): (10, 100, 1000),
        ("cifar10", 1): (1, 100, 200),
        ("cifar10", 10): (1, 100, 2000),
        ("cifar10", 50): (10, 100, 5000),
        ("cifar100", 1): (1, 100, 2000),
        ("cifar100", 10): (10, 100, 2000),
        ("cifar100", 50): (10, 100, 5000),
        ("tiny_imagenet", 1): (1, 100, 1000),
        ("tiny_imagenet", 10): (1, 100, 2000),
        ("tiny_imagenet", 50): (10, 100, 100),
    }
    assert suite.excluded(dataset="tiny_imagenet", ipc=50, method="vbpc", inference="native", network="native")
    assert vbpc["cifar100", 1].label_scale == pytest.approx((100 / 10) ** -0.5)
    assert vbpc["tiny_imagenet", 1].label_scale == pytest.approx((200 / 10) ** -0.5)
    assert {m.steps for m in vbpc.values()} == {500_000}


@pytest.mark.skipif("BPCBENCH_DATA" not in os.environ, reason="real data sets are not here")
def test_the_smallest_form_of_the_paper_table_runs(tmp_path):
    if not (Path(os.environ["BPCBENCH_DATA"]) / "cifar-10-batches-py").exists():
        pytest.skip("CIFAR-10 is not here")
    overrides = ["datasets=[mnist]"]
    result = bpcbench.run("paper/smoke", overrides, out=tmp_path, track=False, inline=True)
    assert result.exit_code == 0
