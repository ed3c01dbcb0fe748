from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bpcbench.reporting.published import summary

import bpcbench
from bpcbench.cli import main
from bpcbench.records import Publication, PublishedNumber, PublishedPattern, PublishedQuery
from bpcbench.registry.discovery import Registry
from bpcbench.reporting import Place, Row, Table, build, match

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


def measured(label: str = "a", inference: str = "vi", metric: str = "acc", value: float = 0.9) -> Row:
    coreset = f"{label}-{inference}"
    return Row("d", 1, label, inference, "net", coreset, 0, 0, "predictive", metric, value, metric == "acc")


def table(rows: list[Row], *papers: Publication, metrics: tuple[str, ...] = ("acc",), **changes: Any) -> Table:
    """Return a table in which every line is `CELL` but for its inference, whose plugin has the name of its label."""
    queries = {
        Place(row.dataset, row.ipc, row.method, row.inference, row.network): replace(
            CELL, inference=row.inference, **changes
        )
        for row in rows
    }
    return build(rows, metrics, published=papers, queries=queries)


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
    axes = {field.name for field in dataclasses.fields(PublishedPattern)} - {"metrics"}
    assert {name for name in axes if getattr(FULL, name) in (None, {})} == set()


def test_an_axis_that_is_not_named_matches_everything() -> None:
    published = number(PublishedPattern(method="distil"))
    other = PublishedQuery("mnist", 1, "distil", "vi", "mlp", metric="acc")
    assert match([paper(published)], other) is published
    assert match([paper(replace(published, ipc=None))], replace(other, ipc=7)) is not None


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


def test_a_summary_has_no_n() -> None:
    known = summary(number(mean=0.967, std=0.004))
    assert known is not None
    assert (known.mean, known.std, known.n) == (0.967, 0.004, 0)
    assert summary(number(mean=None, printed=("oom", ""))) is None


def test_records_refuse_what_could_never_match() -> None:
    with pytest.raises(ValueError, match="metrics must be a tuple of names, got 'acc'"):
        PublishedPattern(metrics="acc")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="method_options must be a mapping"):
        PublishedPattern(method_options=[("noise", True)])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs the printed word"):
        number(mean=None)
    with pytest.raises(ValueError, match="'acc' is not a PublishedNumber"):
        paper("acc")  # type: ignore[arg-type]


def test_a_published_line_stands_directly_below_the_line_it_matches_unranked() -> None:
    rows = [measured("a", "closed-form"), measured("b", "closed-form", value=0.8), measured("a", "vi", value=0.7)]
    shown = table(rows, paper(number(FULL, mean=0.99, std=0.01), note="Its ± is over seeds."))
    assert [(line.label("method"), line.inference) for line in shown.lines] == [
        ("a", "closed-form"),
        ("a (published)", "closed-form"),
        ("b", "closed-form"),
        ("b (published)", "closed-form"),
        ("a", "vi"),
    ]
    assert [line.cells[0].best for line in shown.lines] == [True, False, False, False, False]
    assert [line.cells[0].second for line in shown.lines] == [False, False, True, False, False]
    assert not shown.lines[1].ranked
    notes = [note for note in shown.footnotes if "ublished" in note]
    assert notes == [
        "Lines marked (published) are printed in Author, 2025 and not ranked here. Its ± is over seeds.",
        "No published number for a / vi.",
    ]
    assert not any("No result" in note for note in shown.footnotes)


def test_a_table_says_once_that_there_is_no_published_number() -> None:
    shown = table([measured("a"), measured("b")], paper(number(FULL), note="Never shown."))
    assert [line.method for line in shown.lines] == ["a", "b"]
    assert shown.footnotes[-1] == "No published number for a, b."
    assert sum("ublished" in note for note in shown.footnotes) == 1
    assert not any("Never shown" in note for note in shown.footnotes)
    assert table([measured("a")]).footnotes[-1] == "No published number for a."


def test_a_table_that_was_not_asked_for_published_numbers_does_not_mention_them() -> None:
    shown = build([measured("a")])
    assert not any("ublished" in note for note in shown.footnotes)


def test_lines_of_two_publications_are_told_apart() -> None:
    cells = PublishedPattern(method="distil")
    papers = paper(number(cells, mean=0.1), name="First, 2024"), paper(number(cells, mean=0.2), name="Second, 2025")
    shown = table([measured()], *papers)
    assert [line.label("method") for line in shown.lines] == [
        "a",
        "a (published in First, 2024)",
        "a (published in Second, 2025)",
    ]
    assert [cell.mean for line in shown.lines[1:] for cell in line.cells] == ["10.0", "20.0"]


def test_a_number_is_shown_as_printed_or_formatted_if_that_is_not_known() -> None:
    cells = PublishedPattern(method="distil")
    as_printed = number(cells, mean=0.03, std=0.01, metric="nll", printed=("0.03", "0.01"))
    for published, expected in (
        (as_printed, ("0.03", "0.01")),
        (replace(as_printed, printed=("", "")), ("0.030", "0.010")),
        (number(cells, mean=None, metric="nll", printed=("oom", "")), ("oom", "")),
    ):
        shown = table([measured(metric="nll")], paper(published), metrics=("nll",))
        assert (shown.lines[1].cells[0].mean, shown.lines[1].cells[0].spread) == expected


SUITE = """
protocol: 1
datasets: [digits]
ipc: [1]
methods: [random]
inferences: [network]
networks: [conv-bn]
evaluators: [classification]
metrics: [acc]
"""


def broken() -> Any:
    raise RuntimeError("the file is gone")


def test_a_broken_publication_is_named_and_leaves_the_others(
    plugin_module: Callable[..., types.ModuleType], registry: Registry, install: Callable[..., Registry]
) -> None:
    good = paper(number(FULL), name="Good, 2025")
    found = install(
        plugin_module(name="gone", bpcbench_published=bpcbench.hookimpl(lambda: broken())),
        plugin_module(name="wrong", bpcbench_published=bpcbench.hookimpl(lambda: ["a text"])),
        plugin_module(name="good", bpcbench_published=bpcbench.hookimpl(lambda: iter([good]))),
    )
    messages: list[str] = []
    publications = found.published(messages.append)
    assert publications[-1] is good
    assert publications[:-1] == registry.published(messages.append)
    assert messages == [
        "no published numbers of plugin tests:gone: RuntimeError: the file is gone",
        "no published numbers of plugin tests:wrong: bpcbench_published returned 'a text', which is not a Publication",
    ]


def test_a_report_is_printed_without_the_numbers_of_a_broken_plugin(
    plugin_module: Callable[..., types.ModuleType],
    install: Callable[..., Registry],
    write_suite: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cells = PublishedPattern("digits", "random", "network", "conv-bn", native=False)
    good = paper(number(cells, mean=0.425, printed=("42.5", "")), name="Good, 2025")
    install(
        plugin_module(name="gone", bpcbench_published=bpcbench.hookimpl(lambda: broken())),
        plugin_module(name="good", bpcbench_published=bpcbench.hookimpl(lambda: [good])),
    )
    suite, out = write_suite(SUITE), str(tmp_path / "out")
    options = ["networks.conv-bn.width=2", "inferences.network.steps=1", "seeds=1"]
    bpcbench.run(suite, options, out=out, inline=True, track=False, quiet=True)
    capsys.readouterr()
    assert main(["report", suite, *options, "--out", out, "--published"]) == 0
    printed, said = capsys.readouterr()
    assert "note: no published numbers of plugin tests:gone: RuntimeError: the file is gone\n" in said
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    measured_line = next(index for index, line in enumerate(lines) if line.startswith("random "))
    assert lines[measured_line + 1] == "random (published) 42.5"
    assert not any("No published number" in line for line in lines)
