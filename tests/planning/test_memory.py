"""Cells that need more memory than the device has are skipped with the reason, and the others are planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpcbench import Session, cli
from bpcbench.planning.plan import Plan
from bpcbench.records import Data, Facts, Split, Transform
from bpcbench_bpc.graphs import KEPT_BYTES
from bpcbench_bpc.trajectories import Trajectories
from bpcbench_bpc.wasserstein import Wasserstein
from bpcbench_distill.rcig import RCIG
from bpcbench_torch import memory
from bpcbench_torch.batches import Batches
from bpcbench_torch.memory import RESIDENT_BYTES, read, resident
from bpcbench_torch.networks import ConvBN, ConvIN, ConvNN
from bpcbench_torch.peak import peak_allocation
from bpcbench_torch.zca import ZCA
from bpcbench_vbpc.method import VBPC

SUITE = {
    "protocol": 1,
    "name": "small",
    "datasets": ["digits"],
    "ipc": [1, 100],
    "methods": {"random": None, "vbpc": {"steps": 10}},
    "inferences": ["vi"],
    "networks": {"conv-bn": {"width": 8}},
    "seeds": 1,
}
PLAN = Trajectories(network=ConvIN(growth=1, order="conv-first"))
CIFAR = Facts(shape=(3, 32, 32), classes=10, sizes={"train": 50_000, "test": 10_000})


def plan(folder: Path, memory: float | None) -> Plan:
    return Session(SUITE, data=str(folder), out=folder / "no", memory=memory).plan()


def test_without_a_limit_below_it_nothing_is_skipped(tmp_path: Path) -> None:
    made = plan(tmp_path, 1000.0)
    assert not made.skipped()
    peaks = {one.label: one.memory for one in made.stages if one.kind == "coreset" and one.plugin == "vbpc"}
    assert peaks["digits ipc 100 vbpc seed 0"] > peaks["digits ipc 1 vbpc seed 0"] > 1e6


def test_what_needs_more_is_skipped_with_the_reason_and_the_rest_goes_on(tmp_path: Path) -> None:
    peaks = {one.label: one.memory for one in plan(tmp_path, 1000.0).stages if one.plugin == "vbpc"}
    between = (peaks["digits ipc 100 vbpc seed 0"] + peaks["digits ipc 1 vbpc seed 0"]) / 2
    made = plan(tmp_path, between / 1e9)
    skipped = {cell.at.label: cell.skipped for cell in made.cells if cell.skipped}
    assert set(skipped) == {"digits ipc 100 vbpc / vi / conv-bn"}
    (reason,) = skipped.values()
    assert reason.startswith("distilling by vbpc needs about ")
    assert "GB of memory, the device (--memory) has" in reason
    assert {cell.at.ipc for cell in made.cells if not cell.skipped and cell.at.method == "random"} == {1, 100}


@pytest.mark.parametrize("inference", ["vi", "sghmc"])
def test_seeds_that_need_more_together_are_fitted_alone(tmp_path: Path, inference: str) -> None:
    """Nothing is skipped for it; and what is never fitted together needs no more than one seed."""

    def predictions(memory: float, together: int, evaluate: int = 3, *, deterministic: bool = False) -> set[Any]:
        chosen = {
            "ipc": [100],
            "methods": ["random"],
            "inferences": {inference: {"together": together}},
            "seeds": {"distil": 1, "evaluate": evaluate},
            "deterministic": deterministic,
        }
        made = Session(SUITE | chosen, data=str(tmp_path), out=tmp_path / "no", memory=memory / 1e9).plan()
        assert not made.skipped()
        return {(one.together, one.memory) for one in made.stages if one.kind == "predict"}

    ((_, alone),) = predictions(1e12, 1)
    ((three, needed),) = predictions(1e12, 5)
    assert three == 3
    assert needed > 1.5 * alone
    assert predictions((alone + needed) / 2, 5) == {(1, alone)}
    assert predictions(1e12, 5, evaluate=1) == predictions(1e12, 5, deterministic=True) == {(1, alone)}


def test_the_command_says_the_peak_and_takes_the_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(json.dumps(SUITE))
    words = ["plan", str(file), "--data", str(tmp_path), "--out", str(tmp_path / "no")]
    assert cli.main([*words, "--memory", "1000"]) == 0
    assert "memory on the device, by formula: at most" in capsys.readouterr().out
    assert cli.main([*words, "--memory", "1000", "--json"]) == 0
    stages = json.loads(capsys.readouterr().out)
    assert {one["memory"] > 0 for one in stages if one["kind"] == "predict"} == {True}
    with pytest.raises(SystemExit):
        cli.main([*words, "--memory", "much"])
    assert "expected gigabytes above 0" in capsys.readouterr().err


def test_peaks_grow_with_what_they_are_made_of() -> None:
    small, large = (VBPC(network=ConvBN(width=width)).peak_bytes(CIFAR, 10) for width in (32, 128))
    assert large > 2 * small
    plan = {"trajectories": PLAN, "capture": False}
    few, many = (Wasserstein(inner_steps=n, graphs=n, **plan).peak_bytes(CIFAR, 10) for n in (5, 30))
    assert many > 3 * few
    chosen = Wasserstein(inner_steps=30, **plan).peak_bytes(CIFAR, 10)
    assert 0.9 * KEPT_BYTES < chosen < 1.1 * KEPT_BYTES < many
    assert Wasserstein(inner_steps=5, **plan).peak_bytes(CIFAR, 10) == few
    assert Wasserstein(inner_steps=30, graphs=1, **plan).peak_bytes(CIFAR, 10) < many / 3
    assert RCIG(network=ConvNN()).peak_bytes(CIFAR, 10) > VBPC(network=ConvNN()).peak_bytes(CIFAR, 10)
    assert resident(CIFAR) == 4 * 50_000 * 3072 < RESIDENT_BYTES


def test_large_data_need_what_whitens_them_and_nothing_else() -> None:
    """ImageNet and ImageWoof's blocks at 64 px: 12,288 x 12,288 numbers; small data are there as a whole."""
    block = (3 * 64 * 64) ** 2
    for side in (64, 128):
        facts = Facts(shape=(3, side, side), classes=1000, sizes={"train": 1_281_167})
        assert resident(facts) == 4 * (block + 3 * side**2)
        assert VBPC(network=ConvBN()).peak_bytes(facts, 1) > 4 * block
    assert resident(Facts(shape=(1, 64, 64), classes=10, sizes={"train": 1_000_000})) == 0
    assert read(CIFAR, 100) == 100 * 3072


@pytest.mark.parametrize("block", [16, 8])
def test_reading_and_whitening_a_batch_takes_what_is_predicted(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Facts(shape=(3, 16, 16), classes=10, sizes={"train": 400})
    images = np.random.default_rng(0).integers(0, 256, (400, *facts.shape), np.uint8)
    data = Data(facts, Split(images, np.arange(400) % 10))
    plugin = ZCA(block=block)
    transform = Transform(plugin, plugin.fit(data, None))  # type: ignore[arg-type]  # no context is used
    monkeypatch.setattr(memory, "RESIDENT_BYTES", 0)
    monkeypatch.setattr(memory, "LARGEST_BLOCK", block)
    measured = peak_allocation(
        lambda: Batches(data, transform, size=200, seed=0, device="cpu", place="stream").next(), "cpu"
    )
    assert abs((resident(facts) + 4 * read(facts, 200)) / measured - 1) < 0.2
