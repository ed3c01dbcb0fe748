"""Images of another data set in the shape of the cell's own: against Pillow, torch and block means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bpcbench.data.conversion import conversion, converted
from bpcbench.errors import UserError


def images(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Return smooth pictures: interpolations differ in how they round, not in what they show."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: shape[2], : shape[3]] / 8.0
    phases = rng.uniform(0, 6, (*shape[:2], 2, 1, 1))
    waves = np.sin(y + phases[:, :, 0]) + np.cos(1.3 * x + phases[:, :, 1])
    return np.clip(127 + 60 * waves, 0, 255).astype(np.uint8)


def test_luminance_is_what_pillow_calls_grey() -> None:
    colour = np.random.default_rng(0).integers(0, 256, (20, 3, 7, 5), dtype=np.uint8)
    theirs = [np.asarray(Image.fromarray(image.transpose(1, 2, 0)).convert("L")) for image in colour]
    ours = converted(colour, (1, 7, 5))
    assert ours.shape == (20, 1, 7, 5)
    # Pillow has 16-bit weights; both round to the nearest.
    assert np.abs(ours[:, 0].astype(int) - np.stack(theirs)).max() <= 1
    assert np.mean(ours[:, 0] == np.stack(theirs)) > 0.99
    exact = np.tensordot([0.299, 0.587, 0.114], colour.astype(np.float64), axes=(0, 1))
    assert np.abs(ours[:, 0] - exact).max() <= 0.5 + 1e-9
    level = np.repeat(np.arange(256, dtype=np.uint8)[:, None, None, None], 3, axis=1)
    np.testing.assert_array_equal(converted(level, (1, 1, 1))[:, 0], level[:, 0])


def test_grey_is_repeated_and_comes_back() -> None:
    grey = images((4, 1, 6, 6))
    colour = converted(grey, (3, 6, 6))
    for channel in range(3):
        np.testing.assert_array_equal(colour[:, channel], grey[:, 0])
    np.testing.assert_array_equal(converted(colour, (1, 6, 6)), grey)


@pytest.mark.parametrize(("size", "wanted"), [((64, 64), (32, 32)), ((8, 12), (4, 4)), ((9, 6), (3, 3))])
def test_whole_reductions_are_block_means(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    found = np.random.default_rng(1).integers(0, 256, (5, 3, *size), dtype=np.uint8)
    high, wide = size[0] // wanted[0], size[1] // wanted[1]
    means = found.reshape(5, 3, wanted[0], high, wanted[1], wide).mean(axis=(3, 5))
    # Two passes, each of which rounds.
    assert np.abs(converted(found, (3, *wanted)) - means).max() <= 1.01


@pytest.mark.parametrize(("size", "wanted"), [((28, 28), (32, 32)), ((32, 32), (28, 28)), ((28, 28), (8, 8))])
def test_other_sizes_are_antialiased_bilinear_as_in_torch(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    import torch
    from torch.nn import functional

    found = np.random.default_rng(2).integers(0, 256, (6, 2, *size), dtype=np.uint8)
    whole = torch.tensor(found, dtype=torch.float64)
    theirs = functional.interpolate(whole, wanted, mode="bilinear", antialias=True, align_corners=False).numpy()
    assert np.abs(converted(found, (2, *wanted)) - theirs).max() <= 1.6


def test_a_fine_pattern_becomes_even_and_not_another_pattern() -> None:
    board = np.indices((64, 64)).sum(0) % 2 * 255
    for wanted in (32, 28, 21):
        small = converted(board[None, None].astype(np.uint8), (1, wanted, wanted))[0, 0, 2:-2, 2:-2]
        assert np.ptp(small.astype(int)) < 40
        assert abs(small.mean() - 127.5) < 2


def test_colour_and_size_together() -> None:
    found = images((3, 3, 64, 64))
    together = converted(found, (1, 28, 28))
    apart = converted(converted(found, (3, 28, 28)), (1, 28, 28))
    assert together.shape == (3, 1, 28, 28)
    assert np.abs(together.astype(int) - apart).max() <= 2
    grey = images((3, 1, 28, 28))
    np.testing.assert_array_equal(converted(grey, (3, 32, 32))[:, :1], converted(grey, (1, 32, 32)))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 20), st.sampled_from([(1, 1), (1, 3), (3, 1), (3, 3)]))
def test_images_depend_on_themselves_and_keep_their_range(h: int, w: int, wanted: int, channels: Any) -> None:
    found = np.random.default_rng(h * 31 + w).integers(0, 256, (3, channels[0], h, w), dtype=np.uint8)
    whole = converted(found, (channels[1], wanted, wanted))
    assert (whole.dtype, whole.shape) == (np.uint8, (3, channels[1], wanted, wanted))
    np.testing.assert_array_equal(converted(found[1:2], (channels[1], wanted, wanted)), whole[1:2])
    assert np.all(whole.max(axis=(1, 2, 3)) <= found.max(axis=(1, 2, 3)))
    assert np.all(whole.min(axis=(1, 2, 3)) >= found.min(axis=(1, 2, 3)))


def test_what_has_the_shape_is_not_touched() -> None:
    found = images((2, 3, 5, 4))
    assert converted(found, (3, 5, 4)) is found


def test_in_words() -> None:
    assert conversion("a", (3, 32, 32), (3, 32, 32)) == ""
    assert conversion("a", (3, 64, 64), (3, 32, 32)) == "resized to 32x32"
    assert conversion("a", (1, 28, 28), (3, 32, 32)) == "grey repeated to 3 channels, resized to 32x32"
    assert conversion("a", (3, 32, 32), (1, 32, 32)) == "colour made grey"


@pytest.mark.parametrize(("channels", "wanted"), [(3, 2), (4, 3), (2, 1)])
def test_channels_that_mean_nothing_to_each_other_are_refused(channels: int, wanted: int) -> None:
    with pytest.raises(UserError, match=f"data set a: images with {channels} channels cannot become .* {wanted} "):
        conversion("a", (channels, 4, 4), (wanted, 4, 4))
    with pytest.raises(UserError, match="cannot become"):
        converted(np.zeros((1, channels, 4, 4), np.uint8), (wanted, 4, 4))
