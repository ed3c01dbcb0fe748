"""Figures, by decoding them again: sizes, and colours at places where they are known."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from bpcbench import figures, metrics
from bpcbench.records import Array

BLUE, PALE_ORANGE, PALE_BLUE = (0, 114, 178), (242, 180, 138), (166, 206, 227)
GREY, ORANGE = (136, 136, 136), (213, 94, 0)
MATHS = r"$\no formula$"
"""Names are shown as they stand; read as a formula, this one is an error."""


def decoded(png: bytes) -> Array:
    """Return (height, width, 3) bytes."""
    return np.asarray(Image.open(io.BytesIO(png), formats=["PNG"]).convert("RGB"))


def flat(n: int, side: int = 32, channels: int = 1) -> Array:
    """Return images of one grey each: image i has the byte 2 i."""
    return np.broadcast_to(np.arange(n)[:, None, None, None] * 2 / 255, (n, channels, side, side)).astype(np.float32)


def shown(png: bytes, side: int = 32) -> list[list[int | None]]:
    """Return which of the images of `flat` stands where, None where the white paper shows."""
    centres = decoded(png)[2 + side // 2 :: side + 2, 2 + side // 2 :: side + 2, 0]
    return [[None if value == 255 else int(value) // 2 for value in row] for row in centres]


def count(pixels: Array, colour: tuple[int, int, int]) -> int:
    return int((pixels == colour).all(axis=2).sum())


def test_classes_have_a_row_each() -> None:
    png = figures.image_grid(flat(7), np.array([5, 0, 0, 5, 2, 0, 5]))
    assert shown(png) == [[1, 2, 5], [4, None, None], [0, 3, 6]]
    assert decoded(png).shape == (3 * 34 + 2, 3 * 34 + 2, 3)


@pytest.mark.parametrize(
    ("class_ids", "limit", "expected"),
    [
        (np.arange(12) // 6, 5, [[0, 1], [6, 7]]),  # as many of each class as fit
        (np.arange(12) // 2, 4, [[0, 2], [4, 6]]),  # one of each of the first four classes, wrapped
        (np.arange(12) // 2, 1, [[0]]),
        (np.arange(5)[::-1], 100, [[4, 3, 2], [1, 0, None]]),  # in the order of the class numbers
        (None, 100, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]),
        (None, 3, [[0, 1], [2, None]]),
    ],
)
def test_the_limit_and_the_square(class_ids: Array | None, limit: int, expected: list[list[int | None]]) -> None:
    n = 12 if class_ids is None else len(class_ids)
    assert shown(figures.image_grid(flat(n), class_ids, limit)) == expected


def test_colours_are_clipped_for_display_only() -> None:
    image = np.zeros((1, 3, 32, 32), dtype=np.float32)
    image[0, :, 0, 0] = (1.0, 0.5, 0.0)
    image[0, :, 0, 1] = (7.0, -3.0, np.inf)
    image[0, :, 31, 31] = (0.2, np.nan, 0.2)
    before = image.copy()
    pixels = decoded(figures.image_grid(image))
    assert pixels.shape == (36, 36, 3)
    assert pixels[2, 2].tolist() == [255, 128, 0]
    assert pixels[2, 3].tolist() == [255, 0, 255]
    assert pixels[33, 33].tolist() == [255, 0, 255]  # NaN is magenta
    assert pixels[1, 1].tolist() == pixels[34, 34].tolist() == [255, 255, 255]
    np.testing.assert_array_equal(image, before)


@pytest.mark.parametrize(("side", "zoom"), [(8, 4), (28, 2), (31, 2), (32, 1), (64, 1)])
def test_small_images_are_enlarged_without_smoothing(side: int, zoom: int) -> None:
    image = np.random.default_rng(side).integers(0, 256, (1, 1, side, side)).astype(np.uint8)
    pixels = decoded(figures.image_grid(image / 255.0))[2:-2, 2:-2]
    assert pixels.shape[:2] == (side * zoom, side * zoom)
    np.testing.assert_array_equal(pixels[..., 0], np.kron(image[0, 0], np.ones((zoom, zoom), dtype=np.uint8)))


@pytest.mark.parametrize(
    ("images", "class_ids", "limit", "message"),
    [
        (np.zeros((4, 32, 32)), None, 9, "1 or 3"),
        (np.zeros((4, 2, 32, 32)), None, 9, "1 or 3"),
        (np.zeros((0, 1, 32, 32)), None, 9, "not be empty"),
        (np.zeros((4, 1, 32, 32)), np.zeros(3), 9, r"class_ids must have shape \(4,\)"),
        (np.zeros((4, 1, 32, 32)), None, 0, "limit must be at least 1"),
    ],
)
def test_what_is_no_grid_is_refused(images: Array, class_ids: Array | None, limit: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        figures.image_grid(images, class_ids, limit)


def bars(accuracy: list[float], confidence: list[float], number: list[int]) -> dict[str, Array]:
    return {
        "edges": np.linspace(0, 1, len(number) + 1),
        "accuracy": np.array(accuracy),
        "confidence": np.array(confidence),
        "count": np.array(number),
    }


def test_a_reliability_diagram_shows_both_gaps() -> None:
    nan = float("nan")
    over = decoded(figures.reliability_diagram(bars([nan, 0.5], [nan, 0.9], [0, 4])))
    assert over.shape == (780, 660, 3)
    assert count(over, PALE_BLUE) == 0
    # The bar is 0.5 high and the gap 0.4; the ECE box and the diagonal hide a part of each.
    assert count(over, PALE_ORANGE) / count(over, BLUE) == pytest.approx(0.4 / 0.5, abs=0.15)
    under = decoded(figures.reliability_diagram(bars([nan, 0.9], [nan, 0.6], [0, 4])))
    assert count(under, PALE_ORANGE) == 0
    assert count(under, PALE_BLUE) / count(under, BLUE) == pytest.approx(0.3 / 0.6, abs=0.15)
    exact = decoded(figures.reliability_diagram(bars([nan, 0.8], [nan, 0.8], [0, 4])))
    assert count(exact, PALE_BLUE) == count(exact, PALE_ORANGE) == 0


def test_a_reliability_diagram_shows_the_shares() -> None:
    pixels = decoded(figures.reliability_diagram(bars([0.3, 0.8], [0.3, 0.8], [10, 30])))
    columns = (pixels == GREY).all(axis=2).sum(axis=0)
    middle = columns.nonzero()[0].mean()
    heights = [columns[int(middle) - 100], columns[int(middle) + 100]]
    assert heights[0] / heights[1] == pytest.approx(1 / 3, abs=0.05)


def test_a_reliability_diagram_of_real_predictions() -> None:
    log_probs = np.log(np.random.default_rng(0).dirichlet(np.ones(5), 200))
    reliability = metrics.reliability(log_probs, np.arange(200) % 5)
    plain, titled = (figures.reliability_diagram(reliability, title) for title in ("", MATHS))
    assert decoded(plain).shape == decoded(titled).shape
    assert plain != titled


def test_an_empty_reliability_diagram_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one example"):
        figures.reliability_diagram(bars([np.nan], [np.nan], [0]))


def ink(pixels: Array, colour: tuple[int, int, int]) -> tuple[int, int]:
    """Return the first and the last column left of the legend that hold the colour."""
    held = (pixels == colour).all(axis=2)[:, :780].any(axis=0).nonzero()[0]
    return int(held[0]), int(held[-1])


def test_curves_are_drawn_in_different_colours() -> None:
    up = [0.0, 1.0, 2.0]
    pixels = decoded(figures.curves({"a": ([0, 1, 2], up), "b": ([0, 1, 2], up[::-1])}, "x", "y"))
    assert pixels.shape == (600, 960, 3)
    rising, falling = ((pixels == colour).all(axis=2)[:, :780] for colour in (BLUE, ORANGE))
    assert np.corrcoef(*rising.nonzero())[0, 1] < -0.9  # row numbers grow downwards
    assert np.corrcoef(*falling.nonzero())[0, 1] > 0.9


def test_a_logarithmic_axis_has_a_place_for_zero() -> None:
    straight = decoded(figures.curves({"a": ([1, 10, 100], [0, 1, 2])}, "x", "y", log_x=True))
    rows, columns = (straight == BLUE).all(axis=2)[:, :780].nonzero()
    assert abs(np.corrcoef(rows, columns)[0, 1]) > 0.99  # logarithms are evenly spaced
    with_zero = decoded(figures.curves({"a": ([0, 1, 10], [1, 1, 1]), "b": ([1, 10], [0, 0])}, "x", "y", log_x=True))
    assert ink(with_zero, BLUE)[0] < ink(with_zero, ORANGE)[0] - 100


def test_what_is_not_finite_leaves_a_gap() -> None:
    xs = [0, 1, 2, 3, 4]
    whole = decoded(figures.curves({"a": (xs, [1.0] * 5)}, "x", "y"))
    broken = decoded(figures.curves({"a": (xs, [1.0, 1.0, np.inf, 1.0, 1.0])}, "x", "y"))
    assert ink(broken, BLUE) == ink(whole, BLUE)
    middle = sum(ink(whole, BLUE)) // 2
    assert count(whole[:, middle - 40 : middle + 40], BLUE) > 0
    assert count(broken[:, middle - 40 : middle + 40], BLUE) == 0


def test_a_name_with_an_underscore_is_in_the_legend() -> None:
    plain, hidden = (decoded(figures.curves({name: ([0, 1], [1, 0])}, "x", "y")) for name in ("name", "_name"))
    legend = [count(pixels[:100, 800:], BLUE) for pixels in (plain, hidden)]
    assert legend[0] > 0
    assert legend[1] > 0


def test_names_are_not_formulas() -> None:
    assert decoded(figures.curves({MATHS: ([0, 1], [1, 0])}, MATHS, MATHS, MATHS)).shape == (600, 960, 3)


def test_what_is_no_curve_is_refused() -> None:
    with pytest.raises(ValueError, match="no curve"):
        figures.curves({}, "x", "y")
    with pytest.raises(ValueError, match="'a' has 2 x values and 1 y values"):
        figures.curves({"a": ([1, 2], [1])}, "x", "y")


def test_drawing_needs_no_pyplot_and_importing_no_matplotlib() -> None:
    program = """
import sys
from bpcbench import figures
assert not {"matplotlib", "PIL"} & set(sys.modules), "imported too early"
figures.curves({"a": ([1, 2], [1, 2])}, "x", "y")
assert "matplotlib.figure" in sys.modules
assert "matplotlib.pyplot" not in sys.modules, "pyplot was imported"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_same_picture_is_the_same_bytes() -> None:
    series = {"a": ([1.0, 2.0], [1.0, 2.0])}
    assert figures.curves(series, "x", "y") == figures.curves(series, "x", "y")
