"""Which published number matches which cell: plugins and options decide, never labels."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from bpcbench.planning.published import match
from bpcbench.records import Publication, PublishedNumber, PublishedPattern, PublishedQuery

CELL = PublishedQuery(
    dataset="digits",
    ipc=1,
    method="distil",
    inference="closed-form",
    network="convnet",
    native=True,
    method_options={"noise": True, "network": {"plugin": "convnet", "width": 16}},
    inference_options={"steps": 100},
    network_options={"width": 16},
    metric="acc",
)
FULL = PublishedPattern(
    dataset="digits",
    method="distil",
    inference="closed-form",
    network="convnet",
    native=True,
    method_options={"noise": True, "network": {"plugin": "convnet"}},
    inference_options={"steps": 100},
    network_options={"width": 16},
)


def number(*cells: PublishedPattern, mean: float | None = 0.5, metric: str = "acc", **other: Any) -> PublishedNumber:
    values: dict[str, Any] = {"table": "main", "dataset": "Digits", "ipc": 1, "method": "Ours", **other}
    return PublishedNumber(metric=metric, mean=mean, cells=cells, **values)


def paper(*numbers: PublishedNumber, name: str = "Author, 2025", note: str = "") -> Publication:
    return Publication(name, "", numbers, note)


def test_a_number_matches_where_every_axis_agrees() -> None:
    published = number(FULL)
    assert match([paper(published)], CELL) is published


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": "mnist"},
        {"ipc": 10},
        {"method": "other"},
        {"inference": "vi"},
        {"network": "mlp"},
        {"native": False},
        {"tasks": 5},
        {"metric": "nll"},
        {"method_options": {**CELL.method_options, "noise": False}},
        {"method_options": {**CELL.method_options, "network": {"plugin": "mlp", "width": 16}}},
        {"method_options": {"network": {"plugin": "convnet"}}},
        {"inference_options": {"steps": 200}},
        {"network_options": {"width": 32}},
    ],
    ids=str,
)
def test_no_number_matches_where_one_axis_differs(change: dict[str, Any]) -> None:
    assert match([paper(number(FULL))], replace(CELL, **change)) is None


def test_every_axis_of_a_pattern_is_tested_above() -> None:
    axes = {field.name for field in dataclasses.fields(PublishedPattern)} - {"metrics", "tasks"}
    assert {name for name in axes if getattr(FULL, name) in (None, {})} == set()


def test_an_axis_that_is_not_named_matches_everything() -> None:
    published = number(PublishedPattern(method="distil"))
    other = PublishedQuery("mnist", 1, "distil", "vi", "mlp", metric="acc")
    assert match([paper(published)], other) is published
    assert match([paper(replace(published, ipc=None))], replace(other, ipc=7)) is not None


def test_a_number_of_all_classes_at_once_does_not_match_classes_that_come_in_steps() -> None:
    published = number(PublishedPattern(method="distil"))
    assert match([paper(published)], replace(CELL, tasks=5)) is None
    in_steps = number(PublishedPattern(method="distil", tasks=5))
    assert [match([paper(in_steps)], replace(CELL, tasks=n)) for n in (None, 5, 10)] == [None, in_steps, None]


def test_a_number_without_cells_is_never_shown() -> None:
    assert match([paper(number())], CELL) is None


def test_a_pattern_may_name_several_metrics_and_a_number_several_patterns() -> None:
    both = number(PublishedPattern(method="distil", metrics=("nll", "nll_batch")), metric="nll")
    for metric, expected in (("nll", both), ("nll_batch", both), ("acc", None)):
        assert match([paper(both)], replace(CELL, metric=metric)) is expected
    either = number(PublishedPattern(network="mlp"), PublishedPattern(network="convnet"))
    assert match([paper(either)], CELL) is either
    assert match([paper(either)], replace(CELL, network="vgg")) is None


def test_the_number_that_names_most_wins_and_then_the_first() -> None:
    loose = number(PublishedPattern(method="distil"), mean=0.1)
    exact = number(PublishedPattern(method="distil", method_options={"noise": True}), mean=0.2)
    again = replace(exact, mean=0.3)
    assert match([paper(loose, exact, again)], CELL) is exact
    assert match([paper(loose), paper(exact)], CELL) is exact
    assert match([paper(loose, exact)], replace(CELL, method_options={"noise": False})) is loose


def test_records_refuse_what_could_never_match() -> None:
    with pytest.raises(ValueError, match="metrics must be a tuple of names, got 'acc'"):
        PublishedPattern(metrics="acc")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="method_options must be a mapping"):
        PublishedPattern(method_options=[("noise", True)])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs the printed word"):
        number(mean=None)
    with pytest.raises(ValueError, match="'acc' is not a PublishedNumber"):
        paper("acc")  # type: ignore[arg-type]
