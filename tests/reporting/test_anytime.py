"""Anytime curves and paired differences, through the command line, on real digits."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from bpcbench import Session, cli
from bpcbench.reporting.anytime import kept_snapshots, pictures, points, progress
from bpcbench.reporting.pairs import pairs
from bpcbench.reporting.plain import plain
from bpcbench.reporting.rows import Row
from bpcbench.reporting.view import View
from bpcbench.running.run import Result

SUITE = """
name: curves
protocol: 1
datasets: [digits]
ipc: [1]
methods:
  random:
  vbpc: {steps: 20, batch: 64, network: {plugin: conv-bn, width: 8}, augmentation: none, label_scale: 8, lr: 0.05,
         pool: 2, updates: 4}
inferences:
  vi: {steps: 2, augmentation: none}
networks:
  conv-bn: {width: 8}
metrics: [acc, nll]
seeds: {distil: 2, evaluate: 2}
threads: 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a suite and a store in which its snapshots were evaluated."""
    place = tmp_path_factory.mktemp("anytime")
    (place / "curves.yaml").write_text(SUITE)
    _viewed(place)
    return place


def _viewed(folder: Path) -> tuple[View, Result]:
    session = Session(str(folder / "curves.yaml"), out=folder / "out", inline=True, track=False, quiet=True)
    view, result = session.anytime((0, 5, 20))
    assert view is not None
    return view, result


def _words(folder: Path, *more: str) -> list[str]:
    return ["anytime", str(folder / "curves.yaml"), "--out", str(folder / "out"), "--steps", "0,5,20", "--quiet", *more]


def test_a_curve_goes_from_the_start_to_the_end(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(_words(folder, "--format", "csv")) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [line["step"] for line in lines] == ["0", "5", "20", "end"]
    assert {line["method"] for line in lines} == {"vbpc"}, "random keeps no snapshots"
    seconds = [float(line["CPU s"]) for line in lines]
    assert seconds == sorted(seconds)
    assert seconds[-1] > 0


def test_the_last_snapshot_is_the_last_iterate(folder: Path) -> None:
    view, _ = _viewed(folder)
    found = points(view.manifest, view.store, ("acc", "nll"))
    by_step = {point.step: point.metrics for point in found}
    assert by_step[20] == by_step[None]
    assert by_step[0] != by_step[None]


def test_the_start_is_that_of_random_under_the_same_labels(folder: Path) -> None:
    """At step 0 VBPC has the images that `random` has: only the scale of the labels differs."""
    view, _ = _viewed(folder)
    store = view.store
    cells = [cell for cell in view.manifest.cells if cell.distil_seed == 1]
    start = next(cell.coresets[0] for cell in cells if cell.group.method == "vbpc" and cell.step == 0)
    other = next(cell.coresets[0] for cell in cells if cell.group.method == "random")
    np.testing.assert_array_equal(store.read(start).arrays["images"], store.read(other).arrays["images"])


def test_evaluating_again_runs_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, result = _viewed(folder)
    assert result.counts.get("done", 0) == 0


def test_pictures_and_gains_are_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(_words(folder, "--pictures", str(folder / "svg"))) == 0
    out = capsys.readouterr().out
    assert "End against start" in out
    assert {path.name for path in (folder / "svg").iterdir()} == {"digits-ipc1-acc.svg", "digits-ipc1-nll.svg"}
    drawn = (folder / "svg" / "digits-ipc1-acc.svg").read_text(encoding="utf-8")
    assert all(words in drawn for words in ("<svg", "vbpc / vi", "acc %", "CPU seconds", "Bands: ±"))


def test_figures_have_the_numbers_of_the_table(folder: Path) -> None:
    view, _ = _viewed(folder)
    found = points(view.manifest, view.store, ("acc", "nll"))
    drawn = pictures(found, ("acc", "nll"))
    for metric, scale in (("acc", 100), ("nll", 1)):
        curves = drawn[f"digits-ipc1-{metric}"]
        line = curves.series["vbpc / vi"]
        assert line.x == tuple(point.cpu_seconds for point in found)
        assert line.y == pytest.approx([scale * point.metrics[metric].mean for point in found])
        stds = [scale * (point.metrics[metric].std or 0) for point in found]
        assert np.subtract(line.high, line.low) == pytest.approx(2 * np.array(stds))


def test_gains_are_differences_of_the_points(folder: Path) -> None:
    view, _ = _viewed(folder)
    found = {point.step: point.metrics["nll"].mean for point in points(view.manifest, view.store, ("nll",))}
    (gain,) = progress(view.manifest, view.store, ("nll",))
    assert gain.difference.mean == pytest.approx(found[None] - found[0])
    assert gain.difference.n == 2


def test_kept_steps_can_be_chosen(folder: Path) -> None:
    view, _ = _viewed(folder)
    store = view.store
    key = next(cell.coresets[0].key for cell in view.manifest.cells if cell.group.method == "vbpc")
    assert kept_snapshots(store)(key) == [0, 1, 2, 5, 10, 20]
    assert kept_snapshots(store, {5, 7})(key) == [5]
    assert kept_snapshots(store)("0" * 32) == []


def test_report_against_a_method(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "report",
        str(folder / "curves.yaml"),
        "--out",
        str(folder / "out"),
        "--against",
        "random",
        "--format",
        "csv",
    ]
    assert cli.main(words) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(line["method"], line["metric"], line["n"]) for line in lines] == [
        ("vbpc", "acc", "2"),
        ("vbpc", "nll", "2"),
    ]


def test_report_against_an_unknown_method_says_which_there_are(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", str(folder / "curves.yaml"), "--out", str(folder / "out"), "--against", "randm"]
    assert cli.main(words) == 2
    assert "did you mean 'random'" in capsys.readouterr().err


def test_wrong_steps_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["anytime", str(folder / "curves.yaml"), "--steps", "0,ten"])
    assert left.value.code == 2
    assert "0,100,1000" in capsys.readouterr().err


def _row(method: str, seed: int, evaluation: int, value: float, coreset: str) -> Row:
    return Row(
        "digits", 1, method, "vi", "conv-bn", coreset, seed, evaluation, "classification", "acc", value, True, "percent"
    )


def test_pairs_average_evaluations_and_pair_seeds() -> None:
    rows = [
        *(_row("a", seed, e, 0.5 + 0.1 * seed + 0.01 * e, f"a{seed}") for seed in range(3) for e in range(2)),
        *(_row("b", seed, e, 0.4, f"b{seed}") for seed in range(3) for e in range(2)),
    ]
    (pair,) = pairs(rows, "b", ["acc"])
    assert pair.difference.n == 3
    assert pair.difference.mean == pytest.approx(0.205)
    assert pair.difference.low is not None
    assert pair.difference.low < 0.205
    assert pair.cells()[6] == "+20.5 points"


def test_two_deterministic_methods_are_one_pair() -> None:
    rows = [_row(method, seed, 0, value, method) for method, value in (("a", 0.6), ("b", 0.4)) for seed in range(3)]
    (pair,) = pairs(rows, "b", ["acc"])
    assert pair.difference.n == 1
    assert pair.difference.low is None


def test_plain_tables() -> None:
    lines = [("a", "1.5"), ("long", "+10.25")]
    assert plain(("name", "value"), lines) == "name   value\n────  ──────\na        1.5\nlong  +10.25\n"
    assert plain(("name", "value"), lines, "md").splitlines()[1] == "| --- | ---: |"
    assert plain(("name", "value"), lines, "csv") == "name,value\na,1.5\nlong,+10.25\n"
