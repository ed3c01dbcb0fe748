"""`bpcbench figure`: the panels are the stored images, from manifest and store alone."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bpcbench import Session, cli
from bpcbench.registry.discovery import Registry
from bpcbench.running.seeding import derive
from bpcbench.sampling import per_class

SUITE = """
name: shown
datasets: [digits]
ipc: [2]
methods:
  random:
  vbpc: {steps: 2, batch: 16, pool: 1, lr: 0.5, network: {plugin: conv-bn, width: 2}, augmentation: none}
inferences: {network: {steps: 1}}
networks: {conv-bn: {width: 2}}
seeds: 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("figure")
    (place / "shown.yaml").write_text(SUITE)
    session = Session(str(place / "shown.yaml"), out=place / "out", inline=True, track=False, quiet=True)
    assert session.run().exit_code == 0
    return place


def words(folder: Path, *more: str) -> list[str]:
    return ["figure", str(folder / "shown.yaml"), "--out", str(folder / "out"), *more]


def tiles(png: bytes) -> np.ndarray:
    """Return the images of a grid of ten rows of two 8x8 digits, each enlarged four times, with gaps of two."""
    grid = np.asarray(Image.open(io.BytesIO(png)))[2:, 2:, 0]
    places = [(34 * row, 34 * column) for row in range(10) for column in (0, 1)]
    return np.stack([grid[down : down + 32 : 4, right : right + 32 : 4] for down, right in places])


def test_panels_are_the_images_before_and_after(
    folder: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    target = folder / "panels"
    assert cli.main(words(folder, "--output", str(target))) == 0
    printed = capsys.readouterr()
    names = {"digits-ipc2-random-after.png", "digits-ipc2-vbpc-before.png", "digits-ipc2-vbpc-after.png"}
    assert {path.name for path in target.iterdir()} == names
    assert {Path(line).name for line in printed.out.splitlines()} == names
    assert "random kept no start" in printed.err
    read = {name: tiles((target / name).read_bytes()) for name in names}
    train = registry.get("dataset", "digits").cls().load(folder, "train")
    drawn = train.images[per_class(train.labels, 2, derive("distil", 0))]
    np.testing.assert_array_equal(read["digits-ipc2-random-after.png"], drawn[:, 0])
    np.testing.assert_array_equal(read["digits-ipc2-vbpc-before.png"], drawn[:, 0])
    assert np.abs(read["digits-ipc2-vbpc-after.png"].astype(int) - drawn[:, 0]).max() > 10


def test_what_is_not_there_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words(folder, "--seed", "3", "--output", str(folder / "none"))) == 2
    assert "no pictures of seed 3 of shown" in capsys.readouterr().err
    assert cli.main(words(folder, "--output", str(folder / "shown.yaml"))) == 2
    assert "is a file" in capsys.readouterr().err
    assert not (folder / "none").exists()
