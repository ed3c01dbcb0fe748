"""Predicted peaks of memory against what torch allocates on the CPU, for every method and inference on small cells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bpcbench.api import Inference, Method, Network
from bpcbench.records import Coreset, Data, Facts, Inputs, Offer, PrerequisiteOutput, Split
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

pytestmark = pytest.mark.benchmark

TOLERANCE = 0.2
SHAPE = (3, 32, 32)
BN, IN = ConvBN(width=16), ConvIN(width=16, growth=1, order="conv-first")
DEEP = ConvBN(width=8, order="conv-first")
POOL = {"steps": 5, "pool": 1, "updates": 100}
PLAN = Trajectories(network=IN, epochs=3)
TRAJECTORY = {"steps": 2, "trajectories": PLAN, "experts": 1, "max_start": 1, "inner_steps": 3}
LINEAR = {"steps": 2, "pool": 1, "inner_steps": 2, "hvp_steps": 2, "pool_steps": 2, "search": False}
METHODS = {
    "vbpc, activations": (VBPC(**POOL, network=BN, batch=64), 5),
    "vbpc, real batch": (VBPC(**POOL, network=BN, batch=400), 1),
    "vbpc, matrices": (VBPC(**POOL, network=replace(BN, width=4, depth=2), batch=64, augmentation="none"), 60),
    "vbpc, conv-first": (VBPC(**POOL, network=DEEP, batch=64, augmentation="none"), 10),
    "vbpc, naive": (VBPC(**POOL, network=replace(BN, depth=2), batch=64, naive=True), 2),
    "vbpc, chunks": (VBPC(**POOL, network=BN, batch=64, augmentation="none", pool_rows=20, chunk=20), 20),
    "frepo": (FRePo(**POOL, network=BN, batch=64, temperature_share=0), 5),
    "rcig": (RCIG(**LINEAR, network=ConvNN(width=16), batch=64), 5),
    "rcig, through the network": (RCIG(**LINEAR, network=ConvNN(width=32), batch=64, mirror="no"), 10),
    "rcig, real batch": (RCIG(**LINEAR, network=ConvNN(width=32), batch=512, mirror="no"), 1),
    "rcig, chunks": (RCIG(**LINEAR, network=ConvNN(width=32), batch=64, mirror="no", chunk=20), 10),
    "rcig, chunks and BatchNorm": (RCIG(**LINEAR, network=DEEP, batch=64, mirror="no", chunk=20), 20),
    "bpc-rkl": (ReverseKL(**TRAJECTORY, draws=2, batch=64), 5),
    "bpc-fkl": (ForwardKL(**TRAJECTORY, draws=2), 5),
    "bpc-w": (Wasserstein(**TRAJECTORY), 5),
    "bpc-w, one graph": (Wasserstein(**TRAJECTORY, graphs=1), 5),
    "bpc-w, many steps": (Wasserstein(**TRAJECTORY | {"inner_steps": 8}), 3),
    "bpc-cd": (Contrastive(**TRAJECTORY), 5),
    "fbpc": (FunctionSpace(**TRAJECTORY, points=2), 5),
    "fbpc, real": (FunctionSpace(**TRAJECTORY, points=2, variant="real", batch=64), 5),
}
SHORT = {"chains": 2, "samples": 2, "burn": 1, "thin": 1}
INFERENCES = {
    "vi": (VariationalInference(steps=3), BN, 30),
    "vi, matrices": (VariationalInference(steps=3, rows=50), replace(BN, width=4, depth=2), 150),
    "frepo": (RegressionInference(steps=3), BN, 30),
    "rcig": (RCIGInference(steps=3, augmentation="none"), ConvNN(width=16), 20),
    "network": (NetworkInference(steps=3), ConvGN(width=16), 20),
    "ensemble": (Ensemble(steps=3, members=3), BN, 20),
    "sghmc": (SGHMCInference(**SHORT), IN, 30),
    "sghmc, together": (SGHMCInference(**SHORT, batched=True), BN, 20),
    "sghmc, four together": (SGHMCInference(**SHORT | {"chains": 4}, batched=True), IN, 20),
    "hmc": (HMCInference(**SHORT, leapfrog=2), IN, 30),
}


def data(count: int) -> Data:
    """Random bytes: memory depends on sizes only."""
    labels = np.arange(count) % 10
    images = np.random.default_rng(0).integers(0, 256, (count, *SHAPE), np.uint8)
    return Data(Facts(shape=SHAPE, classes=10, sizes={"train": count, "test": count}), Split(images, labels))


def inputs(plugin: Method) -> Inputs:
    facts = data(10).facts
    drawn = np.random.default_rng(0)
    size = PLAN.parameters(facts)
    arrays = {snapshot_name(epoch): 0.05 * drawn.standard_normal(size, np.float32) for epoch in PLAN.snapshots}
    return replace(toy_inputs(), prerequisites={"experts": PrerequisiteOutput(PLAN, "", {"000": arrays})})


@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    method, ipc = METHODS[name]
    given = data(600)
    predicted = method.peak_bytes(given.facts, ipc)
    assert predicted is not None
    method.distil(given, ipc, inputs(method), context(tmp_path / "warm"))
    measured = peak_allocation(lambda: method.distil(given, ipc, inputs(method), context(tmp_path / "run")), "cpu")
    # The data are NumPy's; torch allocates the rest.
    on_device = not isinstance(method, TrajectoryMethod) or method.batch_used() > 0
    compare(name, predicted - on_device * resident(given.facts), measured, capsys)


@pytest.mark.parametrize("name", INFERENCES)
def test_inferences(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inference, network, ipc = INFERENCES[name]
    given = data(10 * ipc)
    predicted = inference.peak_bytes(Offer(given.facts, ipc, "random", "class", network))
    assert predicted is not None
    images = toy_inputs().transform.apply(given.train.images)
    coreset = Coreset(images=images, targets=given.labels, class_ids=given.labels, classes=10)
    tests = toy_inputs().transform.apply(data(TEST_BATCH).train.images)

    def run(folder: Path, inference: Inference = inference, network: Network = network) -> None:
        inference.fit(coreset, network, toy_inputs(), context(folder)).predict(tests)

    run(tmp_path / "warm")
    measured = peak_allocation(lambda: run(tmp_path / "run"), "cpu")
    compare(name, predicted, measured, capsys)


def compare(name: str, predicted: float, measured: float, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n  {name:<26} predicted {predicted / 1e6:7.1f} MB, measured {measured / 1e6:7.1f} MB: ", end="")
        print(f"{predicted / measured:.2f}", end="")
    assert abs(predicted / measured - 1) <= TOLERANCE
