"""Data that are not whole on the device, and passes in parts, on the fake device: no step waits for the host.

Where images lie is given here, for sizes decide it otherwise (`test_batches.py` tries that). Whitening has its matrix,
as for images in colour.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import fake_cuda
import pytest

if reason := fake_cuda.missing():
    pytest.skip(reason, allow_module_level=True)

import fake_device_subjects as subjects
import torch
from fake_device_subjects import BPC, NET, PLAN, POOL, STEPS, Watched

from bpcbench.api import Method
from bpcbench.records import Inputs, PrerequisiteOutput, Transform
from bpcbench_bpc.function_space import FunctionSpace
from bpcbench_bpc.reverse_kl import ReverseKL
from bpcbench_distill.method import FRePo
from bpcbench_distill.rcig import RCIG
from bpcbench_torch.batches import Place, TrainingImages
from bpcbench_torch.networks import ConvNN
from bpcbench_torch.samplers import HMCInference, SGHMCInference
from bpcbench_torch.zca import ZCA
from bpcbench_vbpc.method import VBPC

pytestmark = pytest.mark.fakedevice

RCIG_STEPS: dict[str, Any] = {"steps": STEPS, "batch": 16, "pool": 2, "inner_steps": 3, "hvp_steps": 2}
METHODS: dict[str, Method] = {
    "vbpc": VBPC(**POOL),
    "frepo": FRePo(**POOL, temperature_share=0),
    "rcig": RCIG(**RCIG_STEPS, network=NET),
    "bpc-rkl": ReverseKL(**BPC, steps=STEPS, draws=3, batch=6),
    "fbpc real": FunctionSpace(**BPC, steps=STEPS, points=2, variant="real"),
}
IN_PARTS: dict[str, Method] = {
    "vbpc": VBPC(**POOL, chunk=4),
    "frepo": FRePo(**POOL, temperature_share=0, chunk=4),
    "rcig": RCIG(**RCIG_STEPS, network=ConvNN(width=4), chunk=4),
    "rcig, BatchNorm": RCIG(**RCIG_STEPS, network=NET, chunk=4),
}


@functools.cache
def whitened() -> Inputs:
    """Whitening with its matrix, and an expert."""
    plugin = ZCA(grey=True)
    transform = Transform(plugin, plugin.fit(subjects.data(), None))  # type: ignore[arg-type]  # no context is used
    return Inputs(transform, {"experts": PrerequisiteOutput(PLAN, "", {"000": subjects.snapshots()})})


def check(ledger: fake_cuda.Ledger) -> None:
    assert ledger.counts["step"].launches > 0
    assert list(ledger.counts["step"].waits) == [], "a step waits for the device"
    assert ledger.errors() == []


def put(monkeypatch: pytest.MonkeyPatch, place: Place) -> list[TrainingImages]:
    """Let all training images lie there; return those that were made."""
    made: list[TrainingImages] = []

    def placed(self: TrainingImages, *sizes: object) -> Place:
        made.append(self)
        return place

    monkeypatch.setattr(TrainingImages, "_place", placed)
    return made


def pins(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Let memory be pinned by copying it, in the thread that reads ahead as well; return what was."""
    pinned: list[torch.Tensor] = []

    def pin(self: torch.Tensor) -> torch.Tensor:
        pinned.append(self)
        return self.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    return pinned


@pytest.mark.parametrize("place", ["bytes", "stream"])
@pytest.mark.parametrize("name", METHODS)
def test_a_method_reads_its_batches(ledger, tmp_path: Path, name: str, place: Place, monkeypatch) -> None:
    inputs, pinned = whitened(), pins(monkeypatch)
    made = put(monkeypatch, place)
    METHODS[name].distil(subjects.data(), 1, inputs, Watched(ledger, tmp_path))
    (images,) = made
    assert images.place == place
    assert (images.resident is not None) == (place == "bytes")
    # Without, a copy that should not block does.
    assert any(one.dtype == torch.uint8 for one in pinned) == (place == "stream")
    check(ledger)


@pytest.mark.parametrize("place", ["bytes", "stream"])
def test_an_expert_reads_its_batches(ledger, tmp_path: Path, place: Place, monkeypatch) -> None:
    inputs, _ = whitened(), pins(monkeypatch)
    put(monkeypatch, place)
    PLAN.make(subjects.data(), inputs, Watched(ledger, tmp_path), "000")
    waits = [wait for wait in ledger.counts["step"].waits if "expert.py:record" not in wait]
    assert waits == [], "a step waits for the device"
    assert ledger.errors() == []


@pytest.mark.parametrize("name", IN_PARTS)
def test_a_method_in_parts(ledger, tmp_path: Path, name: str) -> None:
    coreset = IN_PARTS[name].distil(subjects.data(), 1, whitened(), Watched(ledger, tmp_path))
    assert coreset.images.shape == (10, 1, 8, 8)
    check(ledger)


@pytest.mark.parametrize("plugin", [SGHMCInference, HMCInference], ids=lambda one: one.name)
def test_chains_in_parts(ledger, tmp_path: Path, plugin: type) -> None:
    sampler = plugin(chains=2, samples=1, burn=6, thin=1, chunk=8)
    sampler.fit(subjects.coreset(), ConvNN(width=4), subjects.inputs(), Watched(ledger, tmp_path))
    waits = [wait for wait in ledger.counts["step"].waits if "chains.py:keep" not in wait]
    assert waits == [], "a step waits for the device"
    assert ledger.errors() == []


def test_a_wait_in_the_reading_is_found(ledger, tmp_path: Path, monkeypatch) -> None:
    """The tests above fail where images are fetched from the device, or prepared on the host and copied."""
    inputs = whitened()
    put(monkeypatch, "mapped")
    METHODS["vbpc"].distil(subjects.data(), 1, inputs, Watched(ledger, tmp_path))
    with pytest.raises(AssertionError, match="a step waits for the device"):
        check(ledger)
