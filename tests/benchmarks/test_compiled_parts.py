"""What `compile_parts: all` is made of, part by part: compiled augmentation and fused Adam against eager and default.

    pytest tests/benchmarks/test_compiled_parts.py -n 0 -s -m benchmark

CPU seconds, one thread. A real batch is augmented without gradients, the rows of a coreset with them, their backward
pass included; random numbers are drawn before. Both variants take turns, and a ratio is the median over rounds. `-k`
chooses operations and sizes, such as `-k "28x28x1 and cutout"`, BPCBENCH_ROUNDS the number of rounds. Numbers are in
docs/speed.md.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import pytest
import torch
from torch import Tensor

from bpcbench_torch.augmentation import Augmentation
from bpcbench_torch.computation import GAIN_ON_CPU, _missing_compiler, compiled
from bpcbench_torch.distillation import _optimizer
from bpcbench_torch.strategy import strategy
from bpcbench_vbpc.method import VBPC

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

SIZES = {"28x28x1": ((1, 28, 28), 10), "32x32x3": ((3, 32, 32), 100)}
"""Shapes of images, and rows of a coreset of ten classes."""
BATCH = 256
ROUNDS = int(os.environ.get("BPCBENCH_ROUNDS", "9"))
SECONDS = 0.05
"""About how long a variant computes in a round."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def variants(operation: str, images: Tensor) -> dict[str, Callable[[], object]]:
    """Return what augments images eagerly and compiled, with the backward pass where they have a gradient."""
    augmentation = Augmentation(operation, "all")
    numbers = augmentation.recorded(images.detach(), torch.Generator().manual_seed(1))[1]

    def repeated(images: Tensor, numbers: tuple[Tensor, ...]) -> Tensor:
        return augmentation.repeated(images, numbers)

    def calling(function: Callable[..., Tensor]) -> Callable[[], object]:
        if images.requires_grad:
            gradient = torch.ones_like(images)
            return lambda: torch.autograd.grad(function(images, numbers), images, gradient)
        return lambda: function(images, numbers)

    return {"eager": calling(repeated), "compiled": calling(compiled(repeated, "default", "cpu"))}


@pytest.mark.parametrize(
    ("size", "operation"),
    [(size, name) for size, (shape, _) in SIZES.items() for name in strategy("paper", shape[0]).operations],
)
def test_an_operation(size: str, operation: str) -> None:
    if need := _missing_compiler("cpu"):
        pytest.skip(f"needs {need}")
    (shape, rows), generator = SIZES[size], torch.Generator().manual_seed(0)
    real = torch.randn(BATCH, *shape, generator=generator)
    learned = torch.randn(rows, *shape, generator=generator, requires_grad=True)
    found = {name: alternated(variants(operation, images)) for name, images in (("real", real), ("rows", learned))}
    both = {name: sum(medians[name] for medians, _ in found.values()) for name in ("eager", "compiled")}
    print(f"\n{size}, {operation}: ", end="")
    print(", ".join(told(name, *one, of="eager") for name, one in found.items()), end="")
    print(f", both {both['compiled'] / both['eager']:.2f}; load {os.getloadavg()[0]:.1f}", flush=True)
    # What is compiled on a CPU gains there by a step's two kinds of calls together.
    assert operation not in GAIN_ON_CPU or both["compiled"] < both["eager"]


@pytest.mark.parametrize("size", SIZES)
def test_adam(size: str) -> None:
    (shape, rows), generator = SIZES[size], torch.Generator().manual_seed(0)

    def stepping(*, fused: bool) -> Callable[[], object]:
        tensors = [torch.randn(rows, *each, generator=generator, requires_grad=True) for each in (shape, (10,))]
        for tensor in tensors:
            tensor.grad = torch.randn(tensor.shape, generator=generator)
        optimizer = _optimizer(VBPC(), *tensors, fused=fused)
        return optimizer.step

    medians, shares = alternated({"default": stepping(fused=False), "fused": stepping(fused=True)})
    print(f"\n{size}, Adam: {told('fused', medians, shares, of='default')}; load {os.getloadavg()[0]:.1f}")
    assert shares["fused"] < 1.0


def alternated(tried: Mapping[str, Callable[[], object]]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the median CPU seconds of each, and the median of its ratios to the first."""
    for one in tried.values():
        taken(one, 3)  # compiles, or makes the state
    first = next(iter(tried))
    counts = {name: max(1, round(SECONDS / min(taken(one, 3) for _ in range(3)))) for name, one in tried.items()}
    rounds = [{name: taken(one, counts[name]) for name, one in tried.items()} for _ in range(ROUNDS)]
    medians = {name: statistics.median(times[name] for times in rounds) for name in tried}
    return medians, {name: statistics.median(times[name] / times[first] for times in rounds) for name in tried}


def told(name: str, medians: Mapping[str, float], shares: Mapping[str, float], *, of: str) -> str:
    """Return the ratio of what is not `of`, and how long that takes."""
    share = next(value for variant, value in shares.items() if variant != of)
    return f"{name} {share:.2f} of {1e3 * medians[of]:.3g} ms"


def taken(one: Callable[[], object], count: int) -> float:
    """Return the CPU seconds of each of so many calls."""
    begin = time.process_time()
    for _ in range(count):
        one()
    return (time.process_time() - begin) / count
