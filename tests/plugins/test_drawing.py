"""Networks drawn anew in place, as pools do on a GPU: the same distribution, the same addresses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

from bpcbench.api import Method
from bpcbench.testing import context, registered, toy_data, toy_inputs
from bpcbench_distill.method import FRePo
from bpcbench_distill.rcig import RCIG
from bpcbench_torch.convnet import _truncated_normal
from bpcbench_torch.networks import ConvBN
from bpcbench_torch.pool import Pool, _start_again
from bpcbench_vbpc.method import VBPC

NETWORK = ConvBN(width=4)


@pytest.mark.parametrize("name", ["conv-bn", "conv-gn", "conv-nn"])
def test_drawing_again_is_like_building_again(name: str) -> None:
    """All is as in a new network, in the tensors that were there; only the order of draws follows the layout."""
    network, shape = registered("network", name)(width=16), (3, 16, 16)
    model = network.build(shape, 10, 0)
    built = {key: value.clone() for key, value in model.state_dict().items()}
    before = {key: value.data_ptr() for key, value in model.state_dict().items()}
    with torch.no_grad():
        for value in model.parameters():
            value.fill_(9.0)
    model(torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)))  # moves BatchNorm's statistics
    model.draw(torch.Generator().manual_seed(7))
    after = model.state_dict()
    assert {key: value.data_ptr() for key, value in after.items()} == before
    for key, value in built.items():
        if value.dim() < 2:  # biases, scales, shifts and statistics
            torch.testing.assert_close(after[key], value, rtol=0, atol=0)
        else:
            assert not torch.equal(after[key], value)
            torch.testing.assert_close(after[key].std(), value.std(), rtol=0.1, atol=0)


def test_the_inverse_of_the_distribution_function_truncates_at_two_sigma() -> None:
    values = torch.empty(50_000)
    _truncated_normal(values, 0.3, torch.Generator().manual_seed(0))
    wanted = scipy.stats.truncnorm(-2, 2, scale=0.3)
    assert float(values.abs().max()) <= 0.6 + 1e-6
    assert scipy.stats.kstest(values.numpy(), wanted.cdf).pvalue > 0.01
    np.testing.assert_allclose(values.std(), wanted.std(), rtol=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_pool_on_a_gpu_keeps_its_addresses() -> None:
    pool = Pool(NETWORK, (1, 8, 8), 3, size=1, updates=1, lr=1e-3, seed=0, device="cuda")
    before = [value.data_ptr() for value in pool.models[0].parameters()]
    first = [value.clone() for value in pool.models[0].parameters()]
    for _ in range(2):
        pool.draw()
        pool.update(lambda model: model(torch.ones(4, 1, 8, 8, device="cuda")).square().mean())
    assert [value.data_ptr() for value in pool.models[0].parameters()] == before
    assert not torch.equal(next(pool.models[0].parameters()), first[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    "method",
    [
        VBPC(steps=3, network=NETWORK, batch=16, pool=2, updates=1),
        FRePo(steps=3, network=NETWORK, batch=16, pool=2, updates=1, evaluation_steps=2, temperature_share=0.1),
        RCIG(steps=3, network=NETWORK, batch=16, pool=2, inner_steps=3, hvp_steps=2),
    ],
    ids=lambda method: method.name,
)
def test_it_distils_on_a_gpu(method: Method, tmp_path: Path) -> None:
    coreset = method.distil(toy_data(), 2, toy_inputs(), context(tmp_path, device="cuda"))
    assert np.isfinite(coreset.images).all()


def test_an_adam_that_starts_again_is_a_new_one_in_the_same_memory() -> None:
    def steps(optimizer: torch.optim.Optimizer, leaf: torch.Tensor) -> None:
        for factor in (1.0, -0.3, 2.0):
            leaf.grad = factor * torch.arange(1.0, 4.0)
            optimizer.step()

    used, new = (torch.ones(3, requires_grad=True) for _ in range(2))
    again, first = (torch.optim.Adam([leaf], 0.1, fused=True) for leaf in (used, new))
    steps(again, used)
    before = [value.data_ptr() for value in again.state[used].values()]
    assert not torch.equal(used, new)
    with torch.no_grad():
        used.fill_(1.0)
    _start_again(again)
    steps(again, used)
    steps(first, new)
    assert torch.equal(used, new)
    assert [value.data_ptr() for value in again.state[used].values()] == before
