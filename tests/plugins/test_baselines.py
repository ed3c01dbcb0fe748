"""The baselines against brute force, and the contract that they share."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bpcbench
from bpcbench.api import Method
from bpcbench.data.classes import of_classes
from bpcbench.records import Data, Facts, Inputs, Ref, Split, Transform
from bpcbench.sampling import per_class
from bpcbench_baselines.herding import Herding, greedy_mean
from bpcbench_baselines.kmeans import KMeans
from bpcbench_baselines.random_choice import RandomChoice
from bpcbench_baselines.whole import Whole
from bpcbench_data.digits import Digits
from bpcbench_torch.preprocessing import Standardize

ALL = [RandomChoice(), Herding(), KMeans(), Whole()]
BY_CLASS = ALL[:3]


def context(seed: int = 0) -> Any:
    return SimpleNamespace(seed=seed, device="cpu", precision="float32")


def digits() -> tuple[Data, Inputs]:
    data = Data(Digits().facts(Path()), Digits().load(Path(), "train"))
    arrays = Standardize().fit(data, context())
    return data, Inputs(Transform(Standardize(), arrays))


def tiny(counts: list[int]) -> Data:
    labels = np.repeat(np.arange(len(counts)), counts)
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 1, 2, 2)).astype(np.uint8)
    return Data(Facts(shape=(1, 2, 2), classes=len(counts), sizes={"train": len(labels)}), Split(images, labels))


@pytest.mark.parametrize("method", BY_CLASS, ids=lambda method: method.name)
@pytest.mark.parametrize("ipc", [1, 3])
def test_ipc_images_of_every_class_ordered_by_class(method: Method, ipc: int) -> None:
    data, had = digits()
    coreset = method.distil(data, ipc, had, context(1))
    assert coreset.images.shape == (10 * ipc, 1, 8, 8)
    assert coreset.convention == method.convention() == "class"
    assert coreset.targets.dtype == coreset.class_ids.dtype == np.int64
    np.testing.assert_array_equal(coreset.targets, np.repeat(np.arange(10), ipc))
    np.testing.assert_array_equal(coreset.class_ids, coreset.targets)


@pytest.mark.parametrize("method", ALL, ids=lambda method: method.name)
def test_seeds_matter_exactly_where_a_method_says_so(method: Method) -> None:
    data, had = digits()
    first, again, other = (method.distil(data, 2, had, context(seed)).images for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.array_equal(first, other) is not method.uses_seed


@pytest.mark.parametrize("method", ALL, ids=lambda method: method.name)
def test_native_is_a_plain_network_and_no_gpu_is_taken(method: Method) -> None:
    facts = Digits().facts(Path())
    native = method.native(facts, 1)
    assert native is not None
    assert (native.inference, native.network) == (Ref("network"), Ref("conv-bn"))
    assert method.resources.gpus == 0
    assert method.skip(facts, 10) is None


@pytest.mark.parametrize("method", BY_CLASS, ids=lambda method: method.name)
def test_too_many_images_per_class_are_refused_with_a_reason(method: Method) -> None:
    data, had = tiny([5, 2]), Inputs(Transform(Standardize(), {"mean": np.zeros(1), "std": np.ones(1)}))
    assert "3 per class on average" in (method.skip(data.facts, 4) or "")
    assert method.skip(data.facts, 3) is None  # the counts are only known once labels are read
    with pytest.raises(ValueError, match="class 1 has 2 training images, fewer than the 3"):
        method.distil(data, 3, had, context())
    assert "at least 1" in (method.skip(data.facts, 0) or "")


@pytest.mark.parametrize("method", BY_CLASS, ids=lambda method: method.name)
def test_a_class_without_images_has_none_in_the_coreset(method: Any) -> None:
    """Each class's rows are those that it has among all classes: the others have no say in them."""
    data, had = digits()
    part, whole = (method.distil(of_classes(data, some), 3, had, context(5)) for some in ((4, 7), range(10)))
    rows = np.isin(whole.class_ids, (4, 7))
    assert part.classes == 10
    assert part.class_ids.tolist() == [4, 4, 4, 7, 7, 7]
    np.testing.assert_allclose(part.images, whole.images[rows], atol=1e-6)


def test_random_takes_the_images_that_all_methods_start_from() -> None:
    data, had = digits()
    rows = per_class(data.labels, 4, 11)
    coreset = RandomChoice().distil(data, 4, had, context(11))
    np.testing.assert_array_equal(coreset.images, had.transform.apply(data.train.images[rows]))


def test_whole_is_everything_whatever_ipc_and_seed_are() -> None:
    data, had = digits()
    coreset = Whole().distil(data, 7, had, context())
    np.testing.assert_array_equal(coreset.images, had.transform.apply(data.train.images))
    np.testing.assert_array_equal(coreset.targets, data.labels)
    assert (Whole.uses_ipc, Whole.uses_seed) == (False, False)
    assert Whole().skip(data.facts, 10**6) is None


def brute_force_herding(points: np.ndarray, count: int) -> list[int]:
    chosen: list[int] = []
    for _ in range(count):
        rest = [i for i in range(len(points)) if i not in chosen]
        distances = [np.linalg.norm(points.mean(0) - points[[*chosen, i]].mean(0)) for i in rest]
        chosen.append(rest[int(np.argmin(distances))])
    return chosen


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 25), st.integers(1, 6))  # two points are always a tie
def test_herding_is_the_greedy_choice(seed: int, n: int, dimensions: int) -> None:
    points = np.random.default_rng(seed).normal(3, 2, (n, dimensions))
    assert greedy_mean(points, n).tolist() == brute_force_herding(points, n)


def test_herding_of_digits_is_the_greedy_choice_and_nested() -> None:
    data, had = digits()
    points = had.transform.apply(data.train.images)
    five, three = (Herding().distil(data, ipc, had, context()).images for ipc in (5, 3))
    for label in (0, 8):
        mine = points[data.labels == label]
        chosen = brute_force_herding(mine.reshape(len(mine), -1).astype(np.float64), 5)
        np.testing.assert_array_equal(five[label * 5 : label * 5 + 5], mine[chosen])
        np.testing.assert_array_equal(three[label * 3 : label * 3 + 3], mine[chosen[:3]])


def test_kmeans_centres_are_a_fixed_point_of_lloyds_iteration() -> None:
    data, had = digits()
    points = had.transform.apply(data.train.images).reshape(len(data.train), -1)
    coreset = KMeans().distil(data, 6, had, context(3))
    centres = coreset.images.reshape(10, 6, -1)
    for label in range(10):
        mine = points[data.labels == label]
        nearest = ((mine[:, None] - centres[label]) ** 2).sum(2).argmin(1)
        means = np.stack([mine[nearest == j].mean(0) for j in range(6)])
        np.testing.assert_allclose(centres[label], means, atol=1e-4)


def test_one_kmeans_centre_is_the_class_mean_and_iterations_are_bounded() -> None:
    data, had = digits()
    points = had.transform.apply(data.train.images)
    means = np.stack([points[data.labels == label].mean(0) for label in range(10)])
    np.testing.assert_allclose(KMeans().distil(data, 1, had, context()).images, means, atol=1e-4)
    short, long = (KMeans(iterations=n).distil(data, 10, had, context()).images for n in (1, 100))
    assert not np.array_equal(short, long)


def test_the_whole_data_set_is_a_reference_and_not_ranked(write_suite, tmp_path) -> None:
    methods = "{random: {}, all: {plugin: whole}}"
    rest = "inferences: {network: {steps: 1}}, networks: {conv-bn: {width: 2}}, seeds: 1"
    suite = write_suite(f"{{protocol: 1, datasets: [digits], ipc: [1], methods: {methods}, {rest}}}")
    bpcbench.run(suite, out=tmp_path / "out", inline=True, track=False, quiet=True)
    assert {row.method: row.ranked for row in bpcbench.Session(suite, out=tmp_path / "out").rows()} == {
        "random": True,
        "all": False,
    }
