"""The corruption evaluator: which splits it asks for, every metric by hand, and how a table shows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bpcbench import metrics
from bpcbench.errors import Mistakes, UserError
from bpcbench.figures import Curves
from bpcbench.planning.published import match
from bpcbench.records import Facts, Inputs, Predictions, PublishedQuery, Ref, Scores, SplitRef, Transform
from bpcbench.reporting import Place, Row, build, render
from bpcbench.store.manifest import PublishedRecord
from bpcbench.suite.files import load
from bpcbench.testing import EvaluatorConformance
from bpcbench_evaluators.corruption import MEASURES, PAPER, CorruptionShift
from bpcbench_vbpc.published import publication

FACTS = Facts(shape=(1, 4, 4), classes=3, sizes={"train": 9, "test": 90}, name="tiles", options={"file": "x"})
NOTHING = Inputs(Transform(plugin=None, arrays={}))  # type: ignore[arg-type]


class TestConformance(EvaluatorConformance):
    plugin = CorruptionShift()


def predictions(evaluator: CorruptionShift) -> dict[SplitRef, Predictions]:
    """Return different predictions for every split."""
    found = {}
    for seed, ref in enumerate(evaluator.splits(FACTS)):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 3, 90)
        logits = rng.normal(0, 1, (90, 3)) + (2 if ref.dataset is None else 1) * np.eye(3)[labels]
        found[ref] = Predictions((logits - np.logaddexp.reduce(logits, 1, keepdims=True)).astype(np.float32), labels)
    return found


def scored(**options: Any) -> tuple[CorruptionShift, dict[str, Predictions], Scores]:
    evaluator = CorruptionShift(**options)
    made = predictions(evaluator)
    by_name = {ref.split if ref.dataset else "clean": found for ref, found in made.items()}
    return evaluator, by_name, evaluator.score(made, NOTHING)


def test_it_asks_for_36_splits_of_the_right_data_set() -> None:
    splits = CorruptionShift(seed=4).splits(FACTS)
    assert len(splits) == len(set(splits)) == 36
    assert splits[0] == SplitRef()
    base = {"plugin": "tiles", "file": "x"}
    assert {ref.dataset for ref in splits[1:]} == {Ref("corrupted", {"base": base, "seed": 4})}
    assert [ref.split for ref in splits[1:6]] == [f"gaussian_blur-{severity}" for severity in range(1, 6)]
    cifar = CorruptionShift().splits(Facts(shape=(3, 32, 32), classes=10, sizes={}, name="cifar10"))
    assert {ref.dataset for ref in cifar[1:]} == {Ref("cifar10c", {"seed": 0, "types": list(PAPER)})}


def test_types_of_the_release_are_for_cifar10_only() -> None:
    evaluator = CorruptionShift(types=["fog", "snow"])
    assert len(evaluator.splits(Facts(shape=(3, 32, 32), classes=10, sizes={}, name="cifar10"))) == 11
    with pytest.raises(UserError, match=r"fog cannot be generated for tiles \(allowed: gaussian_blur, "):
        evaluator.splits(FACTS)


def test_every_metric_by_hand() -> None:
    evaluator, found, result = scored(types=["snow", "pixelate"], severities=[1, 5], bins=7)
    one: dict[str, dict[str, float]] = {
        name: {
            "acc": metrics.accuracy(p.log_probs, p.labels),
            "nll": metrics.nll(p.log_probs, p.labels),
            "ece": metrics.ece(p.log_probs, p.labels, 7),
        }
        for name, p in found.items()
    }
    wanted = {f"{name}/{measure}": value for name, row in one.items() for measure, value in row.items()}
    for measure in MEASURES:
        for kind in ("snow", "pixelate"):
            wanted[f"{kind}/{measure}"] = (one[f"{kind}-1"][measure] + one[f"{kind}-5"][measure]) / 2
        wanted[f"corrupted/{measure}"] = (wanted[f"snow/{measure}"] + wanted[f"pixelate/{measure}"]) / 2
    wanted["corrupted/acc_drop"] = wanted["clean/acc"] - wanted["corrupted/acc"]
    assert dict(result.metrics) == pytest.approx(wanted)
    assert set(result.metrics) == {metric.name for metric in evaluator.metrics()}
    assert result.metrics["corrupted/acc_drop"] > 0


def test_every_metric_is_declared_and_has_a_direction() -> None:
    evaluator, _, result = scored()
    declared = {metric.name: metric for metric in evaluator.metrics()}
    assert set(declared) == set(result.metrics)
    assert len(evaluator.metrics()) == len(declared) == 3 * (1 + 35 + 7 + 1) + 1
    higher = {name for name, metric in declared.items() if metric.direction == "higher"}
    assert higher == {name for name in declared if name.endswith("/acc")}
    assert all(metric.direction is not None for metric in declared.values())
    percent = {name for name, metric in declared.items() if metric.unit == "percent"}
    assert percent == higher | {"corrupted/acc_drop"}


def test_curves_go_by_severity() -> None:
    _, _, result = scored(types=["snow", "pixelate"], severities=[5, 2, 3])
    assert set(result.figures) == {"acc_by_severity", "nll_by_severity", "ece_by_severity"}
    for measure in MEASURES:
        curves = result.figures[f"{measure}_by_severity"]
        assert isinstance(curves, Curves)
        assert curves.y == measure
        assert list(curves.series) == ["snow", "pixelate"]
        for kind, line in curves.series.items():
            assert line.x == (0, 2, 3, 5)
            wanted = ["clean", *(f"{kind}-{severity}" for severity in (2, 3, 5))]
            assert line.y == pytest.approx([result.metrics[f"{name}/{measure}"] for name in wanted])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"types": ["snwo"]}, "unknown type of corruption 'snwo'; did you mean 'snow'"),
        ({"types": []}, "types must be different ones and at least one"),
        ({"types": ["snow", "snow"]}, "types must be different ones"),
        ({"severities": []}, "numbers from 1 to 5"),
        ({"severities": [0, 1]}, "numbers from 1 to 5"),
        ({"severities": [2, 2]}, "severities must be different ones"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CorruptionShift(**options)


def test_splits_without_labels_are_refused() -> None:
    evaluator = CorruptionShift(types=["snow"], severities=[1])
    bare = Predictions(np.zeros((2, 1), np.float32), None)
    with pytest.raises(ValueError, match="with labels"):
        evaluator.score(dict.fromkeys(evaluator.splits(FACTS), bare), NOTHING)


SUITE = """
description: shift
protocol: 1
datasets: [digits]
ipc: [1]
methods: [random]
evaluators: {{corruption: {{types: [snow]}}}}
metrics: [{}]
"""


def test_a_suite_may_name_these_metrics_and_no_others(registry, write_suite) -> None:
    suite = load(registry, write_suite(SUITE.format("clean/acc, snow/nll, snow-5/ece, corrupted/acc_drop")))
    assert suite.metrics[-1] == "corrupted/acc_drop"
    for wrong in ("fog/acc", "snow-6/acc", "acc"):
        with pytest.raises(Mistakes, match=f"unknown metric '{wrong}'"):
            load(registry, write_suite(SUITE.format(wrong)))


def test_the_papers_table_stands_below_ours_in_the_same_columns() -> None:
    columns = [f"{kind}/{measure}" for kind in ("clean", *PAPER) for measure in ("acc", "nll")]
    rows = [
        Row(
            "cifar10",
            10,
            method,
            "vi",
            "conv-bn",
            f"{method}{seed}",
            seed,
            0,
            "corruption",
            column,
            0.5,
            True,
            "percent" * column.endswith("acc"),
        )
        for method in ("random", "vbpc")
        for seed in range(2)
        for column in columns
    ]
    options = {
        "network": {"plugin": "conv-bn"},
        "init": "real",
        "optimiser": "adam",
        "learn_labels": True,
        "augmentation": "paper",
        "noise": True,
    }
    places = {row.method: Place("cifar10", 10, row.method, "vi", "conv-bn") for row in rows}
    paper = publication()
    queries = {
        place: [PublishedQuery(*place, method_options=options, metric=column) for column in columns]
        for place in places.values()
    }
    published = {
        place: [
            PublishedRecord(paper.name, query.metric, number.mean, number.std, number.printed)
            for query in asked
            if (number := match([paper], query)) is not None
        ]
        for place, asked in queries.items()
    }
    table = build(rows, columns, published=published, publications={paper.name: paper.note})
    (below,) = [line for line in table.lines if line.published]
    assert below.method == "vbpc"
    assert [cell.mean for cell in below.cells[:4]] == ["69.8", "0.89", "59.3", "1.20"]
    assert all(cell.summary is not None for cell in below.cells)
    # The numbers of the table in the paper, from its text: acc of zoom_blur and nll of motion_blur.
    by_column = dict(zip(columns, below.cells, strict=True))
    assert by_column["zoom_blur/acc"].summary is not None
    assert by_column["zoom_blur/acc"].summary.mean == pytest.approx(0.581)
    text = render(table, "text")
    assert "clean/acc % " in text
    assert "snow/nll" in text
    assert "69.8±0.7" in text
    narrow = render(table, "text", width=100)
    assert max(map(len, narrow.splitlines())) <= 120  # footnotes may be that wide
    assert max(len(line) for line in narrow.splitlines() if "cifar10 ipc 10" in line or "vbpc" in line) <= 100
    assert narrow.count("cifar10 ipc 10") > 1
    heads = "\n".join(narrow.splitlines())
    assert [heads.index(f" {column} ") for column in columns] == sorted(
        heads.index(f" {column} ") for column in columns
    )


def test_the_suites_show_the_papers_columns_at_the_papers_settings(registry) -> None:
    suite, main, small = (load(registry, name) for name in ("cifar10c", "paper/main", "cpu/cifar10c"))
    printed = [record for record in publication().numbers if record.table == "cifar10c" and record.method == "vbpc"]
    columns = [f"{record.setting.removeprefix('corruption=')}/{record.metric}" for record in printed]
    assert list(suite.metrics) == columns
    assert small.metrics == suite.metrics
    ours, theirs = suite.settings["cifar10", 10], main.settings["cifar10", 10]
    assert all(ours.methods[name] == theirs.methods[name] for name in ours.methods)
    assert ours.preprocessing == theirs.preprocessing
    assert set(small.settings["cifar10", 10].methods) == {"random", "vbpc", "vbpc-augmented"}
    plain, augmented = (small.settings["cifar10", 10].methods[name] for name in ("vbpc", "vbpc-augmented"))
    tuned = {name: getattr(plain.plugin, name) for name in ("lr", "label_lr", "rho")}
    assert replace(augmented.plugin, augmentation="none", **tuned) == plain.plugin
    assert augmented.plugin.noise
    assert set(small.settings["cifar10", 10].inferences) == {"vi", "vi-augmented"}
    assert small.examples == 1000
