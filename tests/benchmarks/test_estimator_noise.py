"""How much of a gradient estimate is noise: rKL's covariance against fKL's difference, on the embedded digits.

    pytest tests/benchmarks/test_estimator_noise.py -s -m benchmark

Real images as a coreset, an expert of width 16, windows that start at epochs 0, 2, 5 and 8, T 15, sigma 0.01, no
augmentation; rKL with S 10 and real batches of 256, fKL with S 5, as in `bpc:digits`. Printed are the cosine of two
independent estimates, that of an estimate with one of many draws (and all data), and the ratio of their norms. Asserted
is only that fKL's few draws agree better with each other than rKL's.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from expert_digits import cosine, digits, trajectory

from bpcbench_bpc.forward_kl import ForwardKL
from bpcbench_bpc.method import TrajectoryMethod
from bpcbench_bpc.problem import Problem
from bpcbench_bpc.reverse_kl import ReverseKL
from bpcbench_torch.flat import FlatNetwork
from bpcbench_torch.networks import ConvIN

METHODS = {
    "bpc-rkl": (ReverseKL(inner_steps=15, draws=10, batch=256), ReverseKL(inner_steps=15, draws=600, batch=1437)),
    "bpc-fkl": (ForwardKL(inner_steps=15, draws=5), ForwardKL(inner_steps=15, draws=300)),
}
REPEATS = 6


@pytest.mark.benchmark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("ipc", [1, 10])
def test_the_noise_of_an_estimate(ipc: int) -> None:
    torch.set_num_threads(1)
    images, labels = digits()
    network = FlatNetwork(
        ConvIN(width=16, growth=1, order="conv-first", init="torch", eps=1e-5).build((1, 8, 8), 10, 0)
    )
    expert = trajectory(network, images, labels, 9)
    rows = torch.cat([(labels == label).nonzero()[:ipc, 0] for label in range(10)])

    def gradient(method: TrajectoryMethod, start: int, seed: int, batch: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        real = torch.randperm(len(images), generator=generator)[:batch]
        problem = Problem(
            network=network,
            window=lambda ahead: expert[start + ahead].clone(),
            images=images[rows].clone().requires_grad_(),
            classes=labels[rows],
            logits=None,
            rate=torch.tensor(0.05),
            augment=lambda pictures: pictures,
            normal=lambda *shape: torch.randn(shape, generator=generator),
            real=lambda: (images[real], labels[real]),
            examples=len(images),
        )
        return method.estimate(problem).gradients[0]

    print(
        f"\nipc {ipc}\n| method | start | two estimates | with many draws | ratio of norms |\n|---|---:|---:|---:|---:|"
    )
    agreement: dict[str, list[float]] = {name: [] for name in METHODS}
    for name, (few, many) in METHODS.items():
        for start in (0, 2, 5, 8):
            wanted = gradient(many, start, 99, len(images))
            found = [gradient(few, start, seed, 256) for seed in range(REPEATS)]
            among = float(np.mean([cosine(one, other) for one, other in combinations(found, 2)]))
            to_it = float(np.mean([cosine(one, wanted) for one in found]))
            ratio = float(np.mean([float(one.norm() / wanted.norm()) for one in found]))
            print(f"| {name} | {start} | {among:.2f} | {to_it:.2f} | {ratio:.1f} |", flush=True)
            agreement[name].append(among)
    assert np.mean(agreement["bpc-fkl"]) > np.mean(agreement["bpc-rkl"])
