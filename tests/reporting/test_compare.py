"""Two invocations side by side, through the command line and as a page."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace
from pathlib import Path

import gallery
import pytest

from bpcbench import cli
from bpcbench.reporting.compare import Shift, shifts
from bpcbench.reporting.rows import Row

SUITE = """
name: pair
protocol: 1
datasets: [dots]
ipc: [1]
methods: [pick, everything]
preprocessing: scale
inferences: [centroid]
networks: [line]
evaluators: [classification]
metrics: [acc, nll]
seeds: {distil: 3, evaluate: 2}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a suite, and the same with another rate, fewer seeds and one method more."""
    place = tmp_path_factory.mktemp("compare")
    with gallery.plugins():
        assert gallery.session(place, text=SUITE).run().exit_code == 0
        overrides = ("methods.pick.rate=0.4", "seeds.distil=2", "methods.other={plugin: pick}")
        assert gallery.session(place, *overrides, text=SUITE).run().exit_code == 0
    return place


def digests(folder: Path) -> tuple[str, str]:
    """Return the digests of the first and the second invocation."""
    found = sorted(
        (folder / "store" / "suites" / "pair").iterdir(), key=lambda path: sorted(path.glob("runs/*"))[0].name
    )
    first, second = (path.name for path in found)
    return first, second


def words(folder: Path, *more: str) -> list[str]:
    first, second = digests(folder)
    return ["compare", f"pair:{first}", f"pair:{second[:6]}", "--out", str(folder / "store"), *more]


def test_options_and_numbers_that_changed_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words(folder)) == 0
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert ["seeds.distil", "3", "2"] in lines
    assert ["method", "pick:", "rate", "0.1", "0.4"] in lines
    assert "Versions" not in text
    assert "Only in B: dots ipc 1 other / centroid / line." in text
    assert "2 of 4 numbers that both have are the same in both, and not listed." in text
    assert len([line for line in lines if line[:3] == ["dots", "1", "pick"]]) == 2
    assert not [line for line in lines if line[:3] == ["dots", "1", "everything"]]


def test_differences_are_those_of_the_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words(folder, "--format", "csv", "--metrics", "nll")) == 0
    table = {line["method"]: line for line in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert table["everything"]["verdict"] == "same"
    assert table["everything"]["n"] == "1", "one coreset for all seeds"
    pick = table["pick"]
    assert pick["n"] == "2"
    difference = float(pick["B"]) - float(pick["A"])
    assert float(pick["difference"]) == pytest.approx(difference, abs=0.011)


def test_the_page_holds_the_same(folder: Path, tmp_path: Path) -> None:
    assert cli.main(words(folder, "--format", "html", "--output", str(tmp_path / "c.html"))) == 0
    page = (tmp_path / "c.html").read_text(encoding="utf-8")
    assert "<span>method pick: rate</span>" in page
    assert "<code>0.1</code></td><td><code>0.4</code>" in page
    assert page.count('<th scope="row">dots</th>') == 2


def test_stores_can_be_named(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = digests(folder)
    store = folder / "store"
    monkeypatch.chdir(folder)
    assert cli.main(["compare", f"{store}:pair:{first}", "store"]) == 0
    assert "seeds.distil" in capsys.readouterr().out
    assert cli.main(["compare", "pair:" + first, str(folder / "gallery.yaml"), "--out", str(store)]) == 0
    assert "seeds.distil" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        (("pair", "pair"), "are the same invocation"),
        (("pear", "pair"), "did you mean 'pair'?"),
        (("pair:ffff", "pair"), "there is no such digest"),
        (("pair:", "pair"), "there is no such digest"),
    ],
)
def test_wrong_names_are_refused(
    sides: tuple[str, str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", *sides, "--out", str(folder / "store")]) == 2
    assert message in capsys.readouterr().err


def test_an_absent_store_and_an_unknown_metric_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", "a", "b", "--out", str(tmp_path / "none")]) == 2
    assert "is not a store" in capsys.readouterr().err
    assert cli.main(words(folder, "--metrics", "ac")) == 2
    assert "did you mean 'acc'?" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def rows(values: dict[tuple[int, int], float], coreset: str = "c{}", higher: bool | None = True) -> list[Row]:
    """Return rows by seeds of distillation and evaluation; `coreset` makes the address of a seed."""
    return [
        Row("d", 1, "m", "i", "n", coreset.format(distil), distil, evaluate, "e", "acc", value, higher)
        for (distil, evaluate), value in values.items()
    ]


def only(before: list[Row], after: list[Row]) -> Shift:
    (shift,) = shifts(before, after, ("acc",))
    return shift


def test_only_evaluations_of_both_count_and_coresets_are_paired() -> None:
    before = rows({(0, 0): 1.0, (0, 1): 3.0, (1, 0): 5.0, (2, 0): 100.0})
    after = rows({(0, 0): 2.0, (0, 1): 6.0, (1, 0): 5.0, (1, 1): 900.0})
    shift = only(before, after)
    assert (shift.before, shift.after) == (3.5, 4.5)
    assert (shift.difference.mean, shift.difference.n) == (1.0, 2)
    # Pairs differ by 2 and 0: 1 ± 12.706 · 1.4142 / √2.
    assert shift.difference.high == pytest.approx(1 + 12.7062, abs=1e-3)
    assert shift.verdict == "not told apart"


def test_seeds_of_the_same_coresets_are_one_pair() -> None:
    shift = only(rows({(0, 0): 1.0, (1, 0): 2.0}, "same"), rows({(0, 0): 2.0, (1, 0): 4.0}, "same"))
    assert (shift.difference.n, shift.difference.mean) == (1, 1.5)


@pytest.mark.parametrize(("higher", "verdict"), [(True, "better"), (False, "worse"), (None, "larger")])
def test_a_verdict_follows_the_direction_of_the_metric(higher: bool | None, verdict: str) -> None:
    before = rows({(seed, 0): 1.0 for seed in range(4)}, higher=higher)
    after = [replace(row, value=2.0 + row.distil_seed / 100) for row in before]
    assert only(before, after).verdict == verdict


def test_nan_in_both_is_the_same() -> None:
    both = rows({(0, 0): math.nan, (1, 0): 1.0})
    assert only(both, both).verdict == "same"


def test_nothing_in_common_gives_no_shift() -> None:
    assert list(shifts(rows({(0, 0): 1.0}), rows({(1, 0): 1.0}), ("acc",))) == []
