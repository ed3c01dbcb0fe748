"""Statistics against NumPy and SciPy, hand-computed cases, and what must hold for any input."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from bpcbench.stats import (
    Difference,
    Summary,
    negligible,
    paired_difference,
    paired_test,
    ranks,
    summarise,
    t_interval,
    tied,
    welch_test,
)

INF, NAN = math.inf, math.nan
numbers = st.floats(-1e6, 1e6)
anything = st.floats(allow_nan=True, allow_infinity=True)
runs = st.dictionaries(st.integers(), st.lists(numbers, min_size=1, max_size=4), min_size=1, max_size=6)


def summary(mean: float, std: float | None, n: int) -> Summary:
    return Summary(mean=mean, std=std, n=n, within=None, low=None, high=None)


def test_a_summary_by_hand() -> None:
    # Coreset means 2, 4, 9: every coreset counts once, however often it was evaluated.
    result = summarise({0: [1.0, 3.0], 1: [4.0], 2: [8.0, 9.0, 10.0]})
    std = math.sqrt((9 + 1 + 16) / 2)
    half = 4.302652729911275 * std / math.sqrt(3)
    assert result.mean == 5.0
    assert result.n == 3
    assert result.std == pytest.approx(std)
    assert result.within == pytest.approx((math.sqrt(2) + 1.0) / 2)  # the coreset with one evaluation has no spread
    assert (result.low, result.high) == pytest.approx((5.0 - half, 5.0 + half))


@settings(deadline=None, max_examples=80)
@given(runs)
def test_a_summary_agrees_with_numpy_and_scipy(by_coreset: dict[int, list[float]]) -> None:
    result = summarise(by_coreset)
    means = [float(np.mean(values)) for values in by_coreset.values()]
    assert result.n == len(means)
    assert result.mean == pytest.approx(np.mean(means), rel=1e-9, abs=1e-6)
    if len(means) == 1:
        assert (result.std, result.low, result.high) == (None, None, None)
    else:
        assert result.std == pytest.approx(np.std(means, ddof=1), rel=1e-7, abs=1e-6)
        error = scipy.stats.sem(means)
        low, high = scipy.stats.t.interval(0.95, len(means) - 1, np.mean(means), error) if error else (result.mean,) * 2
        assert (result.low, result.high) == pytest.approx((low, high), rel=1e-7, abs=1e-5)
    spreads = [np.std(values, ddof=1) for values in by_coreset.values() if len(values) > 1]
    if spreads:
        assert result.within == pytest.approx(np.mean(spreads), rel=1e-7, abs=1e-6)
    else:
        assert result.within is None


@settings(deadline=None, max_examples=60)
@given(runs, st.randoms(use_true_random=False))
def test_the_order_of_runs_does_not_change_a_digit(by_coreset: dict[int, list[float]], shuffler: random.Random) -> None:
    items = [(key, shuffler.sample(values, len(values))) for key, values in by_coreset.items()]
    shuffler.shuffle(items)
    assert summarise(dict(items)) == summarise(by_coreset)


def test_equal_values_have_no_spread() -> None:
    result = summarise({seed: [0.1, 0.1, 0.1] for seed in range(3)})
    assert (result.mean, result.std, result.within, result.low, result.high) == (0.1, 0.0, 0.0, 0.1, 0.1)


@pytest.mark.parametrize(("value", "mean"), [(INF, INF), (-INF, -INF), (NAN, NAN)])
def test_values_that_are_not_finite_show_in_the_mean(value: float, mean: float) -> None:
    result = summarise({0: [1.0, 2.0], 1: [1.0, value]})
    assert result.mean == pytest.approx(mean, nan_ok=True)
    assert (result.std, result.within, result.low, result.high, result.n) == (None, None, None, None, 2)


def test_one_infinite_coreset_leaves_the_spread_within_the_others_unknown() -> None:
    assert summarise({0: [1.0, 3.0], 1: [INF]}).within == pytest.approx(math.sqrt(2))
    assert summarise({0: [1.0, 3.0], 1: [INF, 1.0]}).within is None


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.integers(), st.lists(anything, min_size=1, max_size=3), min_size=1, max_size=4))
def test_no_value_is_too_odd_to_summarise(by_coreset: dict[int, list[float]]) -> None:
    result = summarise(by_coreset)
    values = [value for row in by_coreset.values() for value in row]
    assert math.isfinite(result.mean) == all(math.isfinite(value) for value in values)
    for bound in (result.std, result.within):
        assert bound is None or bound >= 0
    other = summarise({0: [0.0], 1: [1.0]})
    assert tied(result, other) == tied(other, result)


@pytest.mark.parametrize("by_coreset", [{}, {0: [1.0], 7: []}])
def test_nothing_cannot_be_summarised(by_coreset: dict[int, list[float]]) -> None:
    with pytest.raises(ValueError, match=r"no coreset was evaluated|coreset 7 has no evaluation"):
        summarise(by_coreset)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_t_interval_agrees_with_scipy(level: float) -> None:
    values = [0.31, 0.35, 0.30, 0.41]
    expected = scipy.stats.t.interval(level, 3, np.mean(values), scipy.stats.sem(values))
    assert t_interval(values, level) == pytest.approx(expected, rel=1e-12)


def test_a_t_interval_covers_the_mean_as_often_as_it_says() -> None:
    samples = np.random.default_rng(0).normal(3.0, 2.0, (2000, 3))
    covered = [low <= 3.0 <= high for low, high in (t_interval(row) or (NAN, NAN) for row in samples.tolist())]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, INF], [1.0, NAN, 2.0], [1.7e308, -1.7e308]])
def test_there_is_no_interval_of_too_little(values: list[float]) -> None:
    assert t_interval(values) is None


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_a_level_is_a_probability(level: float) -> None:
    with pytest.raises(ValueError, match="level must lie between 0 and 1"):
        t_interval([1.0, 2.0], level)
    with pytest.raises(ValueError, match="level must lie between 0 and 1"):
        tied(summary(1.0, 1.0, 3), summary(1.0, 1.0, 3), level)


def test_a_paired_difference_uses_the_shared_keys() -> None:
    a, b = {0: 0.5, 1: 0.7, 2: 0.6, 3: 9.0}, {2: 0.5, 1: 0.5, 0: 0.2, 8: -9.0}
    result = paired_difference(a, b)
    expected = scipy.stats.ttest_rel([0.5, 0.7, 0.6], [0.2, 0.5, 0.5]).confidence_interval(0.95)
    assert result.n == 3
    assert result.mean == pytest.approx(0.2)
    assert (result.low, result.high) == pytest.approx((expected.low, expected.high))
    mirrored = paired_difference(b, a)
    assert (mirrored.mean, mirrored.low, mirrored.high) == pytest.approx((-0.2, -expected.high, -expected.low))


def test_paired_differences_at_the_edge() -> None:
    assert paired_difference({0: 3.0}, {0: 1.0}) == Difference(mean=2.0, low=None, high=None, n=1)
    assert paired_difference({0: INF, 1: 1.0}, {0: 1.0, 1: 1.0}) == Difference(mean=INF, low=None, high=None, n=2)
    assert math.isnan(paired_difference({0: INF, 1: 1.0}, {0: INF, 1: 1.0}).mean)
    with pytest.raises(ValueError, match="at least one key"):
        paired_difference({0: 1.0}, {1: 1.0})


def test_ranks_by_hand() -> None:
    assert ranks([0.9, None, 0.7, 0.9, NAN, INF], higher_is_better=True) == [2.5, None, 4, 2.5, None, 1]
    assert ranks([0.9, None, 0.7, 0.9, NAN, INF], higher_is_better=False) == [2.5, None, 1, 2.5, None, 4]
    assert ranks([0.0, -0.0], higher_is_better=True) == [1.5, 1.5]
    assert ranks([None], higher_is_better=True) == [None]
    assert ranks([], higher_is_better=True) == []


@settings(deadline=None, max_examples=80)
@given(st.lists(st.integers(-3, 3) | st.floats(allow_nan=False), min_size=1, max_size=12), st.booleans())
def test_ranks_agree_with_scipy(values: list[float], higher_is_better: bool) -> None:
    expected = scipy.stats.rankdata([-value if higher_is_better else value for value in values])
    assert ranks(values, higher_is_better) == expected.tolist()


@settings(deadline=None, max_examples=200)
@given(numbers, st.floats(0.01, 10), st.integers(2, 12), st.floats(-5, 5), st.floats(0, 10), st.integers(2, 12))
def test_ties_agree_with_welch(mean: float, std: float, n: int, shift: float, other: float, m: int) -> None:
    p = scipy.stats.ttest_ind_from_stats(mean, std, n, mean + shift, other, m, equal_var=False).pvalue
    if abs(p - 0.05) > 1e-6:
        assert tied(summary(mean, std, n), summary(mean + shift, other, m)) == (p > 0.05)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (summary(0.5, None, 1), summary(0.5, 0.1, 3), True),
        (summary(0.5, None, 1), summary(0.501, 0.1, 3), False),
        (summary(0.5, 0.0, 3), summary(0.5, 0.0, 3), True),
        (summary(0.5, 0.0, 3), summary(0.5 + 1e-12, 0.0, 3), False),
        (summary(INF, None, 3), summary(INF, None, 3), True),
        (summary(INF, None, 3), summary(0.5, 0.1, 3), False),
        (summary(NAN, None, 3), summary(NAN, None, 3), False),
        (summary(0.0, 1e200, 3), summary(1e200, 1e200, 3), True),
        (summary(0.0, 1e-200, 3), summary(9e-200, 1e-200, 3), False),
    ],
)
def test_ties_at_the_edge(a: Summary, b: Summary, expected: bool) -> None:
    assert tied(a, b) is expected
    assert tied(b, a) is expected


def test_a_stricter_level_ties_more() -> None:
    a, b = summary(0.50, 0.02, 4), summary(0.54, 0.02, 4)
    assert not tied(a, b, level=0.95)
    assert tied(a, b, level=0.99)


# SciPy squares differences, which underflows below 1e-160; these tests are not about that.
moderate = st.integers(-100_000, 100_000).map(lambda number: number / 1000)
values = st.lists(st.tuples(moderate, moderate), min_size=2, max_size=8)


def test_tiny_differences_do_not_underflow() -> None:
    assert paired_test({0: 0.0, 1: 0.0}, {0: 0.0, 1: 1e-260}) == pytest.approx(0.5)


@settings(deadline=None)
@given(values)
def test_the_paired_test_is_that_of_scipy(pairs: list[tuple[float, float]]) -> None:
    a, b = (dict(enumerate(side)) for side in zip(*pairs, strict=True))
    p = paired_test(a, b)
    if p is None:
        assert np.std([x - y for x, y in pairs]) <= 1e-9
    else:
        assert p == pytest.approx(scipy.stats.ttest_rel(list(a.values()), list(b.values())).pvalue, rel=1e-4, abs=1e-9)


@settings(deadline=None)
@given(values, values)
def test_the_unpaired_test_is_that_of_scipy(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> None:
    a, b = ([x for x, _ in side] for side in (one, other))
    p = welch_test(*(summarise({i: [x] for i, x in enumerate(side)}) for side in (a, b)))
    if p is not None and min(np.std(a), np.std(b)) > 1e-6:
        assert p == pytest.approx(scipy.stats.ttest_ind(a, b, equal_var=False).pvalue, rel=1e-4, abs=1e-9)


def test_the_paired_test_uses_shared_keys_only() -> None:
    a, b = {0: 1.0, 1: 2.0, 2: 4.0, 7: 100.0}, {2: 1.0, 1: 1.0, 0: 1.0, 9: -100.0}
    assert paired_test(a, b) == pytest.approx(scipy.stats.ttest_rel([1, 2, 4], [1, 1, 1]).pvalue)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({}, {}),
        ({0: 1.0}, {0: 2.0}),
        ({0: 1.0, 1: 2.0}, {0: 2.0, 2: 2.0}),
        ({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}),
        ({0: 0.6, 1: 0.7, 2: 0.8}, {0: 0.5, 1: 0.6, 2: 0.7}),
        ({0: INF, 1: 2.0}, {0: 2.0, 1: 2.0}),
        ({0: NAN, 1: 2.0}, {0: 2.0, 1: 2.0}),
    ],
    ids=["nothing", "one pair", "one in common", "identical", "equal differences", "inf", "nan"],
)
def test_there_is_no_paired_test_where_no_noise_can_be_estimated(a: dict[int, float], b: dict[int, float]) -> None:
    assert paired_test(a, b) is None


def test_a_spread_is_negligible_if_it_is_rounding() -> None:
    assert negligible(abs((0.8 - 0.7) - (0.6 - 0.5)), [0.8, 0.7])
    assert negligible(0.0, [])
    assert not negligible(1e-9, [0.8])
