"""Every shipped suite is valid, and the ones on embedded data can be planned anywhere."""

from __future__ import annotations

import csv
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import yaml

import bpcbench
from bpcbench import Session
from bpcbench.records import Coreset, Facts
from bpcbench.suite.files import load, read, shipped
from bpcbench.suite.space import declared, trial_document
from bpcbench.suite.validation import validate
from bpcbench_bpc.method import sghmc_options
from bpcbench_distill.method import FRePo
from bpcbench_torch.networks import ConvBN, ConvIN, ConvNN
from bpcbench_torch.potential import Prior
from bpcbench_torch.targets import centred_targets

SUITES = [name for name in sorted(shipped()) if not name.startswith("presets/")]


@pytest.mark.parametrize("name", SUITES)
def test_it_is_valid(name, registry):
    suite = load(registry, name)
    assert suite.description
    assert suite.protocol == 1


PRESETS = [path for name, path in sorted(shipped().items()) if name.startswith("presets/")]


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_tuned_preset_sets_what_its_record_says_is_best(path):
    preset = yaml.safe_load(path.read_text())
    cells = [tuple(case["when"].items()) for case in preset["cases"]]
    assert len(set(map(str, cells))) == len(cells)
    for method, tuned in preset.get("tuned", {}).items():
        with (path.parent / tuned["record"]).open(newline="") as file:
            trials = [row for row in csv.DictReader(file) if row["method"] == method]
        assert trials
        assert tuned["objective"] == f"validation {trials[0]['objective']}"
        groups = {(row["dataset"], int(row["ipc"])): [] for row in trials}
        for row in trials:
            groups[row["dataset"], int(row["ipc"])].append(row)
        for (dataset, ipc), rows in groups.items():
            assert len(rows) <= tuned["trials"]
            (best,) = [row for row in rows if row["best"] == "true"]
            assert float(best["value"]) == min(float(row["value"]) for row in rows)
            setting = {
                f"methods.{method}.{column[4:]}": yaml.safe_load(text)
                for column, text in best.items()
                if column.startswith("set.") and text
            }
            (chosen,) = [case["set"] for case in preset["cases"] if case["when"] == {"dataset": dataset, "ipc": ipc}]
            assert {key: value for key, value in chosen.items() if key.startswith(f"methods.{method}.")} == setting


@pytest.mark.parametrize("name", [name for name in SUITES if "digits" in name or name == "quickstart"])
def test_it_can_be_planned(name, tmp_path):
    plan = Session(name, out=tmp_path / "store").plan()
    assert plan.to_do()
    assert not plan.skipped()


CONV = {"mnist": (1, 28, 28), "fashion_mnist": (1, 28, 28), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}
SHAPES = {**CONV, "tiny_imagenet": (3, 64, 64)}
CLASSES = {"mnist": 10, "fashion_mnist": 10, "cifar10": 10, "cifar100": 100, "tiny_imagenet": 200}
BPC = ("bpc-rkl", "bpc-fkl", "bpc-cd", "fbpc")
PAPER = [name for name in SUITES if name.startswith("paper/")]


def printed_cells(suite):
    """Return the settings by data set and ipc, without the row that the paper does not have."""
    return {key: setting for key, setting in suite.settings.items() if key != ("tiny_imagenet", 50)}


@pytest.mark.parametrize("name", ["paper/main", "paper/main-native"])
def test_labels_of_the_paper_table_have_their_settings(name, registry):
    suite = load(registry, name)
    vbpc = {key: setting.methods["vbpc"].plugin for key, setting in printed_cells(suite).items()}
    assert {key: (m.rho, m.gamma, m.evaluation_steps) for key, m in vbpc.items()} == {
        ("mnist", 1): (1, 100, 100),
        ("mnist", 10): (1, 100, 500),
        ("mnist", 50): (10, 100, 1000),
        ("fashion_mnist", 1): (1, 100, 100),
        ("fashion_mnist", 10): (1, 100, 500),
        ("fashion_mnist", 50): (10, 100, 1000),
        ("cifar10", 1): (1, 100, 200),
        ("cifar10", 10): (1, 100, 2000),
        ("cifar10", 50): (10, 100, 5000),
        ("cifar100", 1): (1, 100, 2000),
        ("cifar100", 10): (10, 100, 2000),
        ("cifar100", 50): (10, 100, 5000),
        ("tiny_imagenet", 1): (1, 100, 1000),
        ("tiny_imagenet", 10): (1, 100, 2000),
    }
    assert suite.excluded(dataset="tiny_imagenet", ipc=50, method="vbpc", inference="vi", network="conv-bn")
    assert {m.steps for m in vbpc.values()} == {500_000}
    assert suite.evaluate_seeds == 5


@pytest.mark.parametrize("name", ["paper/main", "paper/main-native"])
@pytest.mark.parametrize("method", ["vbpc", "frepo"])
@pytest.mark.parametrize("dataset", list(SHAPES))
def test_labels_of_the_paper_table_start_as_the_paper_says(name, method, dataset, registry):
    """The true class starts at (1 - 1/k) / sqrt(k/10), the others at -(1/k) / sqrt(k/10)."""
    classes = CLASSES[dataset]
    for ipc in (1, 10):
        plugin = load(registry, name).settings[dataset, ipc].methods[method].plugin
        labels = np.arange(classes)
        fresh = Coreset(
            images=np.zeros((classes, 1, 2, 2), np.float32), targets=labels, class_ids=labels, classes=classes
        )
        targets = centred_targets(fresh, plugin.label_scale)
        expected = (np.eye(classes) - 1 / classes) / np.sqrt(classes / 10)
        np.testing.assert_allclose(targets, expected, atol=1e-6)


def test_the_main_table_has_one_network(registry):
    network = ConvBN(width=128, growth=2, init="lecun", order="conv-first")
    for setting in printed_cells(load(registry, "paper/main")).values():
        methods = {label: method.plugin for label, method in setting.methods.items()}
        assert set(methods) == {"random", "vbpc", "frepo", "rcig", *BPC}
        assert {methods[label].network for label in ("vbpc", "frepo", "rcig", *BPC)} == {network}
        assert methods["frepo"].evaluation_network() == network
        assert setting.networks == {"conv-bn": network}
        assert {methods[label].experts for label in BPC} == {10}
        assert {methods[label].preset for label in BPC} == {"clean"}


def test_the_native_table_has_the_networks_of_the_released_code(registry):
    for (dataset, ipc), setting in printed_cells(load(registry, "paper/main-native")).items():
        methods = {label: method.plugin for label, method in setting.methods.items()}
        facts = Facts(shape=SHAPES[dataset], classes=CLASSES[dataset], sizes={"train": 100_000})
        for label in BPC:
            own = methods[label].native(facts, ipc)
            assert methods[label].preset == "official"
            assert methods[label].experts == 100
            assert own.network == ConvIN(width=128, growth=1, order="conv-first", init="torch", eps=1e-5)
        assert methods["frepo"].network == ConvBN(order="norm-first")
        assert methods["frepo"].native(facts, ipc).network == ConvNN(order="norm-first")
        assert methods["frepo"].updates == 101
        assert methods["rcig"].network == methods["rcig"].native(facts, ipc).network == ConvNN(order="conv-first")


def test_rcig_has_the_settings_that_its_authors_publish(registry):
    published = {("cifar10", 1): 15_000, ("cifar10", 10): 10_000, ("cifar100", 1): 10_000, ("tiny_imagenet", 1): 5_000}
    for name in ("paper/main", "paper/main-native"):
        methods = {key: setting.methods["rcig"].plugin for key, setting in printed_cells(load(registry, name)).items()}
        assert {key: methods[key].steps for key in published} == published
        assert {key for key, method in methods.items() if not method.beta} == {
            ("tiny_imagenet", 1),
            ("tiny_imagenet", 10),
        }
        assert {(m.pool, m.batch, m.lr, m.l2_rate, m.inner_steps) for m in methods.values()} == {
            (30, 1024, 3e-3, 5e-4, 20)
        }


def test_the_sampler_of_the_main_table_is_that_of_the_public_code(registry):
    """Same step, samples, burn-in and rule for the prior's weight as the preset official, which rests on that code."""
    for (dataset, ipc), setting in printed_cells(load(registry, "paper/main")).items():
        parameters = setting.networks["conv-bn"].parameters(SHAPES[dataset], CLASSES[dataset])
        expected = sghmc_options(CLASSES[dataset] * ipc, ipc, parameters)
        sampler = setting.inferences["sghmc"]
        same = set(expected) - {"weight_decay", "batch_size", "augmentation"}
        assert {name: getattr(sampler, name) for name in same} == pytest.approx({name: expected[name] for name in same})
        weight = Prior.of(sampler.prior, sampler.weight_decay, parameters).weight
        assert weight == pytest.approx(expected["weight_decay"], rel=1e-4)
        assert sampler.batch_size >= CLASSES[dataset] * ipc
        assert sampler.augmentation == ("dsa-grey" if SHAPES[dataset][0] == 1 else "dsa")
    assert (sghmc_options(10, 1, 320_010)["weight_decay"], sghmc_options(100, 10, 320_010)["weight_decay"]) == (1, 1.5)


@pytest.mark.parametrize("name", [name for name in PAPER if "ablation" not in name and not name.endswith("-native")])
def test_foreign_coresets_meet_the_settings_of_vbpc(name, registry):
    for (dataset, ipc), setting in printed_cells(load(registry, name)).items():
        vi, vbpc = setting.inferences["vi"], setting.methods["vbpc"].plugin
        assert (vi.rho, vi.gamma, vi.label_scale) == (vbpc.rho, vbpc.gamma, 1)
        if name not in ("paper/smoke", "paper/memory"):
            assert vi.steps == vbpc.evaluation_steps, (dataset, ipc)
        if "frepo" in setting.methods:
            assert setting.inferences["frepo"].steps == setting.methods["frepo"].plugin.evaluation_steps


@pytest.mark.parametrize("name", [name for name in PAPER if name.startswith("paper/ablations/")])
def test_an_ablation_changes_one_thing(name, registry):
    """A method differs from `vbpc` in one respect, and is evaluated with the rho and gamma that it is learned with."""
    together = {"vbpc-lamb": {"optimiser", "lr", "final_lr"}, "vbpc-single": {"pool", "updates"}}
    for setting in load(registry, name).settings.values():
        vi = setting.inferences["vi"]
        assert (vi.rho, vi.gamma) == (None, None)
        base = asdict(setting.methods["vbpc"].plugin)
        for label, method in setting.methods.items():
            options = asdict(method.plugin)
            # The suite names the inference, so the steps of the native one do not count.
            changed = {key for key in base if options[key] != base[key]} - {"evaluation_steps"}
            if label in together:
                assert changed == together[label]
            else:
                assert len(changed) == (label != "vbpc"), (label, changed)


SAME_ON_MNIST = {("cpu/ablations/gamma", "vbpc-10"), ("cpu/ablations/pool_steps", "vbpc-20")}
"""Methods of CPU-sized ablations whose value is the one that was tuned on MNIST, as their suites say."""


@pytest.mark.parametrize("name", [name for name in SUITES if name.startswith("cpu/ablations/")])
def test_a_cpu_sized_ablation_changes_one_thing(name, registry):
    """In every cell a method differs from `vbpc` in one respect; two that differ together are named."""
    together = {"vbpc-lamb": {"optimiser", "lr", "final_lr"}, "vbpc-single": {"pool", "updates"}}
    suite = load(registry, name)
    for (dataset, ipc), setting in suite.settings.items():
        if (dataset, ipc) == ("mnist", 1):
            assert suite.excluded(dataset=dataset, ipc=ipc, method="vbpc", inference="vi", network="conv-bn")
            continue
        assert {(vi.rho, vi.gamma) for vi in setting.inferences.values()} == {(None, None)}
        base = asdict(setting.methods["vbpc"].plugin)
        for label, method in setting.methods.items():
            options = asdict(method.plugin)
            changed = {key for key in base if options[key] != base[key]} - {"evaluation_steps"}
            if dataset == "mnist" and (name, label) in SAME_ON_MNIST:
                assert changed == set()
            else:
                assert len(changed) == (label != "vbpc") or changed == together.get(label), (dataset, ipc, changed)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in SUITES
        if name.startswith("cpu/ablations/") and not name.endswith(("/noise", "/readings", "/uniform", "/search"))
    ],
)
def test_cpu_sized_ablations_share_the_unchanged_coresets(name, registry):
    setting = load(registry, name).settings
    digits, mnist = (load(registry, other).settings for other in ("cpu/digits", "cpu/bpc-mnist"))
    for ipc in (1, 10):
        assert setting["digits", ipc].methods["vbpc"] == digits["digits", ipc].methods["vbpc"]
    assert setting["mnist", 10].methods["vbpc"] == mnist["mnist", 10].methods["vbpc"]


def test_both_optimisers_of_the_ablation_have_their_own_rates(registry):
    methods = load(registry, "paper/ablations/optimiser").settings["cifar10", 1].methods
    adam, lamb = (methods[label].plugin for label in ("vbpc", "vbpc-lamb"))
    assert (adam.optimiser, adam.lr, adam.final_lr) == ("adam", 3e-3, 0)
    frepo = FRePo()
    assert (lamb.optimiser, lamb.lr, lamb.final_lr) == ("lamb", 3e-4, 0.1)
    assert (lamb.optimiser, lamb.lr, lamb.final_lr) == (frepo.optimiser, frepo.lr, frepo.final_lr)


@pytest.mark.parametrize("name", ["cifar10c", "ood", "paper/cross_inference", "paper/architectures", "paper/cost"])
def test_other_tables_share_the_coresets_of_the_main_table(name, registry):
    suite, main = load(registry, name), load(registry, "paper/main")
    for key, setting in suite.settings.items():
        theirs = main.settings[key]
        assert setting.methods.items() <= theirs.methods.items()
        assert setting.preprocessing == theirs.preprocessing
        assert setting.inferences.items() <= theirs.inferences.items()
        assert setting.networks["conv-bn"] == theirs.networks["conv-bn"]


def test_evaluation_steps_share_one_coreset(registry):
    setting = load(registry, "paper/ablations/evaluation_steps").settings["cifar100", 10]
    assert list(setting.methods) == ["vbpc"]
    assert sorted(one.steps for one in setting.inferences.values()) == [400, 800, 1200, 1600, 2000]


@pytest.mark.parametrize("name", ["paper/ablations/search", "cpu/ablations/search"])
def test_the_search_has_the_grids_of_the_paper(name, registry):
    """Powers of ten from -5 to 5 for rho and gamma, three values of beta_D; every trial is a valid suite's."""
    doc, _ = read(registry, name)
    (method,) = doc.values["tune"]["space"]
    space = doc.values["tune"]["space"][method]
    assert space["rho"] == space["gamma"] == pytest.approx([10.0**power for power in range(-5, 6)])
    assert sorted(space["beta_d"]) == [1e-8, 1e-7, 1e-6]
    found = declared(doc)
    assert len(found.trials) == doc.values["tune"]["trials"]
    suite = validate(registry, trial_document(doc, found, "search"))
    assert (suite.split, suite.distil_seeds) == ("validation", 1)
    for setting in suite.settings.values():
        tried = [asdict(setting.methods[trial.label].plugin) for trial in found.trials]
        assert [one["rho"] for one in tried[1:]] == [trial.setting["rho"] for trial in found.trials[1:]]
        own = asdict(load(registry, name).settings[next(iter(suite.settings))].methods[method].plugin)
        assert tried[0] == own


def test_the_reconstruction_is_not_ranked(registry):
    methods = load(registry, "paper/main").settings["mnist", 1].methods
    assert [label for label, method in methods.items() if not method.plugin.ranked] == ["fbpc"]


@pytest.mark.campaign
@pytest.mark.skipif("BPCBENCH_DATA" not in os.environ, reason="real data sets are not here")
def test_the_smallest_form_of_the_paper_table_runs(tmp_path):
    if not (Path(os.environ["BPCBENCH_DATA"]) / "cifar-10-batches-py").exists():
        pytest.skip("CIFAR-10 is not here")
    overrides = ["datasets=[mnist]"]
    result = bpcbench.run("paper/smoke", overrides, out=tmp_path, track=False, inline=True)
    assert result.exit_code == 0
