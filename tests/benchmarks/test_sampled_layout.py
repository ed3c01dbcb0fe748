"""Sampled inference on grey images: the energy's gradient with them channels last against that without the option.

    pytest tests/benchmarks/test_sampled_layout.py -n 0 -s -m benchmark

CPU seconds of one chain's energy and gradient, one thread, 28x28 pixels. Both layouts take turns, and a ratio is the
median over rounds. `module` trains the same network as a module, as the inference `network` does. BPCBENCH_ROUNDS sets
the number of rounds. Numbers are in docs/speed.md.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from bpcbench_torch.flat import FlatNetwork
from bpcbench_torch.networks import ConvBN, ConvIN, ConvNetwork
from bpcbench_torch.potential import CoresetPotential, Prior

ROUNDS = int(os.environ.get("BPCBENCH_ROUNDS", "7"))
SECONDS = 0.2
"""About how long a layout computes in a round."""
LARGEST = 1.1
"""More than this share of the plain layout's time would mean that the option slows down."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.benchmark
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rows", [10, 100])
@pytest.mark.parametrize("width", [8, 32])
@pytest.mark.parametrize("order", ["norm-first", "conv-first"])
@pytest.mark.parametrize("cls", [ConvBN, ConvIN])
def test_grey_images_in_both_layouts(cls: type[ConvNetwork], order: str, width: int, rows: int) -> None:
    module = cls(width=width, order=order).build((1, 28, 28), 10, 0)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(rows, 1, 28, 28, generator=generator), torch.arange(rows) % 10
    flats = {"plain": FlatNetwork(module), "channels last": FlatNetwork(module, channels_last=True)}
    prior = Prior.of("l2", None, flats["plain"].size)
    theta = flats["plain"].initial()[None]

    def sampled(flat: FlatNetwork) -> Callable[[], object]:
        potential = CoresetPotential(flat, images, labels, "class", prior)
        return lambda: potential(theta)

    def trained() -> None:
        module.zero_grad()
        F.cross_entropy(module(images), labels).backward()

    tried = {**{name: sampled(flat) for name, flat in flats.items()}, "module": trained}
    count = max(1, round(SECONDS / min(taken(tried["plain"], 1) for _ in range(3))))
    rounds = [{name: taken(one, count) for name, one in tried.items()} for _ in range(ROUNDS)]
    shares = {name: statistics.median(found[name] / found["plain"] for found in rounds) for name in tried}
    plain = 1e3 * statistics.median(found["plain"] for found in rounds)
    where = "channels last" if flats["channels last"].channels_last else "contiguous, with or without the option"
    print(f"\n{module.norm}, {order}, width {width}, n^ {rows}: {where}; {plain:.3g} CPU ms, ", end="")
    print(", ".join(f"{name} {share:.2f}" for name, share in shares.items()), f"load {os.getloadavg()[0]:.1f}")
    assert shares["channels last"] < LARGEST


def taken(one: Callable[[], object], count: int) -> float:
    """Return the CPU seconds of each of so many calls."""
    begin = time.process_time()
    for _ in range(count):
        one()
    return (time.process_time() - begin) / count
