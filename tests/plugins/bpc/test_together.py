"""How many draws are computed together: the same noise, and the same sums up to rounding."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from bpcbench.records import Facts
from bpcbench_bpc.forward_kl import ForwardKL
from bpcbench_bpc.graphs import KEPT_BYTES, kept_graphs
from bpcbench_bpc.problem import Augmented
from bpcbench_bpc.reverse_kl import ReverseKL
from bpcbench_bpc.together import GPU_BYTES, chunks, together
from bpcbench_bpc.trajectories import Trajectories
from bpcbench_torch.augmentation import Augmentation
from bpcbench_torch.memory import FLOAT, sizes, unrolled
from bpcbench_torch.networks import ConvIN

CIFAR = Facts(shape=(3, 32, 32), classes=10, sizes={"train": 50_000, "test": 10_000})
NETWORK = ConvIN(growth=1, order="conv-first", init="torch")


@pytest.mark.parametrize("learned", [False, True], ids=["hard", "learned"])
@pytest.mark.parametrize("method", [ForwardKL, ReverseKL])
@pytest.mark.parametrize("chunk", [1, 2])
def test_more_at_a_time_is_the_same_estimate(make_problem, method, chunk: int, learned: bool) -> None:
    plugin = method(inner_steps=2, sigma=0.2, draws=7, chunk=chunk)

    def estimate(count: int | None) -> list[torch.Tensor]:
        drawn, chooser = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)
        augmentation = Augmentation("dsa")
        problem = make_problem(learned_labels=learned, choose=lambda: Augmented(augmentation.drawn(chooser), drawn))
        return replace(plugin, together=count).estimate(problem).gradients

    one = estimate(None)
    for count in (1, 2, 5, 7, 100):
        for wanted, found in zip(one, estimate(count), strict=True):
            assert wanted.abs().max() > 1e-4
            torch.testing.assert_close(found, wanted)


def test_how_many_are_together() -> None:
    choose = partial(together, chunk=2, draws=30, numbers=None)
    assert [choose(wanted, gpu=False) for wanted in (None, 1, 2, 3, 7, 100)] == [2, 2, 2, 2, 6, 30]
    assert choose(None, gpu=True) == 2
    memory = partial(together, None, chunk=1, draws=30, gpu=True)
    assert memory(numbers=lambda count: 100 + count) == 30
    assert memory(numbers=lambda count: count * GPU_BYTES / FLOAT / 7.5) == 7
    assert memory(numbers=lambda count: count * 1e12) == 1
    assert chunks(4, 4, 2, 7) == [2, 1]


def test_what_is_together_counts_as_memory() -> None:
    """A prediction is for a GPU unless it is said how many draws are together."""
    plan = Trajectories(network=NETWORK)
    for method in (ForwardKL(trajectories=plan, capture=False), ReverseKL(trajectories=plan, capture=False)):
        few, many, chosen = (replace(method, together=count).peak_bytes(CIFAR, 10) or 0 for count in (1, 20, None))
        assert few <= chosen <= few + GPU_BYTES < few + many
        once, twice = (replace(method, capture=capture).peak_bytes(CIFAR, 10) or 0 for capture in (False, True))
        assert 1.1 * once < twice <= 1.6 * once


@pytest.mark.parametrize("ipc", [1, 10, 50])
def test_as_many_graphs_are_kept_as_fit(ipc: int) -> None:
    these = sizes(NETWORK, CIFAR, ipc)
    assert these is not None
    kept = kept_graphs(these, 30)
    assert kept == {1: 30, 10: 12, 50: 1}[ipc]
    if 1 < kept < 30:
        assert FLOAT * unrolled(these, 30, kept, augmented=True) <= KEPT_BYTES
        assert FLOAT * unrolled(these, 30, kept + 1, augmented=True) > KEPT_BYTES


@pytest.mark.parametrize("method", [ForwardKL, ReverseKL])
def test_less_than_one_is_refused(method) -> None:
    with pytest.raises(ValueError, match="together"):
        method(together=0)
