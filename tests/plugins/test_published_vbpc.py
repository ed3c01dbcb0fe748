"""The numbers of the VBPC paper, and the cells they stand beside."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bpcbench.errors import Mistakes
from bpcbench.planning.manifest import manifest_of
from bpcbench.planning.published import match
from bpcbench.records import Publication, PublishedQuery
from bpcbench.registry.discovery import Registry
from bpcbench.reporting import Place, Row, build
from bpcbench.session import Session
from bpcbench.store.manifest import PublishedRecord
from bpcbench_vbpc.published import NUMBERS, publication

HEADER = "table,dataset,ipc,setting,method,metric,mean,std\n"
CONV_BN = {"plugin": "conv-bn", "width": 128}
OPTIONS: dict[str, Any] = {
    "network": CONV_BN,
    "init": "real",
    "optimiser": "adam",
    "learn_labels": True,
    "augmentation": "paper",
    "noise": True,
    "updates": 100,
    "gamma": 100.0,
    "rho": 10.0,
}
VBPC = PublishedQuery(
    *("cifar10", 10, "vbpc", "vi", "conv-bn"), native=True, method_options=OPTIONS, inference_options={"steps": 2000}
)
FREPO = PublishedQuery("cifar10", 10, "frepo", "frepo", "conv-bn", native=True, method_options={"network": CONV_BN})


def rkl(learned_with: str, **other: Any) -> PublishedQuery:
    options = {"trajectories": {"plugin": "trajectories", "network": {"plugin": learned_with}}}
    values = {"inference": "sghmc", "network": learned_with, "native": True, "method_options": options, **other}
    return PublishedQuery(dataset="cifar10", ipc=10, method="bpc-rkl", **values)


def rcig(learned_with: str, **other: Any) -> PublishedQuery:
    options = {"network": {"plugin": learned_with}}
    values = {"inference": "rcig", "network": learned_with, "native": True, "method_options": options, **other}
    return PublishedQuery(dataset=values.pop("dataset", "cifar10"), ipc=10, method="rcig", **values)


@pytest.fixture(scope="module")
def paper() -> Publication:
    return publication()


def printed(paper: Publication, query: PublishedQuery, metric: str = "acc", **changes: Any) -> str:
    number = match([paper], replace(query, metric=metric, **changes))
    return "" if number is None else number.printed[0]


def test_all_numbers_are_read_and_none_twice(paper: Publication) -> None:
    assert len(paper.numbers) == 602
    assert Counter(number.table for number in paper.numbers)["main"] == 168
    places = {(p.table, p.dataset, p.ipc, p.setting, p.method, p.metric) for p in paper.numbers}
    assert len(places) == len(paper.numbers)
    assert paper.name == "VBPC, ICLR 2025"


def test_the_plugin_registers_it(registry: Registry) -> None:
    messages: list[str] = []
    assert publication() in registry.published(messages.append)
    assert messages == []


def test_every_name_that_a_number_matches_is_a_plugin(paper: Publication, registry: Registry) -> None:
    patterns = [pattern for number in paper.numbers for pattern in number.cells]
    for kind in ("dataset", "method", "inference", "network"):
        assert {getattr(pattern, kind) for pattern in patterns} <= set(registry.names(kind))
    for pattern in patterns:
        for kind in ("method", "inference"):
            fields = registry.get(kind, getattr(pattern, kind)).cls.__dataclass_fields__
            assert set(getattr(pattern, f"{kind}_options")) <= set(fields)


def test_what_has_no_equivalent_is_what_the_documentation_lists(paper: Publication) -> None:
    without = Counter(number.table for number in paper.numbers if not number.cells)
    assert without == {"large": 8}
    assert {number.method for number in paper.numbers if number.table == "large" and not number.cells} == {"random"}


def test_every_number_with_an_equivalent_is_shown_in_its_own_cell(paper: Publication) -> None:
    """What the patterns of a number say leads to a number with the same printed text."""
    for number in paper.numbers:
        for pattern in number.cells:
            for metric in pattern.metrics:
                query = PublishedQuery(
                    dataset=str(pattern.dataset),
                    ipc=int(number.ipc or 0),
                    method=str(pattern.method),
                    inference=str(pattern.inference),
                    network=str(pattern.network),
                    method_options=pattern.method_options,
                    inference_options=pattern.inference_options,
                    network_options=pattern.network_options,
                    metric=metric,
                    tasks=pattern.tasks,
                )
                shown = match([paper], query)
                assert shown is not None
                assert (shown.printed, shown.metric) == (number.printed, number.metric), number


def test_the_main_table_is_each_method_under_its_own_inference(paper: Publication) -> None:
    assert [printed(paper, VBPC, metric) for metric in ("acc", "nll", "ece")] == ["69.8", "0.89", ""]
    assert [printed(paper, VBPC, dataset="mnist", ipc=ipc) for ipc in (1, 10, 3)] == ["96.7", "99.1", ""]
    assert [printed(paper, FREPO, metric) for metric in ("acc", "nll")] == ["65.5", ""]
    assert printed(paper, rkl("conv-bn")) == printed(paper, rkl("conv-in")) == "37.9"


def test_rcig_is_compared_under_its_own_inference_and_under_vi(paper: Publication) -> None:
    assert [printed(paper, rcig("conv-nn")), printed(paper, rcig("conv-bn"))] == ["69.1", "69.1"]
    assert printed(paper, rcig("conv-nn", network="conv-bn")) == ""
    assert printed(paper, rcig("conv-bn", inference="vi", native=False), "nll") == "2.05"
    assert printed(paper, rcig("conv-nn", inference="vi", native=False, network="conv-bn", dataset="cifar100")) == "2.5"
    assert printed(paper, rcig("conv-bn", inference="frepo", native=False)) == ""


def test_classes_in_steps_have_the_numbers_of_continual_learning_and_no_others(paper: Publication) -> None:
    cell = replace(VBPC, dataset="cifar100", ipc=20, tasks=5)
    names = [f"after-{step}/acc" for step in range(1, 6)]
    assert [printed(paper, cell, name) for name in names] == ["75.3", "65.8", "57.1", "53.3", "50.3"]
    assert [printed(paper, cell, name, tasks=10) for name in names] == [""] * 5
    assert printed(paper, replace(cell, tasks=None), "after-1/acc") == ""
    assert printed(paper, VBPC) == "69.8"
    assert printed(paper, VBPC, tasks=5) == ""
    assert printed(paper, rkl("conv-in"), "after-5/acc", dataset="cifar100", ipc=20, tasks=5) == "25.5"


def test_frepo_under_vi_never_gets_its_main_number(paper: Publication) -> None:
    assert printed(paper, FREPO, inference="vi", native=False) == "55.7"
    assert printed(paper, FREPO, inference="vi", native=False, dataset="mnist") == ""
    assert printed(paper, FREPO, inference="vi", native=False, ipc=50) == ""
    assert printed(paper, FREPO, inference="vi", native=False, network="conv-in") == ""
    assert printed(paper, FREPO, inference="network", native=False) == ""


def test_other_inferences(paper: Publication) -> None:
    assert printed(paper, VBPC, inference="frepo", native=False) == "67.8"
    assert printed(paper, VBPC, inference="sghmc", native=False) == ""
    assert printed(paper, rkl("conv-in", inference="vi", network="conv-bn")) == "12.0"
    # One who names the method's own inference asks for the same as one who says `native`.
    assert printed(paper, VBPC, native=False) == "69.8"


def test_other_networks(paper: Publication) -> None:
    names = ("conv-gn", "conv-in", "conv-nn", "resnet18-bn")
    assert [printed(paper, VBPC, network=name) for name in names] == ["66.8", "58.1", "58.4", ""]
    assert printed(paper, VBPC, network="conv-gn", ipc=1) == ""
    # Learned with BatchNorm and used with instance norm is not the same as learned and used with instance norm.
    assert printed(paper, rkl("conv-bn", network="conv-in")) == "26.7"
    assert printed(paper, rkl("conv-in", network="conv-gn")) == ""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "49.4"),
        ({"init": "uniform-normalised"}, "48.4"),
        ({"init": "uniform"}, ""),
        ({"learn_labels": False}, "23.5"),
        ({"noise": False}, "48.5"),
        ({"updates": 400}, "48.0"),
        ({"gamma": 10.0}, "48.5"),
        ({"rho": 1000.0}, "47.5"),
    ],
)
def test_ablations_by_options(paper: Publication, change: dict[str, Any], expected: str) -> None:
    assert printed(paper, VBPC, dataset="cifar100", method_options=OPTIONS | change) == expected


def test_ablation_of_the_inferences_steps(paper: Publication) -> None:
    assert printed(paper, VBPC, dataset="cifar100", inference_options={"steps": 400}) == "48.9"


def test_an_ablated_method_is_not_the_main_one(paper: Publication) -> None:
    assert printed(paper, VBPC, dataset="mnist", method_options=OPTIONS | {"noise": False}) == ""


@pytest.mark.parametrize("augmentation", ["none", "paper-quiet", "paper-all", "frepo"])
@pytest.mark.parametrize("noise", [True, False])
def test_other_augmentations_are_neither_the_main_method_nor_a_row_of_the_ablation_of_noise(
    paper: Publication, augmentation: str, noise: bool
) -> None:
    options = OPTIONS | {"augmentation": augmentation, "noise": noise}
    for query in (VBPC, replace(VBPC, dataset="cifar100")):
        assert printed(paper, query, method_options=options) == ""
    assert printed(paper, VBPC, inference="frepo", native=False, method_options=options) == ""


def test_coresets_of_cpu_sized_suites_without_augmentation_have_no_published_number(tmp_path: Path) -> None:
    for name, expected in (("cpu/mnist", {"vbpc-augmented"}), ("cpu/ablations/noise", {"vbpc"})):
        words = ["seeds={distil: 1, evaluate: 1}"]
        plan = Session(name, words, data=str(tmp_path), out=tmp_path / "no").prepare(declare=True).plan
        manifest = manifest_of(plan, source=name, request="", publications=[publication()])
        assert {group.method for group in manifest.groups if group.published} == expected


def test_corruption_and_detection_have_their_own_tables(paper: Publication) -> None:
    names = ("clean/acc", "clean/nll", "gaussian_blur/acc", "gaussian_blur/nll", "fog/acc", "snow-5/acc")
    assert [printed(paper, VBPC, name) for name in names] == ["69.8", "0.89", "59.3", "1.20", "", ""]
    # The paper's text names CIFAR-100, its table does not; by which score it detects, it does not say.
    sets = ("svhn/auroc", "tiny_imagenet/aupr_in", "cifar100/auroc", "svhn/entropy/auroc")
    assert [printed(paper, VBPC, name) for name in sets] == ["68.50", "56.22", "", ""]
    number = match([paper], replace(VBPC, metric="svhn/auroc"))
    assert number is not None
    assert number.mean == pytest.approx(0.685)


def test_the_nll_stands_beside_both_formulas_and_neither_is_ranked(paper: Publication) -> None:
    place = Place("cifar10", 10, "rkl", "native", "native")
    rows = [
        Row(*place, "c", 0, 0, "classification", metric, 2.0, higher)
        for metric, higher in (("nll", False), ("nll_batch128", None))
    ]
    records = []
    for metric in ("nll", "nll_batch128"):
        number = match([paper], replace(rkl("conv-in"), metric=metric))
        assert number is not None
        records.append(PublishedRecord(paper.name, metric, number.mean, number.std, number.printed))
    notes = {paper.name: paper.note}
    table = build(rows, ["nll", "nll_batch128"], published={place: records}, publications=notes)
    assert [cell.mean for cell in table.lines[1].cells] == ["2.13", "2.13"]
    assert "its NLL formula for the baselines is not stated" in table.footnotes[-1]


def test_out_of_memory_is_not_a_number(paper: Publication) -> None:
    (number, *_) = (n for n in paper.numbers if (n.dataset, n.ipc, n.method) == ("imagewoof", 10, "bpc-cd"))
    assert (number.mean, number.std, number.printed) == (None, None, ("oom", ""))


SUITE = """
protocol: 1
datasets: [mnist]
ipc: [1]
methods:
  mine: {plugin: vbpc}
  other: {plugin: vbpc, noise: false}
  frepo:
  random:
inferences: [native, vi]
networks: [native]
evaluators: [classification]
"""


def test_a_plan_knows_the_plugins_behind_its_labels(
    paper: Publication, write_suite: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bpcbench.records import Facts
    from bpcbench_data.mnist import MNIST

    facts = Facts(shape=(1, 28, 28), classes=10, sizes={"train": 60000, "test": 10000})
    monkeypatch.setattr(MNIST, "facts", lambda self, root: facts)
    monkeypatch.setattr(MNIST, "fingerprint", lambda self, root, split: split)
    monkeypatch.setattr(MNIST, "differs", lambda self, root: "")
    plan = Session(write_suite(SUITE), out=tmp_path / "out", data=str(tmp_path)).plan()
    manifest = manifest_of(plan, source="suite.yaml", request="", publications=[paper])
    shown = {
        (group.method, group.inference): "".join(one.printed[0] for one in group.published if one.metric == "acc")
        for group in manifest.groups
    }
    assert shown == {
        ("mine", "native"): "96.7",
        ("mine", "vi"): "96.7",
        ("other", "native"): "",
        ("other", "vi"): "",
        ("frepo", "native"): "93.0",
        ("frepo", "vi"): "",
        ("random", "native"): "",
        ("random", "vi"): "",
    }
    assert {group.inference: group.native_inference for group in manifest.groups} == {"native": True, "vi": False}
    assert manifest.publications == {paper.name: paper.note}


def test_mistakes_name_every_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(HEADER + "main,a,one,,m,acc,1,\nmain,a,1,,m,acc,1,\nmain,a,1,,m,acc,high,\nmain,a,1\n")
    with pytest.raises(Mistakes) as caught:
        publication(path)
    assert [mistake.line for mistake in caught.value.mistakes] == [2, 4, 5]


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("table,dataset\n")
    with pytest.raises(Mistakes, match="no column ipc, setting, method, metric, mean, std"):
        publication(path)


def test_the_file_ships_in_the_wheel(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    root = Path(__file__).parents[2]
    (wheel,) = WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("bpcbench_vbpc/published.csv") == NUMBERS.read_bytes()


def test_costs_stand_beside_the_columns_of_the_table_of_costs(paper: Publication) -> None:
    assert printed(paper, VBPC, "cost/distil s") == "5.5 h"
    assert printed(paper, VBPC, "cost/infer s") == "20"
    assert printed(paper, rkl("conv-bn"), "cost/prep s") == printed(paper, rkl("conv-in"), "cost/prep s") == "5 h"
    numbers = {number.metric: number for number in paper.numbers if number.table == "cost_training"}
    assert numbers["train_hours"].mean == pytest.approx(3600 * float(numbers["train_hours"].printed[0].split()[0]))


def test_both_forms_of_loss_and_prediction_have_their_memory(paper: Publication) -> None:
    for naive, loss, pace, bma in ((True, "542.9", "54.0", "542.9"), (False, "272.9", "9.9", "268.9")):
        trained = replace(VBPC, method_options={**VBPC.method_options, "naive": naive})
        assert printed(paper, trained, "cost/loss MB") == loss
        assert printed(paper, trained, "cost/s/100 steps") == pace
        assert printed(paper, VBPC, "cost/BMA MB", inference_options={"naive": naive}) == bma


def test_an_architecture_is_matched_in_the_form_of_frepos_code_only(paper: Publication) -> None:
    for network, acc in (("alexnet-nn", "48.0"), ("resnet18-bn", "54.9"), ("vgg11-gn", "52.4")):
        assert printed(paper, VBPC, network=network, network_options={"form": "faithful"}) == acc
        assert printed(paper, VBPC, network=network, network_options={"form": "proper"}) == ""
