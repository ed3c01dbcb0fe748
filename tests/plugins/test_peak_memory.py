"""Predicted peaks of memory against what torch allocates on the CPU, for every method and inference on small cells.

With `-s` every cell prints both; `-k large` are images of 64 and 128 pixels a side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from bpcbench.api import Inference, Method, Network
from bpcbench.records import Coreset, Data, Facts, Inputs, Offer, PrerequisiteOutput, Split
from bpcbench.registry.discovery import load_registry
from bpcbench.testing import context, toy_inputs
from bpcbench_bpc.contrastive import Contrastive
from bpcbench_bpc.forward_kl import ForwardKL
from bpcbench_bpc.function_space import FunctionSpace
from bpcbench_bpc.method import TrajectoryMethod
from bpcbench_bpc.reverse_kl import ReverseKL
from bpcbench_bpc.trajectories import Trajectories, snapshot_name
from bpcbench_bpc.wasserstein import Wasserstein
from bpcbench_distill.inference import RegressionInference
from bpcbench_distill.method import FRePo
from bpcbench_distill.rcig import RCIG
from bpcbench_distill.rcig_inference import RCIGInference
from bpcbench_torch.inferences import Ensemble, NetworkInference
from bpcbench_torch.memory import TEST_BATCH, resident
from bpcbench_torch.networks import ConvBN, ConvGN, ConvIN, ConvNN
from bpcbench_torch.peak import peak_allocation
from bpcbench_torch.samplers import HMCInference, SGHMCInference
from bpcbench_vbpc.inference import VariationalInference
from bpcbench_vbpc.method import VBPC

pytestmark = pytest.mark.campaign

TOLERANCE = 0.2
BN, IN = ConvBN(width=16), ConvIN(width=16, growth=1, order="conv-first")
DEEP = ConvBN(width=8, order="conv-first")
NARROW = ConvBN(width=8)
POOL = {"steps": 2, "pool": 1, "updates": 100}
PLAN = Trajectories(network=replace(IN, width=8), epochs=3)
TRAJECTORY = {"steps": 2, "trajectories": PLAN, "experts": 1, "max_start": 1, "inner_steps": 3, "capture": False}
LINEAR = {"steps": 2, "pool": 1, "inner_steps": 2, "hvp_steps": 2, "pool_steps": 2, "search": False, "mirror": "no"}
SHORT = {"chains": 2, "samples": 2, "burn": 1, "thin": 1}


@dataclass(frozen=True)
class Cell:
    """A method or an inference, its network if it is an inference, images per class, and the side of the images."""

    plugin: Method | Inference
    ipc: int
    network: Network = BN
    side: int = 32

    @property
    def shape(self) -> tuple[int, int, int]:
        return 3, self.side, self.side


METHODS = {
    "vbpc, activations": Cell(VBPC(**POOL, network=BN, batch=64), 5),
    "vbpc, real batch": Cell(VBPC(**POOL, network=BN, batch=200), 1),
    "vbpc, matrices": Cell(VBPC(**POOL, network=replace(BN, width=4, depth=2), batch=64, augmentation="none"), 60),
    "vbpc, conv-first": Cell(VBPC(**POOL, network=DEEP, batch=64, augmentation="none"), 10),
    "vbpc, naive": Cell(VBPC(**POOL, network=replace(NARROW, depth=2), batch=64, naive=True), 2),
    "vbpc, chunks": Cell(VBPC(**POOL, network=BN, batch=64, augmentation="none", pool_rows=20, chunk=20), 20),
    "frepo": Cell(FRePo(**POOL, network=BN, batch=64, temperature_share=0), 5),
    "rcig": Cell(RCIG(**LINEAR, network=ConvNN(width=8), batch=64), 5, side=16),
    "rcig, through the network": Cell(RCIG(**LINEAR, network=ConvNN(width=64, depth=2), batch=64), 20, side=16),
    "rcig, real batch": Cell(RCIG(**LINEAR, network=ConvNN(width=16), batch=256), 1, side=16),
    "rcig, chunks": Cell(RCIG(**LINEAR, network=ConvNN(width=64, depth=2), batch=64, chunk=20), 20, side=16),
    "rcig, chunks and BatchNorm": Cell(
        RCIG(**LINEAR, network=ConvBN(width=64, depth=2, order="conv-first"), batch=64, chunk=20), 20, side=16
    ),
    "bpc-rkl": Cell(ReverseKL(**TRAJECTORY, draws=2, batch=64, together=1), 5),
    "bpc-fkl": Cell(ForwardKL(**TRAJECTORY, draws=2, together=1), 5),
    "bpc-w": Cell(Wasserstein(**TRAJECTORY), 5),
    "bpc-w, one graph": Cell(Wasserstein(**TRAJECTORY, graphs=1), 5),
    "bpc-w, many steps": Cell(Wasserstein(**TRAJECTORY | {"inner_steps": 8}), 2),
    "bpc-cd": Cell(Contrastive(**TRAJECTORY), 5),
    "fbpc": Cell(FunctionSpace(**TRAJECTORY, points=2), 5),
    "fbpc, real": Cell(FunctionSpace(**TRAJECTORY, points=2, variant="real", batch=64), 5),
    **{
        f"large, {side} px, {name}": Cell(method, 1, side=side)
        for side in (64, 128)
        for name, method in {
            "vbpc": VBPC(**POOL, network=NARROW, batch=16),
            "frepo": FRePo(**POOL, network=NARROW, batch=16, temperature_share=0),
            "rcig, chunks": RCIG(**LINEAR, network=ConvNN(width=4, order="conv-first"), batch=16, beta=0, chunk=4),
            "bpc-w": Wasserstein(**TRAJECTORY),
            "bpc-fkl": ForwardKL(**TRAJECTORY, draws=2, together=1),
        }.items()
    },
}
INFERENCES = {
    "vi": Cell(VariationalInference(steps=2), 30),
    "vi, matrices": Cell(VariationalInference(steps=2, rows=50), 150, replace(BN, width=4, depth=2)),
    "frepo": Cell(RegressionInference(steps=2), 30),
    "rcig": Cell(RCIGInference(steps=2, augmentation="none"), 20, ConvNN(width=16)),
    "network": Cell(NetworkInference(steps=2), 20, ConvGN(width=16)),
    "ensemble": Cell(Ensemble(steps=2, members=2), 20),
    "sghmc": Cell(SGHMCInference(**SHORT), 20, IN),
    "sghmc, together": Cell(SGHMCInference(**SHORT, batched=True), 20),
    "sghmc, four together": Cell(SGHMCInference(**SHORT | {"chains": 4}, batched=True), 10, IN),
    "sghmc, together, conv-first": Cell(SGHMCInference(**SHORT, batched=True), 20, replace(BN, order="conv-first")),
    "hmc": Cell(HMCInference(**SHORT, leapfrog=2), 20, replace(IN, width=8)),
    "large, 64 px, vi": Cell(VariationalInference(steps=2), 1, NARROW, 64),
    "large, 128 px, vi": Cell(VariationalInference(steps=2), 1, NARROW, 128),
    "large, 64 px, sghmc": Cell(SGHMCInference(**SHORT), 2, NARROW, 64),
}


def data(count: int, shape: tuple[int, int, int]) -> Data:
    """Random bytes: memory depends on sizes only."""
    labels = np.arange(count) % 10
    images = np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8)
    return Data(Facts(shape=shape, classes=10, sizes={"train": count, "test": count}), Split(images, labels))


def inputs(shape: tuple[int, int, int]) -> Inputs:
    size = PLAN.parameters(data(10, shape).facts)
    drawn = np.random.default_rng(0)
    arrays = {snapshot_name(epoch): 0.05 * drawn.standard_normal(size, np.float32) for epoch in PLAN.snapshots}
    return replace(toy_inputs(), prerequisites={"experts": PrerequisiteOutput(PLAN, "", {"000": arrays})})


@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = METHODS[name]
    method, given = cell.plugin, data(600, cell.shape)
    assert isinstance(method, Method)
    predicted = method.peak_bytes(given.facts, cell.ipc)
    assert predicted is not None
    measured = peak_allocation(
        lambda: method.distil(given, cell.ipc, inputs(cell.shape), context(tmp_path / "run")), "cpu"
    )
    # The data are NumPy's; torch allocates the rest.
    on_device = not isinstance(method, TrajectoryMethod) or method.batch_used() > 0
    compare(name, predicted - on_device * resident(given.facts), measured, capsys)


@pytest.mark.parametrize("name", INFERENCES)
def test_inferences(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = INFERENCES[name]
    inference, given = cell.plugin, data(10 * cell.ipc, cell.shape)
    assert isinstance(inference, Inference)
    predicted = inference.peak_bytes(Offer(given.facts, cell.ipc, "random", "class", cell.network))
    assert predicted is not None
    images = toy_inputs().transform.apply(given.train.images)
    coreset = Coreset(images=images, targets=given.labels, class_ids=given.labels, classes=10)
    tests = toy_inputs().transform.apply(data(TEST_BATCH, cell.shape).train.images)

    def run() -> None:
        inference.fit(coreset, cell.network, toy_inputs(), context(tmp_path / "run")).predict(tests)

    compare(name, predicted, peak_allocation(run, "cpu"), capsys)


def test_every_method_and_inference_has_a_cell() -> None:
    registry = load_registry()
    without = {"file", "herding", "kmeans", "random", "whole"}
    """Methods that compute with NumPy alone."""
    assert {cell.plugin.name for cell in METHODS.values()} == set(registry.names("method")) - without
    assert {cell.plugin.name for cell in INFERENCES.values()} == set(registry.names("inference"))


def compare(name: str, predicted: float, measured: float, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n  {name:<28} predicted {predicted / 1e6:7.1f} MB, measured {measured / 1e6:7.1f} MB: ", end="")
        print(f"{predicted / measured:.2f}", end="")
    assert abs(predicted / measured - 1) <= TOLERANCE
