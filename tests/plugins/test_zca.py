"""ZCA whitening against its formula in plain float64, and back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bpcbench.errors import MissingData
from bpcbench.planning.spec import Spec
from bpcbench.records import Array, Arrays, Data, Facts, Split
from bpcbench.testing import PreprocessingConformance
from bpcbench_data.cifar import CIFAR10
from bpcbench_data.imagewoof import Imagewoof
from bpcbench_torch import zca
from bpcbench_torch.preprocessing import Standardize
from bpcbench_torch.zca import ZCA


class TestZCA(PreprocessingConformance):
    plugin = ZCA()


class TestGreyZCA(PreprocessingConformance):
    plugin = ZCA(grey=True)


def smooth(count: int, channels: int = 3, side: int = 6, seed: int = 0) -> Array:
    """Return images whose neighbouring pixels and channels are alike, as in photographs."""
    rng = np.random.default_rng(seed)
    basis = np.cos(np.arange(side)[:, None] * np.pi / side * (np.arange(side) + 0.5))
    waves = rng.normal(size=(count, channels, side, side)) / (1 + np.arange(side)[:, None] + np.arange(side)) ** 1.5
    waves[:, 1:] = 0.8 * waves[:, :1] + 0.3 * waves[:, 1:]
    images = basis.T @ waves @ basis
    return np.clip(128 + 60 * images, 0, 255).astype(np.uint8)


def fitted(images: Array, plugin: ZCA | None = None) -> Arrays:
    facts = Facts(shape=images.shape[1:], classes=1, sizes={"train": len(images)})
    data = Data(facts, Split(images, np.zeros(len(images), np.int64)))
    return (plugin or ZCA()).fit(data, None)  # type: ignore[arg-type]  # the context is not used


def naive(images: Array, regularisation: float = 0.1) -> tuple[Array, Array, Array]:
    """Return whitened images, eigenvalues of C and eigenvectors by the formula, with an SVD instead of eigh."""
    x = images / 255
    x = (x - x.mean((0, 2, 3), keepdims=True)) / x.std((0, 2, 3), keepdims=True)
    x = x.reshape(len(x), -1)
    deviations = x - x.mean(0)
    covariance = np.mean([np.outer(row, row) for row in deviations], 0)
    d = len(covariance)
    r = regularisation * np.trace(covariance) / d
    vectors, s, _ = np.linalg.svd(covariance + r * np.eye(d))
    scales = s**-0.5
    scales[len(x) :] = 1
    whitened = deviations @ vectors @ np.diag(scales) @ vectors.T
    return whitened.reshape(images.shape), s - r, vectors


@pytest.mark.parametrize("count", [40, 107, 500], ids=["N < d", "N = d - 1", "N > d"])
@pytest.mark.parametrize("regularisation", [0.1, 1e-3])
def test_is_the_formula(count: int, regularisation: float) -> None:
    images = smooth(count)
    plugin = ZCA(regularisation=regularisation)
    whitened = plugin.apply(images, fitted(images, plugin))
    assert whitened.dtype == np.float32
    np.testing.assert_allclose(whitened, naive(images, regularisation)[0], atol=2e-4)


def test_covariance_of_whitened_data_is_that_of_the_formula() -> None:
    images = smooth(2000)
    whitened = ZCA().apply(images, fitted(images)).reshape(len(images), -1).astype(np.float64)
    _, values, vectors = naive(images)
    expected = vectors @ np.diag(values / (values + 0.1 * values.mean())) @ vectors.T
    np.testing.assert_allclose(whitened.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(whitened.T @ whitened / len(images), expected, atol=1e-5)


def test_with_hardly_any_regularisation_the_covariance_is_the_identity() -> None:
    images = np.random.default_rng(0).integers(0, 256, (4000, 3, 3, 3)).astype(np.uint8)
    plugin = ZCA(regularisation=1e-9)
    whitened = plugin.apply(images, fitted(images, plugin)).reshape(len(images), -1).astype(np.float64)
    np.testing.assert_allclose(whitened.T @ whitened / len(images), np.eye(27), atol=1e-5)


@pytest.mark.parametrize("count", [20, 500])
def test_pixels_come_back_also_of_images_that_were_not_fitted(count: int) -> None:
    arrays = fitted(smooth(count))
    assert arrays["whiten"].dtype == arrays["colour"].dtype == np.float32
    new = np.random.default_rng(9).integers(0, 256, (11, 3, 6, 6)).astype(np.uint8)
    back = ZCA().invert(ZCA().apply(new, arrays), arrays)
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, new / 255, atol=1e-4)
    unclipped = ZCA().invert(ZCA().apply(new, arrays) * 3, arrays)
    assert unclipped.max() > 1


def test_grey_images_are_only_standardised_unless_asked_for() -> None:
    images = smooth(50, channels=1)
    plain = Standardize().apply(images, fitted(images))
    assert set(fitted(images)) == {"mean", "std"}
    np.testing.assert_array_equal(ZCA().apply(images, fitted(images)), plain)
    asked = ZCA(grey=True)
    whitened = asked.apply(images, fitted(images, asked))
    np.testing.assert_allclose(whitened, naive(images)[0], atol=2e-4)


def test_is_deterministic_and_independent_of_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    images = smooth(300)
    first, again = fitted(images), fitted(images)
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
    whole = ZCA().apply(images, first)
    monkeypatch.setattr(zca, "_CHUNK", 77)
    for name, array in fitted(images).items():
        np.testing.assert_allclose(array, first[name], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ZCA().apply(images, first), whole, atol=1e-5)


def test_data_without_variance_are_left_alone() -> None:
    images = np.full((5, 3, 2, 2), 7, np.uint8)
    arrays = fitted(images)
    assert not ZCA().apply(images, arrays).any()
    np.testing.assert_allclose(ZCA().invert(ZCA().apply(images, arrays), arrays), 7 / 255, atol=1e-6)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_the_regularisation_must_be_positive(wrong: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        ZCA(regularisation=wrong)


def test_needs_no_torch() -> None:
    code = """
import sys
import numpy as np
from bpcbench.testing import toy_data
from bpcbench_torch.zca import ZCA
data = toy_data(shape=(3, 4, 4))
ZCA().apply(data.train.images, ZCA().fit(data, None))
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_whitens_real_images() -> None:
    root = Path(os.environ.get("BPCBENCH_DATA", "nowhere"))
    try:
        CIFAR10().facts(root)
    except MissingData as error:
        pytest.skip(str(error))
    # The middle of every fifth image: all 50,000 of 3072 numbers take 20 seconds.
    train, test = (CIFAR10().load(root, split).images[::5, :, 8:24, 8:24] for split in ("train", "test"))
    arrays = fitted(train)
    whitened = ZCA().apply(test, arrays)
    np.testing.assert_allclose(ZCA().invert(whitened, arrays), test / 255, atol=1e-4)
    # Photographs vary most in their mean, of which whitening leaves hardly anything.
    standard = Standardize().apply(test, arrays)
    assert standard.mean((2, 3)).var() / standard.var() > 0.2
    assert whitened.mean((2, 3)).var() / whitened.var() < 0.02


class TestBlockZCA(PreprocessingConformance):
    plugin = ZCA(block=4, grey=True)


def test_images_of_one_block_are_whitened_whole() -> None:
    images = smooth(200)
    whole, block = fitted(images, ZCA()), fitted(images, ZCA(block=6))
    for name, values in whole.items():
        np.testing.assert_array_equal(block[name], values)
    np.testing.assert_array_equal(ZCA(block=6).apply(images, block), ZCA().apply(images, whole))


def test_blocks_are_a_checkerboard_with_the_mean_covariance() -> None:
    """Against the definition, block by block in float64, and back."""
    images = smooth(300, side=8)
    plugin = ZCA(block=4)
    arrays = fitted(images, plugin)
    assert arrays["whiten"].shape == (48, 48)
    x = images / 255
    x = (x - x.mean((0, 2, 3), keepdims=True)) / x.std((0, 2, 3), keepdims=True)
    deviations = x - x.mean(0)
    phases = [(row, column) for row in range(2) for column in range(2)]
    parts = {one: deviations[:, :, one[0] :: 2, one[1] :: 2].reshape(len(x), -1) for one in phases}
    covariance = np.mean([part.T @ part / len(x) for part in parts.values()], 0)
    values, vectors = np.linalg.eigh(covariance)
    whiten = vectors @ np.diag((values + 0.1 * values.mean()) ** -0.5) @ vectors.T
    expected = np.empty_like(x)
    for (row, column), part in parts.items():
        expected[:, :, row::2, column::2] = (part @ whiten).reshape(len(x), 3, 4, 4)
    whitened = plugin.apply(images, arrays)
    np.testing.assert_allclose(whitened, expected, atol=2e-4)
    np.testing.assert_allclose(plugin.invert(whitened, arrays), images / 255, atol=2e-5)
    np.testing.assert_allclose(plugin.apply_float(images / 255, arrays), whitened, atol=2e-5)


def test_blocks_must_divide_the_image() -> None:
    with pytest.raises(ValueError, match="8x8 pixels cannot be divided into blocks of 3"):
        fitted(smooth(20, side=8), ZCA(block=3))
    with pytest.raises(ValueError, match="must not be negative"):
        ZCA(block=-1)


@pytest.mark.parametrize(
    ("sides", "strides"),
    [
        ((64, 64), (1, 1)),
        ((32, 64), (1, 1)),
        ((128, 128), (2, 2)),
        ((96, 96), (2, 2)),
        ((100, 100), (2, 2)),
        ((128, 96), (4, 3)),
        ((256, 256), (4, 4)),
    ],
)
def test_blocks_are_chosen_by_the_size_of_the_image(sides: tuple[int, int], strides: tuple[int, int]) -> None:
    assert ZCA().strides((3, *sides)) == strides
    assert ZCA(block=max(sides)).strides((3, *sides)) == (1, 1)


def test_images_without_suitable_blocks_are_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="`block: 127` whitens them whole"):
        ZCA().strides((3, 127, 127))


def test_what_was_chosen_is_stored_and_keys_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "block" not in fitted(smooth(20, side=8))
    monkeypatch.setattr(zca, "LARGEST_BLOCK", 4)
    monkeypatch.setattr(zca, "_SMALLEST_BLOCK", 2)
    images = smooth(20, side=8)
    chosen, given = fitted(images), fitted(images, ZCA(block=4))
    assert chosen["block"].tolist() == [4, 4]
    np.testing.assert_array_equal(chosen["whiten"], given["whiten"])
    assert "block" not in Spec.of(ZCA()).options


@pytest.mark.campaign
def test_blocks_whiten_real_large_images() -> None:
    """ImageWoof at 128 px in blocks of 32; chosen by size they would be of 64, whose fit takes minutes."""
    root = Path(os.environ.get("BPCBENCH_DATA", "nowhere"))
    try:
        images = np.asarray(Imagewoof().load(root, "train").images[:2000])
    except MissingData as error:
        pytest.skip(str(error))
    plugin = ZCA(block=32)
    arrays = fitted(images, plugin)
    assert arrays["whiten"].shape == (3072, 3072)
    assert arrays["block"].tolist() == [32, 32]
    whitened = plugin.apply(images, arrays)
    np.testing.assert_allclose(plugin.invert(whitened[:50], arrays), images[:50] / 255, atol=1e-3)
    # Photographs vary most in their mean, of which whitening leaves hardly anything.
    standard = Standardize().apply(images, arrays)
    assert standard.mean((2, 3)).var() / standard.var() > 0.1
    assert whitened.mean((2, 3)).var() / whitened.var() < 0.02


def test_blocks_keep_the_matrices_of_large_images_small() -> None:
    """128 px: 12,288 numbers a block, so 1.2 GB in float64; whole, 19 GB."""
    large = Facts(shape=(3, 128, 128), classes=10, sizes={"train": 9025})
    assert ZCA(block=64).strides(large.shape) == (2, 2)
    assert ZCA(block=128).operations(large) > 20 * ZCA().operations(large) == 20 * ZCA(block=64).operations(large)
