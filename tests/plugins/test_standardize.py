"""Standardisation against NumPy, and back."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from bpcbench.records import Arrays, Data, Facts, Split
from bpcbench_data.cifar import CIFAR10
from bpcbench_torch import preprocessing
from bpcbench_torch.preprocessing import Standardize
from bpcbench_torch.zca import ZCA

IMAGES = npst.arrays(np.uint8, st.tuples(st.integers(1, 6), st.integers(1, 3), st.just(4), st.just(5)))


def fitted(images: np.ndarray, plugin: Standardize | None = None) -> Arrays:
    facts = Facts(shape=images.shape[1:], classes=1, sizes={"train": len(images)})
    data = Data(facts, Split(images, np.zeros(len(images), np.int64)))
    return (plugin or Standardize()).fit(data, None)  # type: ignore[arg-type]  # the context is not used


@settings(max_examples=50)
@given(IMAGES)
def test_moments_are_numpys(images: np.ndarray) -> None:
    arrays = fitted(images)
    scaled = images / 255
    np.testing.assert_allclose(arrays["mean"], scaled.mean((0, 2, 3)), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(arrays["std"], np.maximum(scaled.std((0, 2, 3)), 1e-6), rtol=1e-9, atol=1e-14)


@settings(max_examples=50)
@given(IMAGES)
def test_the_spread_of_images_is_the_mean_of_their_own(images: np.ndarray) -> None:
    arrays = fitted(images, Standardize(spread="images"))
    expected = (images / 255).std((2, 3)).mean(0)
    np.testing.assert_allclose(arrays["std"], np.maximum(expected, 1e-6), rtol=1e-9, atol=1e-14)
    np.testing.assert_array_equal(arrays["mean"], fitted(images)["mean"])


@pytest.mark.skipif("BPCBENCH_DATA" not in os.environ, reason="real data sets are not here")
def test_it_is_what_public_code_has_for_cifar() -> None:
    root = Path(os.environ["BPCBENCH_DATA"])
    if not (root / "cifar-10-batches-py").exists():
        pytest.skip("CIFAR-10 is not here")
    images = CIFAR10().load(root, "train").images
    np.testing.assert_allclose(fitted(images, Standardize(spread="images"))["std"], [0.2023, 0.1994, 0.2010], atol=2e-4)


@settings(max_examples=50)
@given(IMAGES)
def test_apply_is_the_formula_and_invert_undoes_it(images: np.ndarray) -> None:
    arrays = fitted(images)
    shape = (1, -1, 1, 1)
    expected = (images / 255 - arrays["mean"].reshape(shape)) / arrays["std"].reshape(shape)
    applied = Standardize().apply(images, arrays)
    assert applied.dtype == np.float32
    np.testing.assert_array_equal(applied, expected.astype(np.float32))
    back = Standardize().invert(applied, arrays)
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, images / 255, atol=3e-7)


def test_training_data_have_mean_zero_and_std_one() -> None:
    images = np.random.default_rng(0).integers(0, 200, (50, 3, 8, 8)).astype(np.uint8)
    applied = Standardize().apply(images, fitted(images)).astype(np.float64)
    np.testing.assert_allclose(applied.mean((0, 2, 3)), 0, atol=1e-7)
    np.testing.assert_allclose(applied.std((0, 2, 3)), 1, rtol=1e-6)


def test_counting_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(1).integers(0, 256, (23, 2, 4, 4)).astype(np.uint8)
    whole = fitted(images)
    monkeypatch.setattr(preprocessing, "_CHUNK", 5)
    for name, array in fitted(images).items():
        np.testing.assert_array_equal(array, whole[name])


def test_a_constant_channel_becomes_zero() -> None:
    images = np.full((4, 1, 2, 2), 51, np.uint8)
    arrays = fitted(images)
    assert arrays["std"] == 1e-6
    assert not Standardize().apply(images, arrays).any()


def test_memory_maps_and_strides_are_read_as_they_are(tmp_path: Path) -> None:
    images = np.random.default_rng(2).integers(0, 256, (6, 3, 4, 4)).astype(np.uint8)
    np.save(tmp_path / "images.npy", images.transpose(0, 2, 3, 1))
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r").transpose(0, 3, 1, 2)
    arrays = fitted(images)
    for name, array in fitted(mapped).items():
        np.testing.assert_array_equal(array, arrays[name])
    np.testing.assert_array_equal(Standardize().apply(mapped, arrays), Standardize().apply(images, arrays))


def test_only_raw_bytes_and_some_images_are_taken() -> None:
    with pytest.raises(ValueError, match="uint8"):
        Standardize().apply(np.zeros((1, 1, 2, 2), np.float32), {"mean": np.zeros(1), "std": np.ones(1)})
    with pytest.raises(ValueError, match="at least one"):
        fitted(np.empty((0, 1, 2, 2), np.uint8))


def test_given_constants_replace_the_computed_ones() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 4), dtype=np.uint8)
    plugin = Standardize(mean=[0.4, 0.5, 0.6], std=[0.2, 0.25, 0.3])
    arrays = fitted(images, plugin)
    expected = (images / 255 - np.array([0.4, 0.5, 0.6])[:, None, None]) / np.array([0.2, 0.25, 0.3])[:, None, None]
    np.testing.assert_allclose(plugin.apply(images, arrays), expected, atol=1e-5)
    with pytest.raises(ValueError, match="3 channels, the images 1"):
        fitted(images[:, :1], plugin)


@pytest.mark.parametrize("wrong", [{"mean": [0.5]}, {"mean": [0.5], "std": [0.0]}, {"mean": [0.5], "std": [0.1, 0.2]}])
def test_constants_are_given_together_and_are_positive(wrong: dict[str, list[float]]) -> None:
    for plugin in (Standardize, ZCA):
        with pytest.raises(ValueError, match="std"):
            plugin(**wrong)
