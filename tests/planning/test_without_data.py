"""Plans without data: every shipped suite plans from what its data sets declare, with costs by formula."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bpcbench import Session, cli
from bpcbench.errors import UserError
from bpcbench.planning.costs import estimate, measured_rate
from bpcbench.records import Facts
from bpcbench.registry.discovery import Registry
from bpcbench.suite.files import shipped

SMALL = ["ipc=[1]", "seeds=1", "datasets=[mnist]"]


PLUGINS = ("bpc:digits", "bpc:cifar10", "bpc:contrastive")
"""Suites that plugins bring."""
SUITES = sorted(name for name in shipped() if not name.startswith("presets/"))
ONE_SEED = ["seeds={distil: 1, evaluate: 1}"]


def test_the_suites_of_plugins_are_all_named_here(registry: Registry) -> None:
    assert set(registry.suites) == set(PLUGINS)


@pytest.mark.parametrize(
    "name",
    # Counting the operations of seven networks takes three CPU seconds; paper/architectures does it too.
    [pytest.param(name, marks=[pytest.mark.campaign] * (name == "cpu/architectures")) for name in [*SUITES, *PLUGINS]],
)
def test_every_suite_plans_without_data(name: str, tmp_path: Path) -> None:
    """What is not there has operations by formula, of every method; digits are always there."""
    plan = Session(name, ONE_SEED, data=str(tmp_path), out=tmp_path / "no").prepare(declare=True).plan
    assert any(not cell.skipped for cell in plan.cells)
    assert {dataset.plugin.name for dataset in plan.datasets.values()} - {"digits"} <= set(plan.declared)
    statuses = {one.status for one in plan.stages}
    assert statuses <= ({"no data", "to do"} if "digits" in plan.datasets else {"no data"})
    missing = [one for one in plan.stages if one.kind == "coreset" and one.status == "no data"]
    assert [one.label for one in missing if one.operations is None] == []
    assert missing or set(plan.datasets) == {"digits"}


@pytest.mark.skipif("BPCBENCH_DATA" not in os.environ, reason="needs the real data sets")
@pytest.mark.parametrize("name", [*SUITES, *PLUGINS])
def test_with_data_only_what_is_absent_or_not_official_is_declared(name: str, tmp_path: Path) -> None:
    plan = Session(name, ONE_SEED, out=tmp_path / "no").prepare(declare=True).plan
    assert any(not cell.skipped for cell in plan.cells)
    for label, dataset in plan.datasets.items():
        mine = {one.status for one in plan.stages if one.kind == "coreset" and one.label.startswith(f"{label} ")}
        assert mine == {"no data" if dataset.plugin.name in plan.declared else "to do"}


def test_the_command_says_what_is_missing_and_what_it_would_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "paper/large", "--data", str(tmp_path), "--out", str(tmp_path / "no"), "seeds=1"]
    assert cli.main([*words, "--rate", "1e13"]) == 0
    said = capsys.readouterr().out
    assert "data set imagenet64 needs train_data_batch_1" in said
    assert "nothing is known of what is cached:" in said
    assert " cached\n" not in said
    assert "h one after the other at 1.0e+13 operations per second (--rate)" in said
    assert cli.main([*words, "--skip-missing"]) == 0
    assert "hours: give --rate" in capsys.readouterr().out
    assert not (tmp_path / "no").exists()
    for wrong in ("fast", "0", "inf"):
        with pytest.raises(SystemExit) as ended:
            cli.main([*words, "--rate", wrong])
        assert ended.value.code == 2


def test_a_plan_without_data_cannot_be_run(tmp_path: Path) -> None:
    session = Session("cpu/mnist", SMALL, data=str(tmp_path), out=tmp_path / "no")
    with pytest.raises(UserError, match="a plan without data cannot be run"):
        session.execute(session.prepare(declare=True))
    with pytest.raises(UserError, match="mnist"):
        session.run()
    assert not (tmp_path / "no").exists()


def test_operations_are_those_of_the_formula(tmp_path: Path, registry: Registry) -> None:
    network = "methods.vbpc.network={width: 4, depth: 2}"
    words = [*SMALL, network, "methods.vbpc.steps=7", "methods.vbpc.batch=16", "methods=[vbpc]", "cases=[]"]
    plan = Session("cpu/mnist", words, data=str(tmp_path), out=tmp_path / "no").prepare(declare=True).plan
    (coreset,) = [one for one in plan.stages if one.kind == "coreset"]
    # Two convolutions on 32x32 and 16x16 pixels, and a linear layer on 8x8 pixels of 8 channels; 2 per product.
    one = 2 * (9 * 1 * 4 * 32 * 32 + 9 * 4 * 8 * 16 * 16 + 8 * 8 * 8 * 10)
    assert coreset.operations == 7 * one * (16 + 3 * 10 + 3 * 10)
    assert coreset.bytes == 4 * 10 * (28 * 28 + 10)
    (predict,) = [one for one in plan.stages if one.kind == "predict"]
    assert predict.bytes == 4 * 10_000 * 10
    assert estimate(plan.stages, "coreset").operations == coreset.operations


def test_the_rate_is_measured_on_the_store(tmp_path: Path, registry: Registry) -> None:
    words = ["ipc=[1]", "seeds=1", "methods=[vbpc]", "inferences=[vi]", "networks=[conv-bn]"]
    words += [
        "methods.vbpc={steps: 2, batch: 8, network: {width: 4}}",
        "inferences.vi={steps: 1}",
        "networks.conv-bn={width: 4}",
    ]
    session = Session("quickstart", words, out=tmp_path / "out", inline=True, track=False, quiet=True)
    assert session.run().exit_code == 0
    assert session.store is not None
    rate = measured_rate(registry, session.store, tmp_path)
    assert rate is not None
    assert (rate.coresets, rate.device) == (1, "cpu")
    assert 0 < rate.operations < 1e15


def test_official_data_declare_their_facts(registry: Registry) -> None:
    digits = registry.get("dataset", "digits").cls()
    assert digits.declared() is None, "its files are always there"
    for name in ("mnist", "cifar10", "cifar100", "svhn", "tiny_imagenet", "imagenet64", "imagewoof"):
        facts = registry.get("dataset", name).cls().declared()
        assert isinstance(facts, Facts)
        assert facts.official
        assert set(facts.sizes) == {"train", "test"}
