"""Draws by class: deterministic, nested, stratified."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpcbench.sampling import per_class, stratified_holdout, stratified_subset

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(lambda values: np.array(values, np.int64))
SEEDS = st.integers(0, 2**31 - 1)


@settings(deadline=None)
@given(LABELS, SEEDS)
def test_per_class_draws_without_replacement_and_ordered_by_class(labels: np.ndarray, seed: int) -> None:
    count = int(min(np.bincount(labels)[np.unique(labels)]))
    rows = per_class(labels, count, seed)
    assert len(set(rows.tolist())) == len(rows)
    np.testing.assert_array_equal(labels[rows], np.repeat(np.unique(labels), count))


@settings(deadline=None)
@given(LABELS, SEEDS)
def test_a_smaller_draw_is_the_beginning_of_a_larger_one(labels: np.ndarray, seed: int) -> None:
    count = int(min(np.bincount(labels)[np.unique(labels)]))
    large = per_class(labels, count, seed).reshape(-1, count)
    for smaller in range(1, count):
        np.testing.assert_array_equal(per_class(labels, smaller, seed).reshape(-1, smaller), large[:, :smaller])


def test_per_class_golden_rows() -> None:
    # Every coreset that starts at real images depends on these: a change must be deliberate.
    assert per_class(np.arange(30) % 3, 2, seed=7).tolist() == [18, 9, 4, 10, 26, 20]


def test_per_class_depends_on_seed_and_is_uniform() -> None:
    labels = np.zeros(5, np.int64)
    first = np.bincount([int(per_class(labels, 1, seed)[0]) for seed in range(5000)], minlength=5)
    assert np.abs(first - 1000).max() < 130  # four and a half standard deviations


def test_per_class_leaves_the_global_generator_alone() -> None:
    before = np.random.get_state(legacy=False)
    per_class(np.arange(10) % 2, 3, 0)
    np.testing.assert_equal(np.random.get_state(legacy=False), before)


def test_per_class_says_which_class_is_too_small() -> None:
    with pytest.raises(ValueError, match="class 1 has 1 examples, fewer than the 2 asked for"):
        per_class(np.array([0, 0, 1]), 2, 0)
    with pytest.raises(ValueError, match="negative"):
        per_class(np.array([0]), -1, 0)


@settings(deadline=None)
@given(LABELS, st.floats(0.01, 0.99), SEEDS)
def test_holdout_is_a_stratified_partition(labels: np.ndarray, fraction: float, seed: int) -> None:
    kept, held = stratified_holdout(labels, fraction, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate([kept, held])), np.arange(len(labels)))
    assert (np.diff(kept) > 0).all()
    assert (np.diff(held) > 0).all()
    for label, count in zip(*np.unique(labels, return_counts=True), strict=True):
        expected = max(round(fraction * count), 1 if count > 1 else 0)
        assert (labels[held] == label).sum() == expected


def test_holdout_is_not_the_draw_of_per_class() -> None:
    labels = np.zeros(1000, np.int64)
    _, held = stratified_holdout(labels, 0.1, 3)
    shared = len(set(held.tolist()) & set(per_class(labels, 100, 3).tolist()))
    assert shared < 30  # 10 expected of independent draws


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5])
def test_holdout_refuses_fractions_outside_the_unit_interval(fraction: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        stratified_holdout(np.zeros(4, np.int64), fraction, 0)


@settings(deadline=None)
@given(LABELS, st.integers(0, 70), SEEDS)
def test_a_subset_has_every_class_in_proportion(labels: np.ndarray, count: int, seed: int) -> None:
    rows = stratified_subset(labels, count, seed)
    assert len(rows) == min(count, len(labels))
    assert (np.diff(rows) > 0).all()
    share = len(rows) / len(labels)
    for label, size in zip(*np.unique(labels, return_counts=True), strict=True):
        assert abs((labels[rows] == label).sum() - share * size) <= 1.5  # apportionment may miss the quota, never far


@settings(deadline=None)
@given(LABELS, SEEDS)
def test_subsets_are_nested(labels: np.ndarray, seed: int) -> None:
    before: set[int] = set()
    for count in range(len(labels) + 1):
        rows = set(stratified_subset(labels, count, seed).tolist())
        assert before < rows or count == 0
        before = rows


def test_equal_classes_are_equal_in_a_subset() -> None:
    labels = np.random.default_rng(0).permutation(np.arange(10_000) % 10)
    rows = stratified_subset(labels, 2000, 0)
    assert np.bincount(labels[rows]).tolist() == [200] * 10
    assert not np.array_equal(rows, stratified_subset(labels, 2000, 1))
    # Numbers on subsets of other images are not comparable: a change must be deliberate.
    assert stratified_subset(np.arange(30) % 3, 6, 0).tolist() == [3, 4, 11, 13, 26, 27]
    with pytest.raises(ValueError, match="negative"):
        stratified_subset(labels, -1, 0)
