"""The suites of the plugin: valid, with the settings of the public codes, and experts made once for all methods."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from bpcbench import Session
from bpcbench.suite.files import load


@pytest.mark.parametrize("name", ["digits", "cifar10", "contrastive"])
def test_it_is_valid(name, registry):
    assert load(registry, f"bpc:{name}").description


def test_the_settings_of_kim_et_al(registry):
    suite = load(registry, "bpc:cifar10")
    found = {
        (ipc, name): suite.settings["cifar10", ipc].methods[f"bpc-{name}"].plugin
        for ipc in (1, 10, 20)
        for name in ("rkl", "fkl", "w")
    }
    assert {m.preset for m in found.values()} == {"official"}
    assert {m.lr for m in found.values()} == {1000}
    common = {key: (m.max_start, m.inner_steps, m.inner_lr) for key, m in found.items()}
    for name in ("rkl", "fkl", "w"):
        assert [common[ipc, name] for ipc in (1, 10, 20)] == [(2, 50, 0.01), (20, 30, 0.03), (30, 30, 0.03)]
        assert [found[ipc, name].ahead for ipc in (1, 10, 20)] == ([2, 1, 2] if name == "w" else [1, 1, 1])
    assert [found[ipc, "rkl"].draws for ipc in (1, 10, 20)] == [10, 30, 10]
    assert [found[ipc, "fkl"].draws for ipc in (1, 10, 20)] == [30, 30, 30]
    assert [found[ipc, "w"].rate_lr for ipc in (1, 10)] == [1e-7, 1e-5]


def test_the_settings_of_bpc_cd(registry):
    suite = load(registry, "bpc:contrastive")
    found = {key: setting.methods["bpc-cd"].plugin for key, setting in suite.settings.items()}
    assert {key: (m.max_start, m.lr, m.inner_lr) for key, m in found.items()} == {
        ("mnist", 1): (15, 1000, 0.01),
        ("mnist", 10): (15, 1, 0.001),
        ("mnist", 50): (15, 1, 0.001),
        ("fashion_mnist", 1): (5, 1, 0.001),
        ("fashion_mnist", 10): (5, 1, 0.001),
        ("fashion_mnist", 50): (15, 1, 0.001),
        ("svhn", 1): (15, 10, 0.001),
        ("svhn", 10): (15, 1, 0.01),
        ("svhn", 50): (13, 1, 0.0001),
        ("cifar10", 1): (1, 1, 0.01),
        ("cifar10", 10): (7, 1000, 0.01),
        ("cifar10", 50): (2, 1000, 0.01),
        ("cifar100", 1): (7, 1000, 0.001),
        ("cifar100", 10): (10, 100, 0.01),
        ("cifar100", 50): (15, 1, 0.001),  # excluded
    }
    assert suite.excluded(dataset="cifar100", ipc=50, method="bpc-cd", inference="native", network="native")
    assert {m.inner_steps for m in found.values()} == {10}


def test_the_papers_table_has_the_same_settings(registry):
    table = load(registry, "paper/main").settings
    for name, labels in (("cifar10", ("bpc-rkl", "bpc-fkl")), ("contrastive", ("bpc-cd",))):
        own = load(registry, f"bpc:{name}").settings
        shared = own.keys() & table.keys()
        assert shared
        for key in shared:
            for label in labels:
                here, there = (asdict(settings[key].methods[label].plugin) for settings in (own, table))
                assert (here["preset"], there["preset"]) == ("official", "clean")
                changed = {"preset": "official", "trajectories": here["trajectories"], "experts": 100}
                assert there["experts"] == 10
                assert here == {**there, **changed}


def test_all_methods_share_the_experts_and_their_size_is_planned(tmp_path):
    plan = Session("bpc:digits", out=tmp_path / "store").plan()
    assert not plan.skipped()
    experts = [planned for planned in plan.to_do() if planned.plugin == "trajectories"]
    assert [planned.stage.members for planned in experts] == [(f"{index:03d}",) for index in range(10)]
    # Convolutions 1-16-16 with 16 scales and shifts each, and a head on 2x2 pixels; 21 snapshots.
    parameters = (9 * 1 + 1) * 16 + (9 * 16 + 1) * 16 + 4 * 16 + (16 * 4 + 1) * 10
    assert {planned.bytes for planned in experts} == {4 * parameters * 21}


def test_more_experts_keep_those_that_are_there(tmp_path):
    small = [
        "ipc=[1]",
        "seeds={distil: 1, evaluate: 1}",
        "inferences={network: {steps: 2}, sghmc: false}",
        *(
            f"methods.{name}.{option}"
            for name in ("bpc-rkl", "bpc-fkl", "bpc-w", "bpc-cd", "fbpc")
            for option in ("steps=2", "experts=2", "inner_steps=4", "max_start=1", "trajectories.epochs=6")
        ),
    ]
    out = tmp_path / "store"
    plan = Session("bpc:digits", small, out=out).plan()
    assert len([p for p in plan.to_do() if p.plugin == "trajectories"]) == 2
    more = Session("bpc:digits", [*small, "methods.bpc-fkl.experts=3"], out=out).plan()
    members = {p.stage.id for p in more.to_do() if p.plugin == "trajectories"}
    assert {p.stage.id for p in plan.to_do() if p.plugin == "trajectories"} < members
    assert len(members) == 3
