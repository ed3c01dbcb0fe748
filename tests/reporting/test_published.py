from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bpcbench.errors import Mistakes
from bpcbench.records import Unit
from bpcbench.reporting import Published, Row, build, lookup, published
from bpcbench.reporting.published import normalised

HEADER = "table,dataset,ipc,setting,method,metric,mean,std\n"


@pytest.fixture(scope="module")
def paper() -> list[Published]:
    return published()


def measured(method: str, dataset: str, ipc: int = 1, metric: str = "acc") -> Row:
    higher = metric == "acc"
    unit: Unit = "" if metric == "nll" else "percent"
    return Row(dataset, ipc, method, "vi", "conv", f"{method}-{dataset}", 0, 0, "predictive", metric, 0.5, higher, unit)


def test_the_papers_numbers_ship_with_the_package(paper: list[Published]) -> None:
    assert len(paper) == 602
    assert Counter(record.table for record in paper)["main"] == 168
    assert len({(p.table, p.dataset, p.ipc, p.setting, p.method, p.metric) for p in paper}) == len(paper)


def test_lookup_by_any_spelling(paper: list[Published]) -> None:
    for dataset in ("cifar10", "CIFAR10", "CIFAR-10", "cifar_10"):
        found = lookup(paper, dataset=dataset, ipc=10, method="VBPC", metric="nll")
        assert found is not None
        assert (found.mean, found.std, found.printed) == (0.89, 0.02, ("0.89", "0.02"))


def test_lookup_keeps_tables_and_settings_apart(paper: list[Published]) -> None:
    cell = {"dataset": "cifar10", "ipc": 10, "method": "vbpc", "metric": "acc"}
    found = lookup(paper, **cell, table="architecture", setting="arch=conv-gn")  # type: ignore[arg-type]
    assert found is not None
    assert found.mean == 66.8
    assert lookup(paper, **cell, table="architecture") is None  # type: ignore[arg-type]
    assert lookup(paper, **(cell | {"ipc": 3})) is None  # type: ignore[arg-type]


def test_out_of_memory_is_not_a_number(paper: list[Published]) -> None:
    found = lookup(paper, dataset="ImageWoof", ipc=10, method="bpc-cd", metric="acc", table="large")
    assert found is not None
    assert (found.mean, found.std, found.printed, found.summary("percent")) == (None, None, ("oom", ""), None)


def test_a_summary_is_in_the_metrics_own_unit(paper: list[Published]) -> None:
    found = lookup(paper, dataset="mnist", ipc=1, method="vbpc", metric="acc")
    assert found is not None
    summary = found.summary("percent")
    assert summary is not None
    assert summary.mean == pytest.approx(0.967)
    assert summary.std == pytest.approx(0.004)
    assert summary.n == 0


@pytest.mark.parametrize(
    ("name", "same"),
    [("Fashion-MNIST", "fashion_mnist"), ("FMNIST", "fashion_mnist"), ("Tiny ImageNet", "tiny_imagenet")],
)
def test_normalised(name: str, same: str) -> None:
    assert normalised(name) == normalised(same)


def test_normalising_does_not_glue_numbers() -> None:
    assert normalised("cifar10-0") != normalised("cifar100")


def test_mistakes_name_every_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(HEADER + "main,a,one,,m,acc,1,\nmain,a,1,,m,acc,1,\nmain,a,1,,m,acc,high,\nmain,a,1\n")
    with pytest.raises(Mistakes) as caught:
        published(path)
    assert [mistake.line for mistake in caught.value.mistakes] == [2, 4, 5]


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("table,dataset\n")
    with pytest.raises(Mistakes, match="no column ipc, setting, method, metric, mean, std"):
        published(path)


def test_published_lines_stand_below_the_measured_ones_unranked(paper: list[Published]) -> None:
    rows = [measured("VBPC", "MNIST"), measured("random", "MNIST"), measured("FRePo", "MNIST")]
    table = build([*rows, measured("VBPC", "MNIST", metric="nll")], published=paper)
    assert [line.label("method") for line in table.lines] == [
        *("VBPC", "random", "FRePo"),
        *("VBPC (published)", "FRePo (published)"),
    ]
    vbpc, frepo = table.lines[3:]
    assert [(cell.mean, cell.spread) for cell in vbpc.cells] == [("96.7", "0.4"), ("0.11", "0.02")]
    assert [(cell.mean, cell.spread) for cell in frepo.cells] == [("93.0", "0.4"), ("—", "")]
    assert not any(line.ranked or cell.best or cell.second for line in (vbpc, frepo) for cell in line.cells)
    assert "No result (—): 2 of 6 cells." in table.footnotes
    assert "printed in the VBPC paper and not ranked" in table.footnotes[-1]


def test_no_published_line_without_a_match(paper: list[Published]) -> None:
    table = build([measured("vbpc", "digits"), measured("random", "digits")], published=paper)
    assert not any(line.published for line in table.lines)
    assert not any("published" in note for note in table.footnotes)


def test_a_published_number_is_shown_as_printed() -> None:
    record = Published("main", "mnist", 1, "", "m", "nll", 0.03, 0.01, ("0.03", "0.01"))
    table = build([measured("m", "mnist", metric="nll")], ["nll"], published=[record])
    assert (table.lines[1].cells[0].mean, table.lines[1].cells[0].spread) == ("0.03", "0.01")


def test_the_papers_nll_stands_beside_both_formulas() -> None:
    record = Published("main", "mnist", 1, "", "m", "nll", 1.9, 0.01, ("1.90", "0.01"))
    rows = [measured("m", "mnist", metric=metric) for metric in ("nll", "nll_batch128")]
    table = build(rows, ["nll", "nll_batch128"], published=[record])
    assert [cell.mean for cell in table.lines[1].cells] == ["1.90", "1.90"]


def test_a_method_that_ran_out_of_memory_says_so() -> None:
    record = Published("main", "mnist", 1, "", "m", "acc", None, None, ("oom", ""))
    table = build([measured("m", "mnist")], ["acc"], published=[record])
    assert (table.lines[1].cells[0].mean, table.lines[1].cells[0].summary) == ("oom", None)


def test_detection_of_other_data_is_compared_with_its_own_table(paper: list[Published]) -> None:
    metrics = ["svhn/auroc", "tiny_imagenet/aupr_in", "cifar100/auroc", "svhn/entropy/auroc"]
    rows = [measured("vbpc", "cifar10", 10, metric) for metric in metrics]
    table = build(rows, metrics, published=paper)
    (line,) = (line for line in table.lines if line.published)
    # The paper's text names CIFAR-100, its table does not; by which score it detects, it does not say.
    assert [cell.mean for cell in line.cells] == ["68.50", "56.22", "—", "—"]
    assert line.cells[0].summary is not None
    assert line.cells[0].summary.mean == pytest.approx(0.685)
