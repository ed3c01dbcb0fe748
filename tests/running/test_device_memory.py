"""The memory of the device that stages would get: of the GPUs that a run uses, by number, by name and by driver."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bpcbench import Session
from bpcbench.running import device_memory as asked
from bpcbench.suite.model import Suite

GB = 2**30
SAID = "0, GPU-aa11, 40960\n1, GPU-bb22, 81920\n"
SUITE = {
    "protocol": 1,
    "name": "small",
    "datasets": ["digits"],
    "ipc": [1],
    "methods": ["random"],
    "inferences": ["vi"],
    "networks": ["conv-bn"],
}


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Pretend that there are GPUs of 40 and of 80 GB."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setattr("bpcbench.running.gpus._present", lambda: 2)
    monkeypatch.setattr("bpcbench.running.gpus.cpu_build", lambda file: "")
    monkeypatch.setattr(asked.shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: SimpleNamespace(stdout=SAID))
    return monkeypatch


def test_of_all_gpus_the_smallest_counts(two: pytest.MonkeyPatch) -> None:
    assert asked.device_memory("auto") == (40 * GB, "the GPU")
    found = asked.device_memory("cpu")
    assert found is not None
    assert found[1] == "this machine"


@pytest.mark.parametrize(
    ("visible", "order", "device", "limit", "expected"),
    [
        ("1", "PCI_BUS_ID", "auto", None, 80),
        ("0", "PCI_BUS_ID", "auto", None, 40),
        (None, "PCI_BUS_ID", "cuda:1", None, 80),
        ("1,0", "PCI_BUS_ID", "auto", 1, 80),
        ("GPU-bb", None, "auto", None, 80),
        ("GPU-aa11,GPU-bb22", None, "cuda:0", None, 40),
        # CUDA's own order is by speed: number 1 may be either.
        ("1", None, "auto", None, 80),
        ("MIG-5", None, "auto", None, None),
    ],
)
def test_only_gpus_that_are_used_count(
    visible: str | None, order: str | None, device: str, limit: int | None, expected: int | None, two: Any
) -> None:
    for name, value in (("CUDA_VISIBLE_DEVICES", visible), ("CUDA_DEVICE_ORDER", order)):
        if value is not None:
            two.setenv(name, value)
    assert asked.device_memory(device, limit) == (None if expected is None else (expected * GB, "the GPU"))


def test_without_a_gpu_the_machine_counts(two: pytest.MonkeyPatch) -> None:
    for visible, limit in (("", None), ("0,1", 0)):
        two.setenv("CUDA_VISIBLE_DEVICES", visible)
        found = asked.device_memory("auto", limit)
        assert found is not None
        assert found[1] == "this machine"


def test_rocm_tells_by_its_topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for node, (simd, size) in enumerate([(0, 512 * GB), (304, 64 * GB)]):
        bank = tmp_path / str(node) / "mem_banks" / "0"
        bank.mkdir(parents=True)
        (bank.parents[1] / "properties").write_text(f"cpu_cores_count 1\nsimd_count {simd}\n")
        (bank / "properties").write_text(f"heap_type 1\nsize_in_bytes {size}\n")
    monkeypatch.setattr(asked, "_TOPOLOGY", tmp_path)
    monkeypatch.setattr(asked.shutil, "which", lambda name: None)
    assert asked._gpus() == {"0": 64 * GB}


@pytest.mark.parametrize(
    ("engine", "device", "expected"),
    [
        (None, "auto", 40),
        ({"plugin": "local", "overrides": {"vi": {"gpus": 0.25}}}, "auto", 40),
        ("inline", "auto", 40),
        ({"plugin": "slurm"}, "auto", None),
    ],
)
def test_stages_of_this_machine_are_planned_with_its_memory(
    engine: object, device: str, expected: int | None, two: Any, tmp_path: Path
) -> None:
    suite = {**SUITE, **({} if engine is None else {"engine": engine}), "device": device}
    session = Session(suite, out=tmp_path / "no")
    made: Suite = session.prepare().plan.suite
    found = session._device_memory(made)
    assert (None if found is None else found.bytes) == (None if expected is None else expected * GB)
