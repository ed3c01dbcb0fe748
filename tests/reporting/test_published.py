"""Published numbers beside measured ones: where they stand, what is said of them, and what breaks without them."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bpcbench
from bpcbench.cli import main
from bpcbench.records import Publication, PublishedNumber, PublishedPattern
from bpcbench.registry.discovery import Registry
from bpcbench.reporting import Place, Row, Table, build
from bpcbench.store.manifest import PublishedRecord

PAPER = "Author, 2025"


def record(mean: float | None, std: float | None = None, metric: str = "acc", **other: Any) -> PublishedRecord:
    return PublishedRecord(**{"publication": PAPER, "printed": ("", ""), **other}, metric=metric, mean=mean, std=std)


def measured(label: str = "a", inference: str = "vi", metric: str = "acc", value: float = 0.9) -> Row:
    place = ("d", 1, label, inference, "net", f"{label}-{inference}")
    return Row(*place, 0, 0, "predictive", metric, value, metric == "acc", "percent" if metric == "acc" else "")


def table(rows: list[Row], *records: PublishedRecord, beside: str = "closed-form", **options: Any) -> Table:
    """Return a table in which the records stand beside every line of the inference `beside`."""
    places = {Place(row.dataset, row.ipc, row.method, row.inference, row.network) for row in rows}
    published = {place: records for place in places if place.inference == beside}
    return build(rows, published=published, **{"metrics": ("acc",), **options})


def test_a_published_line_stands_directly_below_the_line_it_matches_unranked() -> None:
    rows = [measured("a", "closed-form"), measured("b", "closed-form", value=0.8), measured("a", "vi", value=0.7)]
    shown = table(rows, record(0.99, 0.01), publications={PAPER: "Its ± is over seeds."})
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
    shown = table([measured("a"), measured("b")], record(0.5), publications={PAPER: "Never shown."})
    assert [line.method for line in shown.lines] == ["a", "b"]
    assert shown.footnotes[-1] == "No published number for a, b."
    assert sum("ublished" in note for note in shown.footnotes) == 1
    assert not any("Never shown" in note for note in shown.footnotes)
    assert table([measured("a")]).footnotes[-1] == "No published number for a."


def test_a_table_that_was_not_asked_for_published_numbers_does_not_mention_them() -> None:
    shown = build([measured("a")])
    assert not any("ublished" in note for note in shown.footnotes)


def test_lines_of_two_publications_are_told_apart() -> None:
    records = record(0.1, publication="First, 2024"), record(0.2, publication="Second, 2025")
    shown = table([measured()], *records, beside="vi")
    assert [line.label("method") for line in shown.lines] == [
        "a",
        "a (published in First, 2024)",
        "a (published in Second, 2025)",
    ]
    assert [cell.mean for line in shown.lines[1:] for cell in line.cells] == ["10.0", "20.0"]


def test_a_number_is_shown_as_printed_or_formatted_if_that_is_not_known() -> None:
    for published, expected in (
        (record(0.03, 0.01, "nll", printed=("0.03", "0.01")), ("0.03", "0.01")),
        (record(0.03, 0.01, "nll"), ("0.030", "0.010")),
        (record(None, metric="nll", printed=("oom", "")), ("oom", "")),
    ):
        shown = table([measured(metric="nll")], published, beside="vi", metrics=("nll",))
        assert (shown.lines[1].cells[0].mean, shown.lines[1].cells[0].spread) == expected


def test_a_published_number_has_no_n() -> None:
    cell = table([measured()], record(0.967, 0.004), beside="vi").lines[1].cells[0]
    assert cell.summary is not None
    assert (cell.summary.mean, cell.summary.std, cell.summary.n) == (0.967, 0.004, 0)
    word = table([measured()], record(None, printed=("oom", "")), beside="vi").lines[1].cells[0]
    assert (word.summary, word.mean) == (None, "oom")


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
    good = Publication("Good, 2025", "", ())
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
    number = PublishedNumber("main", "Digits", 1, "Ours", "acc", 0.425, printed=("42.5", ""), cells=(cells,))
    good = Publication("Good, 2025", "", (number,))
    install(
        plugin_module(name="gone", bpcbench_published=bpcbench.hookimpl(lambda: broken())),
        plugin_module(name="good", bpcbench_published=bpcbench.hookimpl(lambda: [good])),
    )
    suite, out = write_suite(SUITE), str(tmp_path / "out")
    options = ["networks.conv-bn.width=2", "inferences.network.steps=1", "seeds=1"]
    bpcbench.run(suite, options, out=out, inline=True, track=False, quiet=True)
    assert "no published numbers of plugin tests:gone: RuntimeError: the file is gone\n" in capsys.readouterr().err
    assert main(["report", suite, *options, "--out", out, "--published"]) == 0
    printed = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    measured_line = next(index for index, line in enumerate(lines) if line.startswith("random "))
    assert lines[measured_line + 1] == "random (published) 42.5"
    assert not any("No published number" in line for line in lines)
