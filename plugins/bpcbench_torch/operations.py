"""Floating-point operations of training and prediction with a network, for plans.

Counted are the multiplications and additions of convolutions and matrix products of networks, by torch's own counter; a
gradient step is three forward passes. Norms, augmentation, optimisers and linear algebra are not counted unless said.
"""

from __future__ import annotations

import functools

from bpcbench.api import Network

STEP = 3
"""Forward passes that a forward and a backward pass are worth."""


def forward(network: Network, shape: tuple[int, int, int], classes: int) -> float | None:
    """Return the operations of the forward pass of one image; None for networks of other frameworks."""
    return _counted(network, shape, classes) if network.framework == "torch" else None


@functools.lru_cache(maxsize=256)
def _counted(network: Network, shape: tuple[int, int, int], classes: int) -> float:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.random.fork_rng(devices=()):
        model = network.build(shape, classes, 0).eval().to("meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, *shape, device="meta"))
    return float(counter.get_total_flops())
