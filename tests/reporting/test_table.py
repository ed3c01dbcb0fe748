from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from bpcbench.errors import UserError
from bpcbench.records import Unit
from bpcbench.reporting import Asked, Cell, Place, Row, Table, build
from bpcbench.stats import Summary

NAN, INF = float("nan"), float("inf")


def rows(
    method: str,
    values: Sequence[float],
    metric: str = "acc",
    higher: bool | None = True,
    dataset: str = "digits",
    ipc: int = 1,
    inference: str = "vi",
    network: str = "conv",
    evaluator: str = "predictive",
    notes: tuple[str, ...] = (),
    ranked: bool = True,
    unit: Unit | None = None,
) -> list[Row]:
    """One coreset per value, each evaluated once; accuracies and AUROCs are in percent."""
    unit = unit if unit is not None else "percent" if metric.endswith(("acc", "auroc")) else ""
    where = (dataset, ipc, method, inference, network)
    return [
        Row(*where, f"{method}-{dataset}-{ipc}-{seed}", seed, 0, evaluator, metric, value, higher, unit, notes, ranked)
        for seed, value in enumerate(values)
    ]


def column(table: Table, index: int = 0) -> list[Cell]:
    return [line.cells[index] for line in table.lines]


def marks(table: Table, index: int = 0) -> list[str]:
    return ["*" * cell.best + "_" * cell.second + "~" * cell.tied for cell in column(table, index)]


def summary(cell: Cell) -> Summary:
    assert cell.summary is not None
    return cell.summary


def test_lines_and_groups_stand_as_they_first_appear() -> None:
    found = [*rows("z", [0.5], dataset="mnist", ipc=10), *rows("a", [0.5], dataset="mnist", ipc=2)]
    table = build([*found, *rows("z", [0.5], dataset="digits", ipc=50)])
    assert [line.method for line in table.lines] == ["z", "a"]
    assert [group.label for group in table.groups] == ["mnist ipc 10", "mnist ipc 2", "digits ipc 50"]
    assert [column.label for column in table.groups[0].columns] == ["acc % ↑", "nll"]


def test_inference_and_network_are_shown_only_where_they_vary() -> None:
    assert build(rows("a", [0.5])).labels == ("method",)
    assert build(rows("a", [0.5]) + rows("a", [0.4], inference="sghmc")).labels == ("method", "inference")
    both = build(rows("a", [0.5]) + rows("b", [0.4], inference="sghmc", network="vgg"))
    assert both.labels == ("method", "inference", "network")
    assert len(build(rows("a", [0.5]) + rows("a", [0.4], network="vgg")).lines) == 2


def evaluated(method: str, values: dict[int, dict[int, float]], **other: Any) -> list[Row]:
    """Rows by distil seed and evaluation seed; each distil seed has its own coreset."""
    return [
        replace(row, distil_seed=distil, coreset=f"{method}-{distil}", evaluate_seed=seed)
        for distil, by_seed in values.items()
        for seed, value in by_seed.items()
        for row in rows(method, [value], **other)
    ]


def test_mean_is_over_coresets_of_their_means() -> None:
    table = build(evaluated("a", {0: {0: 0.2, 1: 0.4, 2: 0.6}, 1: {0: 0.7, 1: 0.9, 2: 0.8}}))
    found = summary(table.lines[0].cells[0])
    assert found.n == 2
    assert found.mean == pytest.approx(0.6)
    assert found.std == pytest.approx(math.sqrt(0.08))
    assert found.within == pytest.approx((0.2 + 0.1) / 2)
    assert table.lines[0].cells[0].seeds == (0, 1, 2)


def test_unequal_evaluation_seeds_do_not_reach_the_means() -> None:
    """One coreset evaluated with one seed, others with three: only the seed that all have is averaged."""
    full = {seed: {0: 0.5, 1: 0.9, 2: 0.1} for seed in range(3)}
    short = {0: {0: 0.6, 1: 0.8}, 1: {0: 0.6}, 2: {0: 0.6, 2: 0.1}}
    table = build(evaluated("a", full) + evaluated("b", short), ["acc"])
    assert [(cell.mean, cell.spread, cell.seeds) for cell in column(table)] == [
        ("50.0", "0.0", (0,)),
        ("60.0", "0.0", (0,)),
    ]
    note = "Means are over the evaluation seeds that all compared coresets have: 1 of 3 in digits ipc 1."
    assert note in table.footnotes
    assert not any("Means are over" in note for note in build(evaluated("a", full), ["acc"]).footnotes)


def test_what_is_not_ranked_does_not_take_seeds_from_the_others() -> None:
    whole = evaluated("whole", {0: {0: 0.9}}, ranked=False)
    table = build(evaluated("a", {0: {1: 0.5, 2: 0.7}, 1: {1: 0.5, 2: 0.7}}) + whole, ["acc"])
    assert [(cell.mean, cell.seeds, cell.partial) for cell in column(table)] == [
        ("60.0", (1, 2), False),
        ("90.0", (0,), True),
    ]
    assert "† averages other evaluation seeds than the rest of its column." in table.footnotes


def test_a_column_without_a_common_evaluation_seed_says_so_and_ranks_nobody() -> None:
    table = build(evaluated("a", {0: {0: 0.5}, 1: {1: 0.7}}) + evaluated("b", {0: {0: 0.2}, 1: {0: 0.2}}), ["acc"])
    assert [(cell.mean, cell.partial) for cell in column(table)] == [("60.0", True), ("20.0", True)]
    assert marks(table) == ["", ""]
    assert any(
        note.startswith("† in digits ipc 1: the coresets have no evaluation seed in") for note in table.footnotes
    )


def test_the_suite_gives_the_order_and_keeps_lines_without_results() -> None:
    places = [Place(d, i, m, "vi", "conv") for d in ("mnist", "digits") for i in (10, 1) for m in ("z", "b", "a")]
    asked = {place: Asked(3, 1, ranked=place.method != "b") for place in places}
    table = build(rows("a", [0.5]) + rows("z", [0.4, 0.3, 0.5]), ["acc"], asked=asked)
    assert [line.method for line in table.lines] == ["z", "b", "a"]
    assert [line.missing for line in table.lines] == [False, True, False]
    assert [line.ranked for line in table.lines] == [True, False, True]
    assert [group.label for group in table.groups] == ["mnist ipc 10", "mnist ipc 1", "digits ipc 10", "digits ipc 1"]
    last = column(table, 3)
    assert [(cell.mean, cell.count, cell.asked) for cell in last] == [
        ("40.0", None, None),
        ("—", None, None),
        ("50.0", 1, 3),
    ]
    assert table.footnotes[0].endswith("n = 3 unless given in brackets.")
    assert "No result (—): 10 of 12 cells." in table.footnotes


def test_evaluation_seeds_that_nobody_has_yet_are_counted() -> None:
    place = Place("digits", 1, "a", "vi", "conv")
    table = build(evaluated("a", {0: {0: 0.5}, 1: {0: 0.4}}), ["acc"], asked={place: Asked(2, 3)})
    assert any("all compared coresets have: 1 of 3 in" in note for note in table.footnotes)


def test_a_deterministic_coreset_counts_once() -> None:
    place = ("digits", 1, "herding", "vi", "conv", "the-one")
    twice = [
        Row(*place, distil, evaluate, "e", "acc", 0.5 + evaluate / 10, True, "percent")
        for distil in range(3)
        for evaluate in range(2)
    ]
    found = summary(build(twice).lines[0].cells[0])
    assert (found.n, found.std) == (1, None)
    assert found.mean == pytest.approx(0.55)
    assert found == summary(build(twice[:2]).lines[0].cells[0])


def test_rows_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UserError, match=r"both 0.5 and 0.6: a / vi / conv on digits ipc 1, evaluation seed 0"):
        build(rows("a", [0.5]) + rows("a", [0.6]))
    with pytest.raises(UserError, match="both that higher and that lower"):
        build(rows("a", [0.5]) + rows("b", [0.6], higher=False))
    with pytest.raises(UserError, match="both in percent and not"):
        build(rows("a", [0.5]) + rows("b", [0.6], unit=""))


def test_the_same_nan_twice_is_no_contradiction() -> None:
    assert math.isnan(summary(build(rows("a", [NAN]) * 2).lines[0].cells[0]).mean)


@pytest.mark.parametrize(
    ("higher", "expected"), [(True, ["", "_", "*"]), (False, ["*", "_", ""]), (None, ["", "", ""])]
)
def test_direction(higher: bool | None, expected: list[str]) -> None:
    found = [row for i, method in enumerate("abc") for row in rows(method, [i, i + 0.001], "score", higher)]
    assert marks(build(found, ["score"])) == expected


def test_ties_inside_noise_are_marked_and_only_those() -> None:
    noisy = rows("a", [0.90, 0.92, 0.94]) + rows("b", [0.89, 0.91, 0.94]) + rows("c", [0.50, 0.51, 0.52])
    near = rows("d", [0.88, 0.91, 0.94])
    assert marks(build(noisy + near)) == ["*", "_~", "", "~"]
    assert marks(build(rows("a", [0.90, 0.9001]) + rows("b", [0.80, 0.8001]))) == ["*", "_"]


def test_ties_are_tested_in_pairs() -> None:
    """Coresets vary much from seed to seed and the difference little: unpaired it drowns, paired it does not."""
    a, b = [0.50, 0.70, 0.90], [0.47, 0.671, 0.872]
    assert scipy.stats.ttest_ind(a, b, equal_var=False).pvalue > 0.5
    assert scipy.stats.ttest_rel(a, b).pvalue < 0.01
    table = build(rows("a", a) + rows("b", b), ["acc"])
    assert marks(table) == ["*", "_"]
    assert table.test == "paired t-test at the 0.05 level"


def test_seeds_that_cannot_be_paired_are_tested_unpaired() -> None:
    other = [replace(row, distil_seed=row.distil_seed + 10) for row in rows("b", [0.47, 0.671, 0.872])]
    table = build(rows("a", [0.50, 0.70, 0.90]) + other, ["acc"])
    assert marks(table) == ["*", "_~"]
    assert table.test == "Welch's t-test at the 0.05 level"


def test_a_deterministic_coreset_is_paired_with_every_seed() -> None:
    one = [replace(row, coreset="the-one") for row in rows("herding", [0.8, 0.8, 0.8])]
    near, far = rows("near", [0.79, 0.83, 0.81]), rows("far", [0.70, 0.71, 0.72])
    table = build([*one, *near, *far], ["acc"])
    assert marks(table) == ["_~", "*", ""]
    assert table.test == "paired t-test at the 0.05 level"
    assert summary(column(table)[0]).n == 1
    # Two deterministic lines are one pair, which tells nothing.
    both = build([*one, *(replace(row, coreset="other") for row in rows("kmeans", [0.7, 0.7, 0.7]))], ["acc"])
    assert marks(both) == ["*", "_"]
    assert both.test == ""
    assert column(both)[1].untested


def test_how_weak_two_coresets_are_is_said() -> None:
    note = "With n = 2 only very large differences can be told apart."
    assert note in build(rows("a", [0.5, 0.6]) + rows("b", [0.3, 0.5])).footnotes
    assert note not in build(rows("a", [0.5, 0.6, 0.6]) + rows("b", [0.3, 0.5, 0.4])).footnotes


def test_lines_that_could_not_be_tested_are_named() -> None:
    table = build(rows("a", [0.5, 0.6]) + rows("b", [0.3]) + rows("c", [0.2, 0.1]), ["acc"])
    assert (
        "Not tested against the best everywhere, for want of a second coreset or of any spread: b." in table.footnotes
    )


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(0, 2)),
        st.floats(0, 1),
        min_size=1,
    ),
    st.randoms(use_true_random=False),
)
def test_neither_the_order_of_rows_nor_repetitions_change_anything(
    values: dict[tuple[str, int, int], float], shuffler: random.Random
) -> None:
    found = [row for (m, d, e), value in values.items() for row in evaluated(m, {d: {e: value}})]
    asked = {Place("digits", 1, method, "vi", "conv"): Asked(3, 3) for method in "abc"}
    table = build(found, ["acc"], asked=asked)
    again = found + shuffler.sample(found, shuffler.randint(0, len(found)))
    shuffler.shuffle(again)
    assert build(again, ["acc"], asked=asked) == table


def test_equal_means_share_the_first_place() -> None:
    assert marks(build(rows("a", [0.5]) + rows("b", [0.5]) + rows("c", [0.4]))) == ["*", "*", "_"]
    assert marks(build(rows("a", [0.5]) + rows("b", [0.5]))) == ["*", "*"]


def test_a_ceiling_is_shown_but_not_ranked() -> None:
    others = rows("a", [0.5]) + rows("b", [0.4])
    found = rows("ceiling", [0.99], ranked=False) + others
    assert marks(build(found)) == ["", "*", "_"]
    assert "Shown for reference, not ranked: ceiling." in build(found).footnotes
    assert marks(build(rows("ceiling", [0.99]) + others)) == ["*", "_", ""]


def test_who_competes_alone_is_not_called_best() -> None:
    assert marks(build(rows("ceiling", [0.99], ranked=False) + rows("a", [0.5]))) == ["", ""]


def test_what_is_not_finite_is_shown_and_never_ranked() -> None:
    found = rows("a", [NAN, 0.1], "nll", False) + rows("b", [INF, 0.1], "nll", False)
    table = build(found + rows("c", [0.5, 0.6], "nll", False) + rows("d", [-INF], "nll", False), ["nll"])
    assert [cell.mean for cell in column(table)] == ["nan", "inf", "0.55", "-inf"]
    assert marks(table) == ["", "", "", ""]
    assert "Not finite, and so not ranked: 3 of 4 cells." in table.footnotes
    assert marks(build(found + rows("c", [0.5], "nll", False) + rows("d", [2], "nll", False), ["nll"])) == [
        "",
        "",
        "*",
        "_",
    ]


def test_missing_cells_are_dashes_and_counted() -> None:
    table = build(rows("a", [0.5]) + rows("b", [0.4], dataset="mnist"), ["acc"])
    assert [[cell.mean for cell in line.cells] for line in table.lines] == [["50.0", "—"], ["—", "40.0"]]
    assert "No result (—): 2 of 4 cells." in table.footnotes


def test_n_is_said_once_if_equal_and_in_the_cell_if_not() -> None:
    equal = build(rows("a", [0.5, 0.6]) + rows("b", [0.4, 0.5]))
    assert [cell.count for cell in column(equal)] == [None, None]
    assert equal.footnotes[0].endswith("over evaluation seeds; n = 2.")
    mixed = build(rows("a", [0.5, 0.6]) + rows("b", [0.4]) + rows("c", [0.1, 0.2]))
    assert [cell.count for cell in column(mixed)] == [None, 1, None]
    assert mixed.footnotes[0].endswith("n = 2 unless given in brackets.")
    assert build(rows("a", [0.5])).footnotes[0].startswith("n = 1 coreset per cell: no ±")


def test_the_spread_within_a_coreset_is_said_separately() -> None:
    place = ("digits", 1, "a", "vi", "conv", "c")
    table = build(
        [Row(*place, 0, seed, "e", "acc", value, True, "percent") for seed, value in enumerate((0.50, 0.51, 0.52))]
    )
    assert table.footnotes[1].endswith("smallest to largest: acc 1.0 %.")


def test_notes_of_the_data_reach_the_footnotes() -> None:
    assert "Marked subset: digits." in build(rows("a", [0.5], notes=("subset",))).footnotes


def test_evaluators_that_use_the_same_name_are_not_mixed() -> None:
    table = build(rows("a", [0.5]) + rows("a", [0.3], evaluator="corruption"), ["acc"])
    assert [c.label for c in table.groups[0].columns] == ["acc (predictive) % ↑", "acc (corruption) % ↑"]
    assert [cell.mean for cell in table.lines[0].cells] == ["50.0", "30.0"]


def test_other_metrics_are_left_out_and_nothing_is_no_error() -> None:
    assert build(rows("a", [0.5], "ece", False)) == build([])
    assert build([]).footnotes == ("There are no results to show.",)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=6), st.booleans())
def test_whatever_is_marked_best_is_finite_and_best(values: list[float], higher: bool) -> None:
    found = [row for i, value in enumerate(values) for row in rows(str(i), [value], "score", higher)]
    finite = [value for value in values if math.isfinite(value)]
    best = [summary(cell).mean for cell in column(build(found, ["score"])) if cell.best]
    if len(finite) < 2:
        assert not best
    else:
        assert set(best) == {max(finite) if higher else min(finite)}


def test_a_group_has_no_column_for_what_its_evaluator_never_gives_there() -> None:
    found = [
        *rows("a", [0.9], dataset="mnist", metric="fashion_mnist/auroc", evaluator="ood"),
        *rows("a", [0.8], dataset="fashion_mnist", metric="mnist/auroc", evaluator="ood"),
        *rows("a", [0.7], dataset="mnist", metric="acc", evaluator="classification"),
    ]
    table = build(found, ["acc", "mnist/auroc", "fashion_mnist/auroc", "nll"])
    columns = {group.dataset: [column.metric for column in group.columns] for group in table.groups}
    # What classification will say of fashion_mnist is not known yet; nobody has given an nll.
    assert columns == {"mnist": ["acc", "fashion_mnist/auroc", "nll"], "fashion_mnist": ["acc", "mnist/auroc", "nll"]}
    means = {(group.dataset, column.metric): cell.mean for (group, column), cell in zip(
        [(group, column) for group in table.groups for column in group.columns], table.lines[0].cells, strict=True
    )}  # fmt: skip
    assert means["mnist", "fashion_mnist/auroc"] == "90.0"
    assert means["fashion_mnist", "mnist/auroc"] == "80.0"
    assert means["fashion_mnist", "acc"] == "—"
