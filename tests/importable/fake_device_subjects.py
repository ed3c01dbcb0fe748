"""What is tried on the fake device: every method, prerequisite, inference and network, small, on real digits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from fake_cuda import Ledger

from bpcbench.api import Inference, Method
from bpcbench.data.splits import training_data
from bpcbench.records import Coreset, Data, Inputs, PrerequisiteOutput, Split, Transform
from bpcbench.running.context import StageContext
from bpcbench.testing import toy_inputs
from bpcbench_bpc.contrastive import Contrastive
from bpcbench_bpc.forward_kl import ForwardKL
from bpcbench_bpc.function_space import FunctionSpace
from bpcbench_bpc.reverse_kl import ReverseKL
from bpcbench_bpc.trajectories import Trajectories
from bpcbench_bpc.wasserstein import Wasserstein
from bpcbench_data.digits import Digits
from bpcbench_distill.inference import RegressionInference
from bpcbench_distill.method import FRePo
from bpcbench_distill.rcig import RCIG
from bpcbench_distill.rcig_inference import RCIGInference
from bpcbench_torch.inferences import Ensemble, NetworkInference
from bpcbench_torch.networks import ConvBN, ConvIN
from bpcbench_torch.samplers import HMCInference, SGHMCInference
from bpcbench_vbpc.inference import VariationalInference
from bpcbench_vbpc.method import VBPC

STEPS = 4
NET = ConvBN(width=4)
EXPERT = ConvIN(width=4, growth=1, order="conv-first", init="torch")
PLAN = Trajectories(network=EXPERT, epochs=4, batch=32)
POOL: dict[str, Any] = {"steps": STEPS, "network": NET, "batch": 16, "pool": 2, "updates": 1}
BPC: dict[str, Any] = {"trajectories": PLAN, "experts": 1, "max_start": 1, "inner_steps": 2}

METHODS: dict[str, Method] = {
    "vbpc": VBPC(**POOL),
    "vbpc other options": VBPC(
        **POOL, optimiser="lamb", statistics="batch", init="uniform", learn_labels=False, pool_rows=4, form="sum"
    ),
    "frepo": FRePo(**POOL, evaluation_steps=2, temperature_share=0.1),
    "rcig": RCIG(steps=STEPS, network=NET, batch=16, pool=2, inner_steps=3, hvp_steps=2),
    "bpc-rkl": ReverseKL(**BPC, draws=3, batch=6),
    "bpc-rkl official": ReverseKL(**BPC, preset="official", draws=3, batch=6, chunk=2),
    "bpc-fkl": ForwardKL(**BPC, draws=3),
    "bpc-fkl chunk": ForwardKL(**BPC, draws=4, chunk=2),
    "bpc-w": Wasserstein(**BPC),
    "bpc-w graphs 0": Wasserstein(**BPC, graphs=0),
    "bpc-cd": Contrastive(**BPC, chain_noise=0.1),
    "fbpc": FunctionSpace(**BPC, points=3),
    "fbpc real": FunctionSpace(**BPC, points=2, variant="real"),
}
INFERENCES: dict[str, Inference] = {
    "network": NetworkInference(steps=STEPS),
    "network batches": NetworkInference(steps=STEPS, batch_size=4),
    "ensemble": Ensemble(steps=STEPS, members=2),
    "vi": VariationalInference(steps=STEPS),
    "vi batches": VariationalInference(steps=STEPS, rows=4, statistics="settled"),
    "frepo": RegressionInference(steps=STEPS),
    "rcig": RCIGInference(steps=STEPS, loops="nominal"),
    "sghmc": SGHMCInference(chains=2, samples=4, burn=2, thin=1),
    "sghmc batches": SGHMCInference(chains=2, samples=4, burn=2, thin=1, batch_size=4, augmentation="dsa-grey"),
    "hmc": HMCInference(chains=2, samples=4, burn=2, leapfrog=2),
}


class Watched(StageContext):
    """A context whose loops end after a few steps, and that tells a ledger where it is.

    Phases are `start`, `step` for the body of a step but the first, which may compile or search, and `around` for what
    the harness itself does between steps.
    """

    def __init__(self, ledger: Ledger, folder: Path, *, steps: int = 8, **more: Any) -> None:
        attempts = len(list(folder.glob("*"))) if folder.exists() else 0
        super().__init__(seed=0, device="cuda", attempt=folder / f"attempt-{attempts}", **more)
        self.ledger, self.most, self.stop_after = ledger, steps, -1

    def steps(self, total: int, **more: Any) -> Iterator[int]:
        before, self.ledger.phase = self.ledger.phase, "around"
        for step in super().steps(min(total, self.most), **more):
            self.ledger.phase = "step" if step else "first step"
            self.ledger.steps += step > 0
            yield step
            self.ledger.phase = "around"
            self.stopping = step == self.stop_after
        self.ledger.phase = before


@cache
def data() -> Data:
    """A hundred real digits."""
    found = training_data(Digits(), Path(), holdout=False)
    rows = np.concatenate([np.flatnonzero(found.labels == label)[:10] for label in range(10)])
    facts = replace(found.facts, sizes={**found.facts.sizes, "train": len(rows)})
    return Data(facts, Split(np.asarray(found.train.images)[rows], found.labels[rows]))


def inputs(expert: Callable[[], Any] | None = None) -> Inputs:
    """What a plugin is given."""
    plain = toy_inputs()
    if expert is None:
        return plain
    return Inputs(plain.transform, {"experts": PrerequisiteOutput(PLAN, "", {"000": expert()})})


def transform() -> Transform:
    """The preprocessing."""
    return toy_inputs().transform


def coreset(convention: str = "class") -> Coreset:
    """Digits as a coreset, two of each class."""
    labels = data().labels
    rows = np.concatenate([np.flatnonzero(labels == label)[:2] for label in range(10)])
    targets: Any = labels[rows]
    if convention == "centred":
        targets = np.eye(10, dtype=np.float32)[targets] - 0.1
    return Coreset(
        images=transform().apply(np.asarray(data().train.images)[rows]),
        targets=targets,
        class_ids=labels[rows],
        classes=10,
        convention=convention,  # type: ignore[arg-type]
    )


def snapshots() -> dict[str, np.ndarray]:
    """An expert whose parameters do not matter, for nothing on the device has a value."""
    size = sum(value.numel() for value in EXPERT.build(data().facts.shape, 10, 0).parameters())
    return {f"{epoch:04d}": np.zeros(size, np.float32) for epoch in PLAN.snapshots}


def distil(method: Method, ctx: Watched) -> Coreset:
    """Distil with a method; those that want experts get one."""
    experts = snapshots if isinstance(method, (ReverseKL, ForwardKL, Wasserstein, Contrastive, FunctionSpace)) else None
    method = replace(method, steps=STEPS)  # type: ignore[type-var]
    return method.distil(data(), 1, inputs(experts), ctx)
