"""Paired differences: what is paired with what, against SciPy, and how a table shows them."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from bpcbench.errors import UserError
from bpcbench.reporting import FORMATS, LAYOUTS, Format, Layout, Place, Row, Table, render
from bpcbench.reporting.pairs import Pair, difference_table, pairs


def row(method: str, seed: int, evaluation: int, value: float, coreset: str = "", **other: Any) -> Row:
    labels = {"dataset": "digits", "ipc": 1, "inference": "vi", "network": "conv", "unit": "percent", **other}
    return Row(
        **labels,
        method=method,
        coreset=coreset or f"{method}{seed}",
        distil_seed=seed,
        evaluate_seed=evaluation,
        evaluator="classification",
        metric="acc",
        value=value,
        higher_is_better=True,
    )


def line(method: str, values: list[float], **other: Any) -> list[Row]:
    return [row(method, seed, 0, value, **other) for seed, value in enumerate(values)]


def table(rows: list[Row], against: str = "b", **options: Any) -> Table:
    return difference_table(pairs(rows, against, ["acc"], **options), "Suite", options.get("axis", "method"))


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=6))
def test_the_interval_is_that_of_scipy(values: list[tuple[float, float]]) -> None:
    (pair,) = pairs(line("a", [a for a, _ in values]) + line("b", [b for _, b in values]), "b", ["acc"])
    expected = scipy.stats.ttest_rel(*zip(*values, strict=True)).confidence_interval()
    assert pair.difference.n == len(values)
    if pair.difference.low is not None:
        assert (pair.difference.low, pair.difference.high) == pytest.approx(tuple(expected), abs=1e-9)
    else:
        assert not expected.high - expected.low > 1e-9


def test_evaluations_are_averaged_and_seeds_paired() -> None:
    rows = [
        *(row("a", seed, e, 0.5 + 0.1 * seed + 0.01 * e) for seed in range(3) for e in range(2)),
        *(row("b", seed, e, 0.4) for seed in range(3) for e in range(2)),
    ]
    (pair,) = pairs(rows, "b", ["acc"])
    assert (pair.difference.n, pair.seeds, pair.possible) == (3, 2, 2)
    assert pair.difference.mean == pytest.approx(0.205)
    assert pair.cells()[6] == "+20.5 points"


def test_only_evaluation_seeds_of_both_sides_are_averaged() -> None:
    rows = [row("a", 0, 0, 0.5), row("a", 0, 1, 0.9), row("a", 1, 0, 0.6), row("b", 0, 0, 0.4), row("b", 1, 0, 0.4)]
    (pair,) = pairs(rows, "b", ["acc"])
    assert pair.difference.mean == pytest.approx(0.15)
    assert "Means are over the evaluation seeds that both sides have: 1 of 2 where not all." in table(rows).footnotes


def test_two_deterministic_methods_are_one_pair() -> None:
    rows = [row(method, seed, 0, value, method) for method, value in (("a", 0.6), ("b", 0.4)) for seed in range(3)]
    (pair,) = pairs(rows, "b", ["acc"])
    assert pair.difference.n == 1
    assert pair.difference.low is None
    assert table(rows).lines[0].cells[0].interval == "n/a"


def test_a_deterministic_method_is_paired_with_every_seed() -> None:
    (pair,) = pairs([*line("a", [0.6, 0.6], coreset="one"), *line("b", [0.4, 0.5, 0.3])], "b", ["acc"])
    assert pair.difference.n == 3
    assert pair.difference.mean == pytest.approx(0.2)


def test_equal_differences_are_no_certainty() -> None:
    cell = table(line("a", [0.6, 0.7, 0.8]) + line("b", [0.5, 0.6, 0.7])).lines[0].cells[0]
    assert (cell.mean, cell.interval, cell.nonzero) == ("+10.0", "n/a", False)
    assert cell.summary is not None
    assert (cell.summary.low, cell.summary.high) == (None, None)
    shown = table(line("a", [0.6, 0.7]) + line("b", [0.6, 0.7]))
    assert (shown.lines[0].cells[0].mean, shown.lines[0].cells[0].interval) == ("identical", "")
    assert "identical: the values of every pair are equal." in shown.footnotes


def test_intervals_that_exclude_zero_are_marked() -> None:
    rows = line("a", [0.60, 0.71, 0.79]) + line("b", [0.50, 0.60, 0.70]) + line("c", [0.4, 0.7, 0.7])
    shown = table(rows)
    assert shown.title == "Suite. Difference to b, paired, 95 % t-interval, n = 3"
    assert {each.method: each.cells[0].nonzero for each in shown.lines} == {"a": True, "c": False}
    text = render(shown)
    lines = [" ".join(each.split()) for each in text.splitlines()]
    assert "a +10.0 [+7.5, +12.5] *" in lines
    assert "c +0.0 [-24.8, +24.8]" in lines
    assert "* The 95 % interval excludes zero.\n" in text


def test_what_is_not_finite_has_no_interval() -> None:
    cell = table(line("a", [0.6, math.nan]) + line("b", [0.5, 0.6])).lines[0].cells[0]
    assert (cell.mean, cell.interval) == ("+nan", "n/a")


def test_inferences_are_paired_on_the_same_coreset_and_evaluation_seed() -> None:
    values = {("vi", 0): 0.5, ("vi", 1): 0.6, ("sghmc", 0): 0.55, ("sghmc", 1): 0.63}
    rows = [row("a", seed, 0, value, inference=name) for (name, seed), value in values.items()]
    rows += [row("a", 0, 1, 0.1, inference="vi"), row("b", 0, 0, 0.3, inference="sghmc")]
    (pair,) = pairs(rows, "vi", ["acc"], axis="inference")
    assert (pair.method, pair.inference, pair.difference.n) == ("a", "sghmc", 2)
    assert pair.difference.mean == pytest.approx(0.04)
    shown = table(rows, "vi", axis="inference")
    assert shown.labels == ("method", "inference")
    assert shown.footnotes[0].startswith("n is the number of coresets; each is compared with itself")


def test_networks_with_coresets_of_their_own_are_not_paired() -> None:
    rows = [row("a", 0, 0, 0.5, network=name, coreset=f"for-{name}") for name in ("conv", "vgg")]
    assert pairs(rows, "conv", ["acc"], axis="network") == []
    rows = [row("a", 0, 0, 0.5, network=name) for name in ("conv", "vgg")]
    assert [pair.network for pair in pairs(rows, "conv", ["acc"], axis="network")] == ["vgg"]


@pytest.mark.parametrize("axis", ["method", "inference", "network"])
def test_an_unknown_label_is_refused(axis: Any) -> None:
    with pytest.raises(UserError, match=rf"unknown {axis} to compare with 'no' \(allowed: "):
        pairs(line("a", [0.5]), "no", ["acc"], axis=axis)


def test_pairs_stand_in_the_order_of_the_suite() -> None:
    rows = [r for d in ("digits", "mnist") for m in ("a", "b", "c") for r in line(m, [0.1, 0.2], dataset=d)]
    order = [Place(d, 1, m, "vi", "conv") for d in ("mnist", "digits") for m in ("c", "b", "a")]
    names = [(pair.dataset, pair.method) for pair in pairs(rows, "b", ["acc"], order=order)]
    assert names == [("mnist", "c"), ("mnist", "a"), ("digits", "c"), ("digits", "a")]


def test_lines_with_nothing_to_pair_are_kept() -> None:
    order = [Place("digits", ipc, method, "vi", "conv") for ipc in (1, 10) for method in ("b", "late", "a")]
    order.append(Place("digits", 1, "own", "hmc", "conv"))  # `b` is never evaluated so
    made = difference_table(pairs(line("a", [0.6]) + line("b", [0.5]), "b", ["acc"], order=order), order=order)
    assert [line.method for line in made.lines] == ["late", "a"]
    assert [[cell.mean == "—" for cell in line.cells] for line in made.lines] == [[True, True], [False, True]]
    assert "Nothing to pair yet (—): 3 of 4 cells." in made.footnotes


def test_a_wide_table_of_differences_fits_the_terminal() -> None:
    rows = [
        r for d in ("one", "two", "three", "four") for m in ("a", "b") for r in line(m, [0.1, ord(m) / 700], dataset=d)
    ]
    lines = render(table(rows), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(each.startswith("method") for each in lines) == 2


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMATS)
def test_differences_have_every_format(form: Format, layout: Layout) -> None:
    text = render(table(line("a", [0.60, 0.71, 0.79]) + line("b", [0.5, 0.6, 0.7])), form, layout=layout)
    if form == "csv":
        (record,) = csv.DictReader(io.StringIO(text))
        assert (float(record["low"]), record["nonzero"]) == (pytest.approx(0.0751586), "True")
    elif form == "json":
        assert json.loads(text)["cells"][0]["high"] == pytest.approx(0.1248414)
    else:
        shown = {"text": "[+7.5, +12.5] *", "md": r"\[+7.5, +12.5\] \*", "latex": "{[}+7.5, +12.5]$^{*}$"}[form]
        assert shown in text


def test_a_pair_is_a_line_of_texts() -> None:
    (pair,) = pairs(line("a", [0.60, 0.71, 0.79]) + line("b", [0.5, 0.6, 0.7]), "b", ["acc"])
    assert isinstance(pair, Pair)
    assert pair.cells() == ("digits", "1", "a", "vi", "conv", "acc", "+10.0 points", "[+7.5, +12.5] *", "3")
