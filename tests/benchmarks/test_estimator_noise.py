"""How much of a gradient estimate is noise: rKL's covariance against fKL's difference, on the embedded digits.

    pytest tests/benchmarks/test_estimator_noise.py -s -m benchmark

Real images as a coreset, an expert of width 16, windows that start at epochs 0, 2, 5 and 8, T 15, sigma 0.01, no
augmentation; rKL with S 10 and real batches of 256, fKL with S 5, as in `bpc:digits`. Printed are the cosine of two
independent estimates, that of an estimate with one of many draws (and all data), and the ratio of their norms. Asserted
is only that fKL's few draws agree better with each other than rKL's. The second part asks how rKL had best spend its
forward passes, with `conv-bn`: on draws or on real images, S B being the same.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from expert_digits import cosine, digits, trajectory

from bpcbench_bpc.forward_kl import ForwardKL
from bpcbench_bpc.method import TrajectoryMethod
from bpcbench_bpc.problem import Augmented, Problem
from bpcbench_bpc.reverse_kl import ReverseKL
from bpcbench_torch.flat import FlatNetwork
from bpcbench_torch.networks import ConvBN, ConvIN

METHODS = {
    "bpc-rkl": (ReverseKL(inner_steps=15, draws=10, batch=256), ReverseKL(inner_steps=15, draws=600, batch=1437)),
    "bpc-fkl": (ForwardKL(inner_steps=15, draws=5), ForwardKL(inner_steps=15, draws=300)),
}
REPEATS = 6


CONV_IN = ConvIN(width=16, growth=1, order="conv-first", init="torch", eps=1e-5)


class Setting:
    """Real digits as a coreset, and an expert's trajectory."""

    def __init__(self, network: ConvIN | ConvBN, ipc: int) -> None:
        torch.set_num_threads(1)
        self.images, self.labels = digits()
        self.network = FlatNetwork(network.build((1, 8, 8), 10, 0))
        self.expert = trajectory(self.network, self.images, self.labels, 9)
        self.rows = torch.cat([(self.labels == label).nonzero()[:ipc, 0] for label in range(10)])

    def gradient(self, method: TrajectoryMethod, start: int, seed: int) -> torch.Tensor:
        """Return one estimate, with noise and real images of a seed."""
        generator = torch.Generator().manual_seed(seed)
        real = torch.randperm(len(self.images), generator=generator)[: method.batch_used()]
        problem = Problem(
            network=self.network,
            window=lambda ahead: self.expert[start + ahead].clone(),
            images=self.images[self.rows].clone().requires_grad_(),
            classes=self.labels[self.rows],
            logits=None,
            rate=torch.tensor(0.05),
            choose=Augmented,
            normal=lambda *shape: torch.randn(shape, generator=generator),
            real=lambda: (self.images[real], self.labels[real]),
            examples=len(self.images),
        )
        return method.estimate(problem).gradients[0]

    def noise(self, few: TrajectoryMethod, start: int, wanted: torch.Tensor) -> tuple[float, float, float]:
        """Return the cosine of two estimates, that with one of many draws, and the ratio of their norms."""
        found = [self.gradient(few, start, seed) for seed in range(REPEATS)]
        among = float(np.mean([cosine(one, other) for one, other in combinations(found, 2)]))
        to_it = float(np.mean([cosine(one, wanted) for one in found]))
        return among, to_it, float(np.mean([float(one.norm() / wanted.norm()) for one in found]))


@pytest.mark.benchmark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("ipc", [1, 10])
def test_the_noise_of_an_estimate(ipc: int) -> None:
    setting = Setting(CONV_IN, ipc)
    print(
        f"\nipc {ipc}\n| method | start | two estimates | with many draws | ratio of norms |\n|---|---:|---:|---:|---:|"
    )
    agreement: dict[str, list[float]] = {name: [] for name in METHODS}
    for name, (few, many) in METHODS.items():
        for start in (0, 2, 5, 8):
            among, to_it, ratio = setting.noise(few, start, setting.gradient(many, start, 99))
            print(f"| {name} | {start} | {among:.2f} | {to_it:.2f} | {ratio:.1f} |", flush=True)
            agreement[name].append(among)
    assert np.mean(agreement["bpc-fkl"]) > np.mean(agreement["bpc-rkl"])


@pytest.mark.benchmark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("ipc", [1, 10])
def test_draws_or_real_images(ipc: int) -> None:
    setting = Setting(ConvBN(width=16), ipc)
    many = ReverseKL(inner_steps=15, draws=600, batch=1437)
    wanted = {start: setting.gradient(many, start, 99) for start in (0, 2, 5, 8)}
    print(f"\nipc {ipc}\n| S | B | two estimates | with many draws | ratio of norms |\n|---:|---:|---:|---:|---:|")
    for draws, batch in ((10, 256), (20, 128), (40, 64), (80, 32)):
        few = ReverseKL(inner_steps=15, draws=draws, batch=batch)
        found = np.mean([setting.noise(few, start, wanted[start]) for start in wanted], axis=0)
        print(f"| {draws} | {batch} | {found[0]:.2f} | {found[1]:.2f} | {found[2]:.1f} |", flush=True)
        assert np.isfinite(found).all()
