"""Figures: the records, their JSON, the SVG read again with an XML parser, and grids of images decoded again."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from bpcbench import figures, metrics
from bpcbench.figures import Bars, Curves, Figure, Matrix, Reliability, Series, draw, figure_from_json, figure_to_json
from bpcbench.figures.axes import Axis, number_text, spanning
from bpcbench.records import Array

NAN, INF = float("nan"), float("inf")
SVG = "{http://www.w3.org/2000/svg}"
ODD = r"a & b < $\no formula$ \x00 \"'"
"""A name that must be shown as it stands, but for a character that XML cannot hold."""


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


def test_names_stand_before_the_rows_of_their_classes() -> None:
    ids = np.array([0, 0, 7, 7])
    plain = decoded(figures.image_grid(flat(4), ids))
    named = decoded(figures.image_grid(flat(4), ids, names={0: "ant"}))
    margin = named.shape[1] - plain.shape[1]
    assert margin > 0
    np.testing.assert_array_equal(named[:, margin:], plain)
    dark = (named[:, :margin] < 128).any(axis=2)
    assert dark[2:34].any(), "the name of the first class"
    assert dark[36:68].any(), "the number of a class without a name"
    assert not dark[:, -2:].any(), "a gap before the images"
    wrapped = figures.image_grid(flat(2), np.array([0, 1]), names={0: "ant"})
    assert wrapped == figures.image_grid(flat(2), np.array([0, 1])), "a square has no rows to name"


def test_bytes_are_shown_as_they_are() -> None:
    image = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32)).astype(np.uint8)
    pixels = decoded(figures.image_grid(image))
    np.testing.assert_array_equal(pixels[2:34, 2:34], image[0].transpose(1, 2, 0))
    assert figures.image_grid(image) == figures.image_grid(image / 255.0)


def root(figure: Figure) -> ElementTree.Element:
    return ElementTree.fromstring(draw(figure))


def texts(figure: Figure) -> list[str]:
    return [element.text or "" for element in root(figure).iter(f"{SVG}text")]


def points(outline: str) -> list[list[tuple[float, float]]]:
    """Return the points of each line of a path that consists of straight lines between absolute places."""
    lines = [line.removesuffix("h0") for line in outline.split("M")[1:]]
    return [[(float(x), float(y)) for x, y in (pair.split() for pair in line.split("L"))] for line in lines]


def lines(figure: Curves) -> list[list[list[tuple[float, float]]]]:
    """Return the points of each series as they are drawn, in pieces where it has gaps, without the legend."""
    found = [element.get("d", "") for element in root(figure).iter(f"{SVG}path") if element.get("class") == "line"]
    return [points(outline) for outline in found if not re.search(r"h24", outline)]


def rectangles(figure: Figure, kind: str) -> list[dict[str, float]]:
    """Return place and size of the bars of a class, without the squares of the legend."""
    names = ("x", "y", "width", "height")
    found = [element for element in root(figure).iter(f"{SVG}rect") if element.get("class") == kind]
    placed = [{name: float(element.get(name, "nan")) for name in names} for element in found]
    return [each for each in placed if (each["width"], each["height"]) != (10, 10)]


def reliability(accuracy: list[float], confidence: list[float], count: list[int], title: str = "") -> Reliability:
    return Reliability(np.linspace(0, 1, len(count) + 1).tolist(), count, accuracy, confidence, title)


CURVES = Curves("t", "x", "y", {"a": Series((0, 1, 2), (0, 1, 2)), "b": Series((0, 1, 2), (2, 1, 0))})
EVERY: list[Figure] = [
    CURVES,
    Curves(ODD, ODD, ODD, {ODD: Series((0, 1, NAN), (1, INF, 2), (0, NAN, 1), (2, 2, 3))}, log_x=True, note=ODD),
    Curves("", "", "", {"nothing": Series((), ()), "nan": Series((NAN,), (NAN,))}, markers=False),
    Bars(ODD, ["a", ODD], {"one": (1, -2), ODD: (NAN, 0)}, ODD, ODD),
    Bars("", ["a"], {"": (0,)}),
    Matrix(ODD, ["a", ODD], ["x", "y", ODD], [(1, 2, NAN), (-1, 0, INF)], ODD, ODD, ODD),
    Matrix("", ["a"], ["b"], [(5,)]),
    reliability([NAN, 0.5], [NAN, 0.9], [0, 4], ODD),
]


@pytest.mark.parametrize("figure", EVERY, ids=lambda figure: type(figure).__name__)
def test_every_figure_is_a_complete_accessible_document(figure: Figure) -> None:
    drawn = root(figure)
    assert drawn.tag == f"{SVG}svg"
    assert drawn.get("role") == "img"
    title = drawn.find(f"{SVG}title")
    assert title is not None
    assert title.text
    assert drawn.get("aria-label", "").split() == title.text.split()
    assert drawn.get("viewBox") == f"0 0 {drawn.get('width')} {drawn.get('height')}"
    assert draw(figure) == draw(figure)
    coordinates = [v for element in drawn.iter() for n, v in element.attrib.items() if n in ("d", "x", "y", "height")]
    assert not any(re.search("nan|inf", value) for value in coordinates)
    assert not any("id" in element.attrib for element in drawn.iter()), "ids would clash on a page of many figures"


@pytest.mark.parametrize("figure", EVERY, ids=lambda figure: type(figure).__name__)
def test_everything_lies_on_the_paper(figure: Figure) -> None:
    drawn = root(figure)
    wide, high = float(drawn.get("width", "")), float(drawn.get("height", ""))
    for element in drawn.iter():
        if "x" in element.attrib:
            assert 0 <= float(element.attrib["x"]) <= wide
            assert 0 <= float(element.attrib["y"]) <= high


@pytest.mark.parametrize("figure", EVERY, ids=lambda figure: type(figure).__name__)
def test_json_brings_every_figure_back(figure: Figure) -> None:
    encoded = figure_to_json(figure)
    # Sorting the keys must not change the order of series: a store sorts them.
    again = figure_from_json(json.loads(json.dumps(encoded, sort_keys=True, allow_nan=False)))
    assert repr(again) == repr(figure)  # NaN is not equal to itself
    assert draw(again) == draw(figure)


def test_json_keeps_six_digits_and_is_small() -> None:
    rng = np.random.default_rng(0)
    xs, ys = rng.normal(size=(2, 100)).tolist()
    encoded = figure_to_json(Curves("", "x", "y", {"a": Series(xs, ys)}))
    again = figure_from_json(encoded)
    assert isinstance(again, Curves)
    assert again.series["a"].x == pytest.approx(xs, rel=5e-6)
    assert len(json.dumps(encoded)) < 2500
    counted = figure_from_json(figure_to_json(reliability([0.5], [0.5], [123456789])))
    assert isinstance(counted, Reliability)
    assert counted.count == (123456789,)


def test_what_is_no_figure_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind of figure 'curvs'; did you mean 'curves'"):
        figure_from_json({**figure_to_json(CURVES), "kind": "curvs"})
    with pytest.raises(ValueError, match="unknown kind of figure 'None'"):
        figure_from_json({})
    with pytest.raises(ValueError, match="not a figure of kind 'bars': KeyError: 'labels'"):
        figure_from_json({"kind": "bars", "title": "", "series": []})
    with pytest.raises(TypeError, match=r"of bpcbench\.figures, not a bytes"):
        figure_to_json(b"\x89PNG")  # type: ignore[arg-type]


def test_records_are_checked_and_frozen() -> None:
    with pytest.raises(ValueError, match="at least one series"):
        Curves("", "x", "y", {})
    with pytest.raises(ValueError, match="2 x values and 1 y values"):
        Series((1, 2), (1,))
    with pytest.raises(ValueError, match="got 1 and 2 for 2 points"):
        Series((1, 2), (1, 2), (1,), (1, 2))
    with pytest.raises(ValueError, match="'a' has 1 values for 2 labels"):
        Bars("", ["x", "y"], {"a": (1,)})
    with pytest.raises(ValueError, match="at least one label and one series"):
        Bars("", [], {})
    with pytest.raises(ValueError, match=r"2 rows and 1 columns cannot have values of 2 rows of \[1, 2\]"):
        Matrix("", ["a", "b"], ["c"], [(1,), (1, 2)])
    with pytest.raises(ValueError, match="at least one example"):
        reliability([NAN], [NAN], [0])
    with pytest.raises(ValueError, match="2 bins have 3 edges"):
        Reliability((0, 1), (1, 2), (0.5, 0.5), (0.5, 0.5))
    with pytest.raises(dataclasses.FrozenInstanceError):
        CURVES.title = "other"  # type: ignore[misc]
    assert Series(np.arange(3), [1, 2, 3]) == Series((0.0, 1.0, 2.0), (1.0, 2.0, 3.0))  # type: ignore[arg-type]


def test_curves_go_through_their_points() -> None:
    ((rising,), (falling,)) = lines(CURVES)
    (x0, y0), (x1, y1), (x2, y2) = rising
    assert (x1 - x0, y0 - y1) == pytest.approx((x2 - x1, y1 - y2), abs=0.11)
    assert x0 < x1
    assert y0 > y1, "up is towards smaller y"
    assert [y for _, y in falling] == pytest.approx([y2, y1, y0])
    classes = [element.get("class") for element in root(CURVES).iter(f"{SVG}g")]
    assert classes == ["s0", "s0", "s1", "s1"], "a line and a line of the legend in each colour"


def test_markers_and_dashes_tell_series_apart() -> None:
    many = {str(index): Series((0, 1), (index, index)) for index in range(9)}

    def looks(markers: bool) -> list[tuple[str | None, ...]]:
        groups = list(root(Curves("", "x", "y", many, markers=markers)).iter(f"{SVG}g"))[::2]
        marks = [re.findall(r"[a-z].*", e.get("d", "")) for g in groups for e in g if e.get("class") == "mark"]
        dashes = [e.get("stroke-dasharray") for g in groups for e in g if e.get("class") == "line"]
        colours = [group.get("class") for group in groups]
        return list(zip(colours, dashes, map(str, marks or [""] * 9), strict=True))

    for markers in (True, False):
        assert len(set(looks(markers))) == 9
    assert len({shape.split("M")[0] for _, _, shape in looks(True)}) == 7


def test_a_logarithmic_axis_has_a_place_for_zero() -> None:
    ((line,),) = lines(Curves("", "x", "y", {"a": Series((1, 10, 100), (0, 1, 2))}, log_x=True))
    assert line[1][0] - line[0][0] == pytest.approx(line[2][0] - line[1][0], abs=0.11)
    ((line,),) = lines(Curves("", "x", "y", {"a": Series((-1, 0, 1, 10), (0, 1, 2, 3))}, log_x=True))
    across = np.diff([x for x, _ in line])
    assert across == pytest.approx([across[0]] * 3, abs=0.2)  # the linear part is as wide as a factor of ten
    shown = texts(Curves("", "x", "y", {"a": Series((0, 1, 1e6), (0, 1, 2))}, log_x=True))
    assert {"0", "10", "1,000"} <= set(shown) or {"0", "100", "10,000"} <= set(shown)
    ((linear,),) = lines(Curves("", "x", "y", {"a": Series((-2, -1, 0), (0, 1, 2))}, log_x=True))
    assert np.diff([x for x, _ in linear])[0] > 50, "no positive number: a linear axis"


def test_what_is_not_finite_leaves_a_gap() -> None:
    ((before, alone, after),) = lines(
        Curves("", "x", "y", {"a": Series(range(8), (1, 1, NAN, 1, INF, 1, 1, -INF))}, markers=False)
    )
    assert (len(before), len(alone), len(after)) == (2, 1, 2)
    drawn = draw(Curves("", "x", "y", {"a": Series((0, 1, 2), (NAN, 1, NAN))}, markers=False))
    assert "h0" in drawn, "a point between gaps is a dot"


def test_a_band_encloses_its_line() -> None:
    figure = Curves("", "x", "y", {"a": Series((0, 1), (1, 2), (0, 1), (2, 3))})
    (band,) = [e.get("d", "") for e in root(figure).iter(f"{SVG}path") if e.get("class") == "band"]
    (((_, y0), (_, y1)),) = lines(figure)[0]
    above0, above1, below1, below0 = (y for _, y in points(band.removesuffix("z"))[0])
    assert y0 - above0 == pytest.approx(below0 - y0, abs=0.11)
    assert above1 < y1 < below1


def test_texts_are_shown_as_they_stand() -> None:
    shown = texts(Curves(ODD, ODD, ODD, {ODD: Series((0, 1), (1, 0))}))
    assert shown.count(ODD.replace("\x00", "\ufffd")) == 4
    long = Curves("", "x", "y", {"m" * 100: Series((0, 1), (1, 0))})
    (cut,) = [text for text in texts(long) if text.startswith("mm")]
    assert cut.endswith("…")
    assert len(cut) < 40


def test_a_reliability_diagram_shows_both_gaps() -> None:
    over = reliability([NAN, 0.5], [NAN, 0.9], [0, 4])
    (bar,), (gap,) = rectangles(over, "mark"), rectangles(over, "over")
    assert rectangles(over, "under") == []
    assert gap["height"] / bar["height"] == pytest.approx(0.4 / 0.5, abs=0.01)
    assert gap["y"] + gap["height"] == pytest.approx(bar["y"], abs=0.11), "the gap stands on the accuracy"
    under = reliability([NAN, 0.9], [NAN, 0.6], [0, 4])
    (bar,), (gap,) = rectangles(under, "mark"), rectangles(under, "under")
    assert rectangles(under, "over") == []
    assert gap["y"] == bar["y"], "the gap hangs from the accuracy"
    assert gap["height"] / bar["height"] == pytest.approx(0.3 / 0.9, abs=0.01)
    exact = reliability([NAN, 0.8], [NAN, 0.8], [0, 4])
    assert rectangles(exact, "over") == rectangles(exact, "under") == []
    assert "overconfident by" in texts(over)
    assert "overconfident by" not in texts(exact)


def test_a_reliability_diagram_shows_the_shares_and_the_error() -> None:
    figure = reliability([0.3, 0.7], [0.3, 0.8], [10, 30])
    low, high = rectangles(figure, "share")
    assert low["height"] / high["height"] == pytest.approx(1 / 3, abs=0.01)
    assert low["width"] == high["width"]
    assert "ECE = 0.0750" in texts(figure)


def test_the_error_of_real_predictions_is_that_of_the_metric() -> None:
    log_probs = np.log(np.random.default_rng(0).dirichlet(np.ones(5), 200))
    labels = np.arange(200) % 5
    bars = {name: array.tolist() for name, array in metrics.reliability(log_probs, labels).items()}
    assert Reliability(**bars).ece == pytest.approx(metrics.ece(log_probs, labels), abs=1e-12)


def test_bars_start_at_zero() -> None:
    figure = Bars("", ["a", "b"], {"one": (2, -1), "two": (NAN, 4)}, "value")
    up, down, largest = rectangles(figure, "mark")
    assert up["width"] == pytest.approx(2 * down["width"], abs=0.11)
    assert largest["width"] == pytest.approx(2 * up["width"], abs=0.11)
    assert up["x"] == largest["x"] == pytest.approx(down["x"] + down["width"], abs=0.11)
    assert {"a", "b", "one", "two", "value"} <= set(texts(figure))


def test_a_matrix_is_darker_where_it_is_larger() -> None:
    figure = Matrix("", ["a", "b"], ["c", "d"], [(1, 2), (NAN, 3)])
    cells = [element for element in root(figure).iter(f"{SVG}rect") if element.get("class") == "mark"]
    assert [cell.get("fill-opacity") for cell in cells] == ["0.00", "0.50", "1.00"]
    assert {"a", "b", "c", "d", "1", "2", "3"} == set(texts(figure))
    large = Matrix("", [str(i) for i in range(100)], [str(i) for i in range(100)], [range(100)] * 100)
    assert len(texts(large)) < 100, "labels are left out where there is no room"


@pytest.mark.parametrize(
    ("axis", "shown"),
    [
        (Axis(0, 1), ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (Axis(-3, 7), ["−2", "0", "2", "4", "6"]),
        (Axis(0.101, 0.104), ["0.1010", "0.1015", "0.1020", "0.1025", "0.1030", "0.1035", "0.1040"]),
        (Axis(0, 5e7), ["0", "10⁷", "2×10⁷", "3×10⁷", "4×10⁷", "5×10⁷"]),
        (Axis(0, 30000), ["0", "5,000", "10,000", "15,000", "20,000", "25,000", "30,000"]),
        (Axis(1, 100, 1), ["1", "2", "5", "10", "20", "50", "100"]),
        (Axis(1, 1e4, 1), ["1", "10", "100", "1,000", "10,000"]),
        (Axis(0, 1e4, 1), ["0", "1", "10", "100", "1,000", "10,000"]),
    ],
)
def test_ticks_are_round_numbers(axis: Axis, shown: list[str]) -> None:
    ticks = axis.ticks()
    assert [text for _, text in ticks] == shown
    assert all(-1e-9 <= axis.at(value) <= 1 + 1e-9 for value, _ in ticks)


@given(st.lists(st.floats(-1e12, 1e12, allow_subnormal=False), max_size=6), st.booleans())
def test_every_axis_has_room_for_its_values(values: list[float], logarithmic: bool) -> None:
    values = [value for value in values if value == 0 or abs(value) > 1e-12]
    axis = spanning([*values, NAN], 0.05, logarithmic)
    assert axis.low < axis.high
    assert all(-1e-9 <= axis.at(value) <= 1 + 1e-9 for value in values)
    ordered = [axis.at(value) for value in sorted(values)]
    assert ordered == sorted(ordered)
    assert axis.low >= 0 or min(values, default=0) < 0
    ticks = axis.ticks()
    assert len(ticks) <= 30
    assert all(math.isfinite(value) for value, _ in ticks)


@pytest.mark.parametrize("logarithmic", [False, True])
def test_numbers_that_differ_by_rounding_alone_have_an_axis(logarithmic: bool) -> None:
    values = [0.01, 0.010000000000000002]
    axis = spanning(values, 0.06, logarithmic)
    assert [axis.at(value) for value in values] == pytest.approx([0.5, 0.5], abs=0.3)
    assert axis.ticks()


def test_numbers_are_written_briefly() -> None:
    found = [number_text(value) for value in (0, 0.25, -3, 20000, 2.5e6, 1e-7, -1e9)]
    assert found == ["0", "0.25", "−3", "20,000", "2.5×10⁶", "10⁻⁷", "−10⁹"]


def test_drawing_needs_neither_matplotlib_nor_pillow() -> None:
    program = """
import sys
from bpcbench import figures
figures.draw(figures.Curves("", "x", "y", {"a": figures.Series((1, 2), (1, 2))}))
assert not {"matplotlib", "PIL"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
