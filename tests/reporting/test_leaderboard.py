"""Several sources in one page: what differs stays apart, what is the same is shown once."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import gallery
import numpy as np
import pytest

import bpcbench
from bpcbench import cli
from bpcbench.reporting.leaderboard import Leaderboard, Source, leaderboard
from bpcbench.reporting.page import leaderboard_page
from bpcbench.reporting.rows import Row
from bpcbench.reporting.view import View
from bpcbench.store.invocations import invocations
from bpcbench.store.store import Store

SUITE = """
name: board
protocol: 1
datasets: [spots]
ipc: [1]
methods:
  pick:
  fade: {steps: 3}
preprocessing: scale
inferences: [centroid]
networks: [line]
evaluators: [classification]
metrics: [acc, nll]
seeds: {distil: 2, evaluate: 1}
"""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores by name: `same` is what `one` is, `more` has other seeds too, `other` other options."""
    folder = tmp_path_factory.mktemp("board")
    runs = {
        "one": (),
        "more": ("seeds.distil=4", "methods=[pick]"),
        "other": ("methods.fade.steps=4", f"methods.{json.dumps('pick')[1:-1]}={{plugin: pick}}"),
        "fewer": ("examples=10",),
    }
    with gallery.plugins():
        for name, overrides in runs.items():
            (folder / f"run-{name}").mkdir()
            made = gallery.session(folder / f"run-{name}", *overrides, text=SUITE)
            assert made.run().exit_code == 0
            (folder / f"run-{name}" / "store").rename(folder / name)
    shutil.copytree(folder / "one", folder / "same")
    return folder


def source(stores: Path, name: str) -> Source:
    store = Store.open(stores / name, create=False)
    return Source(name, View(store, invocations(store)[0]))


def board(stores: Path, *names: str) -> Leaderboard:
    return leaderboard([source(stores, name) for name in names])


def lines(found: Leaderboard) -> list[tuple[str, str, int]]:
    """Return method, sources and n of every line of every block."""
    return [
        (block.entries[line.method].group.method, block.entries[line.method].origin, line.cells[0].summary.n)
        for block in found.blocks
        for line in block.table.lines
        if line.cells[0].summary
    ]


def test_the_same_results_are_shown_once(stores: Path) -> None:
    assert sorted(lines(board(stores, "one", "same"))) == [("fade", "one, same", 2), ("pick", "one, same", 2)]


def test_seeds_of_one_configuration_are_joined(stores: Path) -> None:
    found = board(stores, "one", "more")
    assert sorted(lines(found)) == [("fade", "one", 2), ("pick", "one, more", 4)]
    (block,) = found.blocks
    (pick,) = [line for line in block.table.lines if block.entries[line.method].group.method == "pick"]
    by_seed = {row.distil_seed: row.value for row in source(stores, "more").view.rows() if row.metric == "acc"}
    assert pick.cells[0].summary
    assert pick.cells[0].summary.mean == pytest.approx(np.mean(list(by_seed.values())))


def test_other_options_under_one_label_stay_apart(stores: Path) -> None:
    found = board(stores, "one", "other")
    assert sorted(lines(found)) == [("fade", "one", 2), ("fade", "other", 2), ("pick", "one, other", 2)]
    page = leaderboard_page(found)
    assert "(2 configurations have this label)" in page
    assert "steps=3" in page
    assert "steps=4" in page


def test_other_conditions_have_a_table_of_their_own(stores: Path) -> None:
    found = board(stores, "one", "fewer")
    assert [block.title for block in found.blocks] == [
        "spots (all examples), 1 per class",
        "spots (examples 10), 1 per class",
    ]
    assert any("under different conditions" in note for note in found.notes)


def test_other_data_under_one_name_have_a_table_of_their_own(stores: Path, tmp_path: Path) -> None:
    shutil.copytree(stores / "one", tmp_path / "forged")
    (file,) = (tmp_path / "forged").glob("suites/*/*/suite.json")
    head = json.loads(file.read_text())
    head["datasets"][0]["fingerprint"] = "anotherX" + head["datasets"][0]["fingerprint"]
    file.write_text(json.dumps(head))
    found = leaderboard([source(stores, "one"), source(tmp_path, "forged")])
    assert len(found.blocks) == 2
    assert {len(block.entries) for block in found.blocks} == {2}
    assert "(data anotherX)" in found.blocks[1].title
    assert any("is not the same data everywhere" in note for note in found.notes)


class Elsewhere(View):
    """The same results from a machine that computes a little differently."""

    def rows(self, step: int | None = None) -> list[Row]:
        return [dataclasses.replace(row, value=row.value + 0.01) for row in super().rows(step)]


def test_sources_that_disagree_about_a_number_are_not_averaged(stores: Path) -> None:
    one, same = source(stores, "one"), source(stores, "same")
    other = Source("elsewhere", Elsewhere(same.view.store, same.view.invocation))
    found = leaderboard([one, other])
    assert sorted(lines(found)) == [(method, name, 2) for method in ("fade", "pick") for name in ("elsewhere", "one")]
    assert any("one and elsewhere disagree about spots ipc 1 pick" in note for note in found.notes)


def test_evaluators_of_other_options_have_columns_of_their_own(stores: Path, tmp_path: Path) -> None:
    shutil.copytree(stores / "one", tmp_path / "bins")
    (file,) = (tmp_path / "bins").glob("suites/*/*/suite.json")
    head = json.loads(file.read_text())
    head["document"]["evaluators"] = {"classification": {"bins": 7}}
    file.write_text(json.dumps(head))
    found = leaderboard([source(stores, "one"), source(tmp_path, "bins")])
    (group,) = found.blocks[0].table.groups
    assert {column.evaluator for column in group.columns} == {"classification", "classification of bins"}


def test_lines_are_sorted_by_the_first_metric(stores: Path) -> None:
    for block in board(stores, "one", "other").blocks:
        means = [line.cells[0].summary.mean for line in block.table.lines if line.cells[0].summary]
        assert means == sorted(means, reverse=True)


def test_the_command_writes_one_file_and_names_mistakes(
    stores: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # no results/ here: a name that is no store is looked for there
    output = tmp_path / "board.html"
    named = [f"lab <b>={stores / 'one'}", f"{stores / 'other'}:board"]
    assert cli.main(["leaderboard", *named, "--title", "Us <i>", "--output", str(output)]) == 0
    page = output.read_text()
    assert "Us &lt;i&gt;" in page
    assert "lab &lt;b&gt;" in page
    assert "<b>=" not in page
    assert page.count("<script") == 1
    assert not re.search(r"(src|href)=\"(?!#|data:)", page)
    for wrong, words in (
        ([str(stores / "one"), str(stores / "one")], "are the same invocation"),
        ([f"x={stores / 'one'}", f"x={stores / 'same'}"], "two sources are called 'x'"),
        ([str(stores / "nowhere")], "is not a store"),
        ([str(stores / "one"), "--metrics", "accuracy"], "did you mean 'acc'"),
    ):
        assert cli.main(["leaderboard", *wrong]) == 2
        assert words in capsys.readouterr().err
    assert bpcbench.__version__ in page
