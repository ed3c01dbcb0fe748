"""Reports of a real run, whole and incomplete, through the command line."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bpcbench import Session, cli
from bpcbench.reporting.view import View

SUITE = """
name: views
protocol: 1
datasets: [digits]
ipc: [1, 2]
methods: [random, kmeans, herding]
inferences:
  vi: {steps: 1, augmentation: none}
  network: {steps: 1}
networks:
  conv-bn: {width: 2}
evaluators: [classification]
metrics: [acc, nll]
seeds: {distil: 2, evaluate: 2}
threads: 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("views")
    (place / "views.yaml").write_text(SUITE)
    session = Session(str(place / "views.yaml"), out=place / "out", inline=True, track=False, quiet=True)
    assert session.run().exit_code == 0
    return place


@pytest.fixture
def report(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*words: str, out: Path | None = None, code: int = 0) -> str:
        assert cli.main(["report", str(folder / "views.yaml"), "--out", str(out or folder / "out"), *words]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return run


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder / "out", tmp_path / "out")
    return tmp_path / "out"


def view(out: Path) -> View:
    return Session("views", out=out).view()


def forget(out: Path, *, method: str, inference: str = "", seeds: tuple[int, int] | None = None) -> None:
    """Remove scores, so that their cells have no result."""
    opened = view(out)
    for cell in opened.manifest.cells:
        mine = cell.group.method == method and inference in ("", cell.group.inference)
        if mine and seeds in (None, (cell.distil_seed, cell.evaluate_seed)):
            for address in cell.scores.values():
                shutil.rmtree(opened.store.path(address), ignore_errors=True)


def test_lines_and_groups_stand_in_the_order_of_the_suite(folder: Path) -> None:
    table = view(folder / "out").table()
    assert [group.label for group in table.groups] == ["digits ipc 1", "digits ipc 2"]
    names = [(line.method, line.inference) for line in table.lines]
    assert names == [(m, i) for m in ("random", "kmeans", "herding") for i in ("vi", "network")]
    assert not any("Incomplete" in note for note in table.footnotes)


def test_coresets_of_equal_content_count_once(folder: Path) -> None:
    """At one image per class k-means has one answer: the mean, whatever its seed."""
    opened = view(folder / "out")
    cells = [cell for cell in opened.manifest.cells if (cell.group.method, cell.group.ipc) == ("kmeans", 1)]
    assert len({cell.coreset for cell in cells}) == 2
    assert len({row.coreset for row in opened.rows() if (row.method, row.ipc) == ("kmeans", 1)}) == 1
    lines = {line.method: line for line in opened.table().lines if line.inference == "vi"}
    counts = {name: [cell.summary.n for cell in line.cells if cell.summary] for name, line in lines.items()}
    assert counts == {"random": [2, 2, 2, 2], "kmeans": [1, 1, 2, 2], "herding": [1, 1, 1, 1]}
    assert all(cell.asked is None for line in lines.values() for cell in line.cells)


def test_lines_without_results_stay(copy: Path, report: Callable[..., str]) -> None:
    forget(copy, method="kmeans", inference="vi")
    table = view(copy).table()
    assert [(line.method, line.inference) for line in table.lines if line.missing] == [("kmeans", "vi")]
    text = " ".join(report(out=copy).split())
    assert "Incomplete: 8 of 48 evaluations have no result (8 not run yet). To complete: bpcbench run" in text
    assert "No result (—): 4 of 24 cells." in text


def test_missing_evaluations_do_not_move_the_other_seeds_into_the_spread(copy: Path) -> None:
    whole = {line.method: line for line in view(copy).table().lines if line.inference == "vi"}
    forget(copy, method="random", seeds=(0, 1))
    table = view(copy).table()
    assert {cell.seeds for line in table.lines for cell in line.cells} == {(0,)}
    note = "Means are over the evaluation seeds that all compared coresets have: 1 of 2 in digits ipc 1, digits ipc 2."
    assert note in table.footnotes
    rows = [row.value for row in view(copy).rows() if (row.method, row.inference, row.ipc) == ("herding", "vi", 1)
            and row.metric == "acc" and row.evaluate_seed == 0]  # fmt: skip
    (cell,) = (line.cells[0] for line in table.lines if (line.method, line.inference) == ("herding", "vi"))
    assert cell.summary is not None
    assert cell.summary.mean == rows[0]
    assert whole["herding"].cells[0].seeds == (0, 1)


def test_missing_coresets_show_in_n(copy: Path) -> None:
    for evaluate in range(2):
        forget(copy, method="random", inference="vi", seeds=(1, evaluate))
    cell = view(copy).table().lines[0].cells[0]
    assert (cell.count, cell.asked) == (1, 2)


def test_a_store_without_scores_says_so(copy: Path, report: Callable[..., str]) -> None:
    for method in ("random", "kmeans", "herding"):
        forget(copy, method=method)
    assert "has no results of this suite yet" in report(out=copy)
    assert "Incomplete: 48 of 48" in report(out=copy)


def test_differences_to_a_method_an_inference_and_a_network(report: Callable[..., str]) -> None:
    text = report("--against", "random")
    assert "Difference to random, paired, 95 % t-interval, n = 2" in text
    records = list(csv.DictReader(io.StringIO(report("--against-inference", "vi", "--format", "csv"))))
    assert {(record["method"], record["inference"]) for record in records} == {
        ("random", "network"),
        ("kmeans", "network"),
        ("herding", "network"),
    }
    assert {record["n"] for record in records if record["method"] == "random"} == {"2"}
    message = report("--against-network", "conv-bn", code=2)
    assert "nothing to compare with the network 'conv-bn': no result shares a coreset with it" in message


def test_a_difference_between_inferences_is_that_of_the_rows(folder: Path, report: Callable[..., str]) -> None:
    means: dict[str, list[float]] = {}
    for row in view(folder / "out").rows():
        if (row.method, row.ipc, row.metric) == ("random", 1, "nll"):
            means.setdefault(row.inference, []).append(row.value)
    document = json.loads(report("--against-inference", "vi", "--format", "json", "--metrics", "nll"))
    (cell,) = (c for c in document["cells"] if (c["method"], c["ipc"]) == ("random", 1))
    assert cell["mean"] == pytest.approx(sum(means["network"]) / 4 - sum(means["vi"]) / 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--metrics", "accuracy"], "unknown metric 'accuracy'; did you mean 'acc'? (allowed: acc,"),
        (["--metrics", "acc,NLL"], "unknown metric 'NLL'; did you mean 'nll'?"),
        (["--metrics", "briar"], "unknown metric 'briar'; did you mean 'brier'?"),
        (["--metrics", "xyz"], "unknown metric 'xyz' (allowed:"),
        (["--against", "randm"], "unknown method to compare with 'randm'; did you mean 'random'?"),
        (["--against-inference", "v"], "unknown inference to compare with 'v'"),
    ],
)
def test_wrong_words_are_refused(report: Callable[..., str], words: list[str], message: str) -> None:
    assert message in report(*words, code=2)


def test_spaces_between_metrics_are_no_part_of_them(report: Callable[..., str]) -> None:
    assert "brier ↓" in report("--metrics", "acc, brier")


def test_the_layout_of_papers_and_a_file(report: Callable[..., str], tmp_path: Path) -> None:
    lines = report("--layout", "paper").splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("digits")] == [["digits", "1"], ["digits", "2"]]
    assert all(
        f"{method} / {inference}" in lines[2] for method in ("random", "kmeans") for inference in ("vi", "network")
    )
    assert report("--layout", "paper", "--format", "latex", "--output", str(tmp_path / "table.tex")) == ""
    written = (tmp_path / "table.tex").read_text()
    assert written.endswith("\\end{table}\n")


def test_skipped_cells_are_explained(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    session = Session(
        str(folder / "views.yaml"),
        ["datasets=[mnist, digits]", "methods=[random]", "seeds=1"],
        out=tmp_path / "out",
        data=str(tmp_path / "data"),
        skip_missing=True,
        inline=True,
        track=False,
        quiet=True,
    )
    assert session.run().exit_code == 0
    table = session.view().table()
    assert {group.dataset for group in table.groups} == {"digits"}
    (note,) = (note for note in table.footnotes if note.startswith("Skipped"))
    assert note.startswith("Skipped (data are missing: ")
    assert "mnist ipc 1 random / vi / conv-bn" in note
