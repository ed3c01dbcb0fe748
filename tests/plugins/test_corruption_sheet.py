"""The picture of all corruptions, and the distances that are printed with it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from bpcbench_data import corruption_sheet
from bpcbench_data.corruptions import CORRUPTIONS, corrupted


def test_a_row_per_type_and_a_column_per_severity_after_the_clean_image():
    image = np.random.default_rng(0).integers(0, 256, (3, 32, 32), dtype=np.uint8)
    picture = np.array(Image.open(io.BytesIO(corruption_sheet.sheet(image))))
    for row, kind in enumerate(CORRUPTIONS):
        for column in range(6):
            top, left = 18 + row * 102, 130 + column * 102
            tile = picture[top : top + 96 : 3, left : left + 96 : 3].transpose(2, 0, 1)
            wanted = image if column == 0 else next(corrupted(image[None], kind, column))[0]
            np.testing.assert_array_equal(tile, wanted)


def test_distances_are_means_over_all_pixels():
    images = np.random.default_rng(0).integers(0, 256, (20, 1, 8, 8), dtype=np.uint8)
    found = corruption_sheet.distances(images)
    assert list(found) == list(CORRUPTIONS)
    blurred = next(corrupted(images, "gaussian_blur", 5)).astype(float)
    assert found["gaussian_blur"][4] == pytest.approx(np.abs(blurred - images).mean())
    table = corruption_sheet.table(found)
    assert f"{found['snow'][2]:.2f}" in table
    assert len(table.splitlines()) == 9


def test_the_command_writes_the_picture_and_prints_the_distances(tmp_path, capsys):
    output = tmp_path / "sheet.png"
    words = ["--data", str(tmp_path), "--dataset", "digits", "--examples", "30", "-o", str(output)]
    assert corruption_sheet.main(words) == 0
    assert Image.open(output).format == "PNG"
    printed = capsys.readouterr().out
    assert "30 clean digits test images" in printed
    assert "| motion_blur |" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dataset", "digts"], "unknown data set 'digts'; did you mean 'digits'"),
        (["--dataset", "digits", "--image", "360"], "the images 0 to 359"),
        (["--dataset", "cifar10"], "cifar10 needs"),
        (["--dataset", "digits", "-o", "nowhere/sheet.png"], "nowhere"),
    ],
)
def test_mistakes_are_said_in_one_line(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert corruption_sheet.main(["--data", str(tmp_path), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
