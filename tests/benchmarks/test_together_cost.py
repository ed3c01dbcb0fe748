"""CPU seconds of five evaluation seeds fitted one after another, and together, in the same run.

    pytest tests/benchmarks/test_together_cost.py -s -m benchmark -n 0

One thread, float32, ConvNets with BatchNorm. Above 1 means that together takes less. Small networks spend their time in
calls, which are shared; wide ones in convolutions, which a CPU computes no faster in groups.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bpcbench.api import Inference
from bpcbench.records import Coreset
from bpcbench.testing import context, toy_inputs
from bpcbench_torch.networks import ConvBN
from bpcbench_torch.samplers import SGHMCInference
from bpcbench_vbpc.inference import VariationalInference

SEEDS = 5
CASES = ((8, 8, 10), (8, 32, 10), (8, 32, 100), (32, 16, 10), (32, 128, 10))
"""Side of the images, width, images."""


def seconds(function: Callable[[int], object], repeats: int = 2) -> float:
    """Return the CPU seconds of the best call."""
    times = []
    for number in range(repeats):
        start = time.process_time()
        function(number)
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.benchmark
@pytest.mark.timeout(3600)
def test_seeds_together_against_one_by_one(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    print("\n| | pixels | width | images | one by one, s | together, s | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for side, width, rows in CASES:
        images = np.random.default_rng(0).standard_normal((rows, 1, side, side)).astype(np.float32)
        coreset = Coreset(images=images, targets=np.arange(rows) % 10, classes=10)
        network, inputs = ConvBN(width=width), toy_inputs()
        inferences: list[Inference] = [VariationalInference(steps=10), SGHMCInference(burn=2, samples=4, thin=1)]
        for plugin in inferences:
            folder = tmp_path / f"{plugin.name}-{side}-{width}-{rows}"

            def alone(number: int) -> None:
                for seed in range(SEEDS):
                    plugin.fit(coreset, network, inputs, context(folder / f"{number}-{seed}", seed=seed))  # noqa: B023

            def together(number: int) -> None:
                ctx = context(folder / f"{number}-all")  # noqa: B023
                plugin.fit_together(coreset, network, inputs, ctx, list(range(SEEDS)))  # noqa: B023

            before, after = seconds(alone), seconds(together)
            words = f"| {plugin.name} | {side} | {width} | {rows} "
            print(f"{words}| {before:.2f} | {after:.2f} | {before / after:.1f} |", flush=True)
