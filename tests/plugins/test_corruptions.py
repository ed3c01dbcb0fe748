"""Each corruption against its published definition, written once more image by image with other means."""

from __future__ import annotations

import io
import math
import os
from pathlib import Path

import numpy as np
import pytest
import scipy.ndimage
import scipy.signal
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bpcbench_data.cifar import CIFAR10
from bpcbench_data.corruption_motion import motion_blur, motion_kernel, motion_offsets
from bpcbench_data.corruptions import (
    CORRUPTIONS,
    SEVERITIES,
    corrupted,
    disk,
    draws,
    mean_distance,
    snow_layer,
)

SHAPES = [(3, 32, 32), (1, 28, 28)]


def pictures(n: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Return images with structure at several scales, black and white areas among them."""
    noise = np.random.default_rng(seed).normal(size=(n, *shape))
    mixed = sum(scipy.ndimage.gaussian_filter(noise, (0, 0, s, s)) * s for s in (0.5, 2, 5))
    return np.clip(128 + 150 * mixed, 0, 255).astype(np.uint8)


def made(images: np.ndarray, kind: str, severity: int, seed: int = 0) -> np.ndarray:
    return np.concatenate(list(corrupted(images, kind, severity, seed)))


def assert_cut(found: np.ndarray, wanted: np.ndarray, slack: float = 2e-3) -> None:
    """Bytes are floats with their fractions cut off; a whole number may lie on either side of itself by rounding."""
    levels = 255 * np.clip(wanted, 0, 1)
    assert (found <= levels + slack).all()
    assert (levels < found.astype(int) + 1 + slack).all()


def assert_close(found: np.ndarray, wanted: np.ndarray, unequal: float = 0.01) -> None:
    """Equal but for one level in a small share of the places."""
    difference = np.abs(found.astype(int) - wanted)
    assert difference.max() <= 1
    assert (difference > 0).mean() <= unequal


def bytes_of(image: np.ndarray) -> np.ndarray:
    return np.uint8(np.clip(image, 0, 1) * 255)


@pytest.fixture(scope="module")
def real() -> np.ndarray:
    root = Path(os.environ.get("BPCBENCH_DATA", "."))
    if not (root / "cifar-10-batches-py").exists():
        pytest.skip("CIFAR-10 is not here")
    return np.array(CIFAR10().load(root, "test").images[:250])


def planes(images: np.ndarray):
    for row in range(len(images)):
        for channel in range(images.shape[1]):
            yield (row, channel), images[row, channel]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("severity", "sigma"), [(1, 0.4), (2, 0.6), (3, 0.7), (4, 0.8), (5, 1.0)])
def test_gaussian_blur(severity, sigma, shape):
    images = pictures(4, shape)
    found = made(images, "gaussian_blur", severity)
    reach = int(4 * sigma + 0.5)
    bell = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2 * sigma**2))
    kernel = np.outer(bell, bell) / bell.sum() ** 2
    for place, plane in planes(images):
        np.testing.assert_array_equal(
            found[place], bytes_of(scipy.ndimage.gaussian_filter(plane / 255.0, sigma, mode="nearest"))
        )
        wanted = scipy.signal.convolve2d(np.pad(plane / 255.0, reach, "edge"), kernel, "valid")
        assert_cut(found[place], wanted)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("severity", "quality"), [(1, 80), (2, 65), (3, 58), (4, 50), (5, 40)])
def test_jpeg_compression(severity, quality, shape):
    images = pictures(4, shape)
    for image, found in zip(images, made(images, "jpeg_compression", severity), strict=True):
        file = io.BytesIO()
        mode = "L" if shape[0] == 1 else "RGB"
        Image.frombytes(mode, shape[:0:-1], np.moveaxis(image, 0, -1).tobytes()).save(file, "JPEG", quality=quality)
        wanted = np.array(Image.open(io.BytesIO(file.getvalue())).convert("RGB"))
        np.testing.assert_array_equal(np.broadcast_to(found, (3, *shape[1:])), np.moveaxis(wanted, -1, 0))


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 70), st.integers(4, 70), st.sampled_from(list(enumerate([0.95, 0.9, 0.85, 0.75, 0.65], 1))))
def test_pixelate(height, width, chosen):
    severity, share = chosen
    image = np.random.default_rng(height * width).integers(0, 256, (1, 3, height, width), dtype=np.uint8)
    picture = Image.fromarray(image[0].transpose(1, 2, 0))
    # One side at a time: which of them comes first, and is rounded, has changed between versions of Pillow.
    picture = picture.resize((int(width * share), height), Image.Resampling.BOX)
    picture = picture.resize((int(width * share), int(height * share)), Image.Resampling.BOX)
    wanted = np.array(picture.resize((width, height), Image.Resampling.BOX)).transpose(2, 0, 1)
    np.testing.assert_array_equal(made(image, "pixelate", severity)[0], wanted)


@pytest.mark.parametrize(("severity", "side"), [(1, 30), (2, 28), (3, 27), (4, 24), (5, 20)])
def test_pixelate_cifar(severity, side):
    images = pictures(4, (3, 32, 32))
    for image, found in zip(images, made(images, "pixelate", severity), strict=True):
        small = Image.fromarray(image.transpose(1, 2, 0)).resize((side, side), Image.Resampling.BOX)
        wanted = np.array(small.resize((32, 32), Image.Resampling.BOX)).transpose(2, 0, 1)
        assert_close(found, wanted, 0.2)


def cut_zoom(plane: np.ndarray, factor: float) -> np.ndarray:
    """Enlarge the middle of a square and cut off what is too much, with SciPy in two dimensions."""
    side = len(plane)
    kept = math.ceil(side / factor)
    first = (side - kept) // 2
    large = scipy.ndimage.zoom(plane[first : first + kept, first : first + kept], factor, order=1)
    surplus = (len(large) - side) // 2
    return large[surplus : surplus + side, surplus : surplus + side]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("severity", "largest"), [(1, 1.06), (2, 1.11), (3, 1.16), (4, 1.21), (5, 1.26)])
def test_zoom_blur(severity, largest, shape):
    images = pictures(3, shape)
    found = made(images, "zoom_blur", severity)
    factors = np.arange(1, largest, 0.01)
    for place, plane in planes(images):
        scaled = (plane / 255.0).astype(np.float32)
        total = sum((cut_zoom(scaled, factor) for factor in factors), scaled)
        assert_cut(found[place], total / (len(factors) + 1))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_defocus_blur(severity, shape):
    radius, smoothing = [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)][severity - 1]
    down, right = np.mgrid[-8:9, -8:9]
    flat = (np.hypot(down, right) <= radius) * 1.0
    bell = np.exp(-(np.array([-1.0, 0.0, 1.0]) ** 2) / (2 * smoothing**2))
    kernel = scipy.signal.convolve2d(flat / flat.sum(), np.outer(bell, bell) / bell.sum() ** 2, "same")
    middle = (17 - len(disk(radius, smoothing))) // 2
    np.testing.assert_allclose(disk(radius, smoothing), kernel[middle : 17 - middle, middle : 17 - middle], atol=1e-6)
    images = pictures(3, shape)
    found = made(images, "defocus_blur", severity)
    for place, plane in planes(images):
        wanted = scipy.signal.convolve2d(np.pad(plane / 255.0, 8, "reflect"), kernel, "valid")
        assert_cut(found[place], wanted)


@pytest.mark.parametrize(("radius", "sigma"), [(6, 1), (6, 2), (9, 2.5), (14, 12)])
def test_the_weights_of_a_motion(radius, sigma):
    kernel = motion_kernel(radius, sigma)
    assert len(kernel) == 2 * radius + 1
    assert kernel.sum() == pytest.approx(1)
    assert (np.diff(kernel) < 0).all()
    assert kernel[3] / kernel[1] == pytest.approx(scipy.stats.norm.pdf(3, 0, sigma) / scipy.stats.norm.pdf(1, 0, sigma))


@given(st.floats(-180, 180), st.integers(1, 40))
def test_a_motion_goes_along_its_angle(angle, taps):
    down, right = (offset[:, 0] for offset in motion_offsets(taps, np.array([angle])))
    assert down[0] == right[0] == 0
    along = np.arange(taps)
    np.testing.assert_allclose(down, along * math.sin(math.radians(angle)), atol=0.5 + 1e-9)
    np.testing.assert_allclose(right, along * math.cos(math.radians(angle)), atol=0.5 + 1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_motion_blur_is_a_correlation_with_the_kernel_of_its_angle(shape):
    images, angles = pictures(6, shape), np.array([-45.0, 30.0, 0.0, -90.0, 30.0, 12.5])
    found = motion_blur(images, 6, 2, angles)
    weights = motion_kernel(6, 2)
    downs, rights = motion_offsets(13, angles)
    for place, plane in planes(images):
        kernel = np.zeros((27, 27))
        np.add.at(kernel, (13 + downs[:, place[0]], 13 + rights[:, place[0]]), weights)
        wanted = scipy.ndimage.correlate(plane.astype(float), kernel, mode="nearest")
        assert_close(found[place], np.floor(wanted + 0.5))


def test_a_motion_smears_a_point_along_a_line():
    point = np.zeros((1, 1, 33, 33), np.uint8)
    point[..., 16, 16] = 255
    level = motion_blur(point, 6, 3, np.array([0.0]))[0, 0]
    assert np.flatnonzero(level.sum(1)).tolist() == [16]
    seen = np.count_nonzero(255 * motion_kernel(6, 3) >= 0.5)
    assert np.flatnonzero(level.sum(0)).tolist() == list(range(17 - seen, 17))
    upright = motion_blur(point, 6, 3, np.array([-90.0]))[0, 0]
    np.testing.assert_array_equal(upright, level[:, ::-1].T)
    assert int(level.sum()) == pytest.approx(255, abs=13)


def test_every_image_has_its_own_angle_within_the_range():
    point = np.zeros((500, 1, 33, 33), np.uint8)
    point[..., 16, 16] = 255
    smeared = made(point, "motion_blur", 5).astype(float)
    rows, columns = np.mgrid[-16:17, -16:17]
    mass = smeared.sum((1, 2, 3))
    angles = np.degrees(np.arctan2(-(smeared * rows).sum((1, 2, 3)) / mass, -(smeared * columns).sum((1, 2, 3)) / mass))
    assert angles.min() > -50
    assert angles.max() < 50
    # Whole pixels know few angles; their mean and spread are those of the uniform distribution all the same.
    assert abs(angles.mean()) < 4 * 26 / math.sqrt(500)
    assert angles.std() == pytest.approx(90 / math.sqrt(12), rel=0.1)


WEATHER = [
    (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
    (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_snow_step_by_step(severity, shape):
    mean, std, enlarged, threshold, radius, sigma, kept = WEATHER[severity - 1]
    images = pictures(3, shape)
    random = draws(0, "snow", severity)
    noises = random.layers.normal(mean, std, (3, *shape[1:]))
    angles = random.angles.uniform(-135, -45, 3)
    for image, noise, angle, found in zip(images, noises, angles, made(images, "snow", severity), strict=True):
        layer = cut_zoom(noise, enlarged)
        layer[layer < threshold] = 0
        moved = motion_blur(bytes_of(layer)[None, None], radius, sigma, np.array([angle]))[0, 0] / 255.0
        scaled = np.moveaxis(image, 0, -1) / 255.0
        grey = (scaled @ [0.299, 0.587, 0.114])[..., None] if shape[0] == 3 else scaled
        whitened = kept * scaled + (1 - kept) * np.maximum(scaled, grey * 1.5 + 0.5)
        wanted = whitened + moved[..., None] + np.rot90(moved, 2)[..., None]
        assert_cut(np.moveaxis(found, 0, -1), wanted)


@pytest.mark.parametrize("severity", [1, 2])
def test_flakes_are_as_rare_as_the_tail_of_the_noise(severity):
    layer = snow_layer((200, 3, 32, 32), WEATHER[severity - 1][:4], draws(1, "snow", severity))
    mean, std, _, threshold = WEATHER[severity - 1][:4]
    share = scipy.stats.norm.sf(threshold, mean, std)
    assert (layer > 0).mean() == pytest.approx(share, abs=4 * math.sqrt(share / layer.size))
    assert layer[layer > 0].min() >= int(255 * threshold)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_snow_brightens_falls_downwards_and_lies_on_both_ends(severity):
    black = made(np.zeros((100, 3, 32, 32), np.uint8), "snow", severity).astype(int)
    np.testing.assert_array_equal(black, black[:, :, ::-1, ::-1])
    np.testing.assert_array_equal(black[:, 0], black[:, 1])
    ground = int(255 * 0.5 * (1 - WEATHER[severity - 1][6]))
    assert black.min() >= ground
    streaks = (black[:, 0] - black[:, 0].mean((1, 2), keepdims=True)).astype(float)
    downwards, sideways = (streaks[:, 1:] * streaks[:, :-1]).mean(), (streaks[..., 1:] * streaks[..., :-1]).mean()
    assert downwards > sideways
    images = pictures(50, (3, 32, 32))
    assert (made(images, "snow", severity).astype(int) - images).min() >= -1


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_images_depend_on_seed_and_place_only(kind):
    images = pictures(340, (3, 32, 32))  # more than one chunk
    whole = made(images, kind, 2)
    np.testing.assert_array_equal(whole, made(images, kind, 2))
    assert_close(made(images[:40], kind, 2), whole[:40])
    assert np.array_equal(whole, made(images, kind, 2, seed=1)) == (kind not in ("snow", "motion_blur"))
    assert not np.array_equal(whole, made(images, kind, 3))


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(list(CORRUPTIONS)),
    st.sampled_from(SEVERITIES),
    st.sampled_from([1, 3]),
    st.integers(4, 40),
    st.integers(4, 40),
)
def test_any_size_is_possible_and_the_clean_images_stay(kind, severity, channels, height, width):
    images = np.random.default_rng(0).integers(0, 256, (3, channels, height, width), dtype=np.uint8)
    before = images.copy()
    found = made(images, kind, severity)
    assert (found.shape, found.dtype) == (images.shape, np.uint8)
    np.testing.assert_array_equal(images, before)
    assert not np.shares_memory(found, images)


@pytest.mark.parametrize("kind", [kind for kind in CORRUPTIONS if kind != "snow"])
def test_a_flat_image_stays_flat(kind):
    flat = np.full((2, 3, 32, 32), 77, np.uint8)
    for severity in SEVERITIES:
        found = made(flat, kind, severity)
        assert np.ptp(found) <= 1
        assert abs(int(found.max()) - 77) <= 1


def test_distance_from_clean_grows_on_real_images(real):
    distances = {
        kind: [mean_distance(real, made(real, kind, severity)) for severity in SEVERITIES] for kind in CORRUPTIONS
    }
    for kind in ("gaussian_blur", "jpeg_compression", "pixelate", "zoom_blur", "snow", "defocus_blur"):
        assert (np.diff(distances[kind]) > 0).all(), (kind, distances[kind])
    # Its fourth severity differs from the third in weights that are next to nothing, and in the draws.
    assert distances["motion_blur"][0] < distances["motion_blur"][2] < distances["motion_blur"][4]
    assert all(0.5 < first < 60 for row in distances.values() for first in row)


def test_the_distance_by_hand():
    clean = np.array([[0, 250]], np.uint8)
    assert mean_distance(clean, np.array([[10, 240]], np.uint8)) == 10
    assert mean_distance(clean, clean) == 0


@pytest.mark.parametrize(
    ("images", "kind", "severity", "message"),
    [
        (np.zeros((1, 3, 8, 8), np.uint8), "snwo", 1, "unknown type of corruption 'snwo'; did you mean 'snow'"),
        (np.zeros((1, 3, 8, 8), np.uint8), "snow", 6, "unknown severity 6"),
        (np.zeros((1, 2, 8, 8), np.uint8), "snow", 1, "1 or 3"),
        (np.zeros((1, 3, 8, 8), np.float32), "snow", 1, "float32"),
    ],
)
def test_what_cannot_be_corrupted(images, kind, severity, message):
    with pytest.raises(ValueError, match=message):
        next(corrupted(images, kind, severity))
