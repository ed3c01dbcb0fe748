"""CPU time and memory of one outer iteration of the methods that follow trajectories, against a floor.

    pytest tests/benchmarks/test_trajectory_cost.py -s -m benchmark

Digits-sized: 8x8, conv-in of width 128 and depth 3 (298,506 parameters), 100 images, T 30, S 30, B 1000, float32, DSA,
one thread, a process per method. The floor are the forward and backward calls that the estimator cannot avoid, on the
bare module, in turns with the method in the same process: T gradients of the weights and, for fKL, 2 S gradients of
the images; for rKL, S of them and S forward passes of 1000 real images, 200 at a time; for W, T gradients that are
differentiated once more; for CD, T (here 30) and 2; for FBPC (J = 5), T, 2 and 9 forward passes. Memory is the peak of
the resident set above that just before the first iteration.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

METHODS = ("bpc-fkl", "bpc-w", "bpc-rkl", "bpc-cd", "fbpc")
REPEATS = int(os.environ.get("BPCBENCH_REPEATS", "3"))
ALLOWED = 1.2

CASE = """
import json, sys, time
import torch
import torch.nn.functional as F
from bpcbench_bpc.contrastive import Contrastive
from bpcbench_bpc.forward_kl import ForwardKL
from bpcbench_bpc.function_space import FunctionSpace
from bpcbench_bpc.problem import Augmented, Problem
from bpcbench_bpc.reverse_kl import ReverseKL
from bpcbench_bpc.trajectories import Trajectories
from bpcbench_bpc.wasserstein import Wasserstein
from bpcbench_torch.flat import FlatNetwork
from bpcbench_torch.networks import ConvIN
from bpcbench_torch.strategy import strategy

name, repeats, graphs = sys.argv[1], int(sys.argv[2]), sys.argv[3]
T, S, B, J, N = 30, 30, 1000, 5, 100
torch.set_num_threads(1)
network = ConvIN(width=128, growth=1, depth=3, order="conv-first", init="torch")
plan = Trajectories(network=network)
module = network.build((1, 8, 8), 10, 0)
flat = FlatNetwork(module)
generator = torch.Generator().manual_seed(0)
start = flat.initial()
window = [start + 0.01 * e * torch.randn(flat.size, generator=generator) for e in range(8)]
images = torch.randn(N, 1, 8, 8, generator=generator, requires_grad=True)
real, labels = torch.randn(B, 1, 8, 8, generator=generator), torch.arange(B) % 10
classes = torch.arange(N) // 10
method = {
    "bpc-fkl": ForwardKL(inner_steps=T, draws=S),
    "bpc-w": Wasserstein(inner_steps=T, graphs=None if graphs == "all" else int(graphs)),
    "bpc-rkl": ReverseKL(inner_steps=T, draws=S, batch=B),
    "bpc-cd": Contrastive(inner_steps=T),
    "fbpc": FunctionSpace(inner_steps=T, points=J, trajectories=plan),
}[name]
problem = Problem(
    network=flat, window=lambda e: window[e].clone(), images=images, classes=classes, logits=None,
    rate=torch.tensor(0.03, requires_grad=True),
    choose=lambda: Augmented(strategy("dsa-grey", 1).drawn(generator), generator),
    normal=lambda *shape: torch.randn(shape, generator=generator), real=lambda: (real, labels), examples=1437,
)
weights = list(module.parameters())


def of_weights(twice=False):
    loss = F.cross_entropy(module(images if twice else images.detach()), classes)
    return torch.autograd.grad(loss, weights, create_graph=twice)


def of_images():
    x = images.detach().requires_grad_()
    for weight in weights:
        weight.requires_grad_(False)
    torch.autograd.grad(F.cross_entropy(module(x), classes), x)
    for weight in weights:
        weight.requires_grad_(True)


@torch.no_grad()
def forward(x):
    for part in x.split(200):
        module(part)


def floor():
    if name == "bpc-w":
        # Graph by graph, so that the floor is one of time; keeping all of them takes no less.
        for _ in range(T):
            slopes = of_weights(twice=True)
            torch.autograd.grad(slopes, [*weights, images], [torch.ones_like(slope) for slope in slopes])
        return
    for _ in range(T):
        of_weights()
    for _ in range({"bpc-fkl": 2 * S, "bpc-rkl": S, "bpc-cd": 2, "fbpc": 2}[name]):
        of_images()
    for _ in range({"bpc-rkl": S}.get(name, 0)):
        forward(real)
    for _ in range({"fbpc": 2 * J - 1}.get(name, 0)):
        forward(images)


def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


of_weights(), of_images(), forward(real)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # sets the high-water mark to the present
before = status("VmRSS")
method.estimate(problem)
memory = status("VmHWM") - before
times = {"ours": [], "floor": []}
for _ in range(repeats):
    for what, call in (("ours", lambda: method.estimate(problem)), ("floor", floor)):
        begin = time.process_time()
        call()
        times[what].append(time.process_time() - begin)
print(json.dumps({**times, "memory": memory}))
"""


def measure(name: str, graphs: str = "all", repeats: int = REPEATS) -> dict:
    command = [sys.executable, "-c", CASE, name, str(repeats), graphs]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.benchmark
@pytest.mark.timeout(7200)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux to measure a peak of memory")
def test_an_iteration_costs_little_more_than_its_kernels() -> None:
    print("\n| method | CPU s | floor | ratio | extra MB |\n|---|---:|---:|---:|---:|")
    ratios = {}
    for name, graphs in [*((name, "all") for name in METHODS), ("bpc-w", "15"), ("bpc-w", "0")]:
        found = measure(name, graphs)
        ours, floor = min(found["ours"]), min(found["floor"])
        label = name if graphs == "all" else f"{name}, graphs {graphs}"
        print(f"| {label} | {ours:.2f} | {floor:.2f} | {ours / floor:.2f} | {found['memory']:.0f} |", flush=True)
        if graphs == "all":
            ratios[name] = ours / floor
    assert {name: ratio for name, ratio in ratios.items() if ratio > ALLOWED} == {}
