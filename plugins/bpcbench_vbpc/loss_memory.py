"""The memory of VBPC's outer loss, by n^ x n^ matrices or naively: the training columns of the paper's memory table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bpcbench.records import Facts
from bpcbench_torch.peak import peak_allocation

if TYPE_CHECKING:
    from bpcbench_vbpc.method import VBPC

LOSS_MEMORY = "cost/loss MB"
"""What `measure` logs."""


def loss_memory(method: VBPC, facts: Facts, ipc: int, device: str) -> int:
    """Return the peak of the bytes that the loss and its gradient in features and targets allocate.

    The features of the coreset and of a real batch are given, of the sizes of the method's own; it depends on nothing
    else. Networks, images and the features themselves are not counted, as they are the same for both forms.
    """
    with torch.no_grad():
        model = method.network.build(facts.shape, facts.classes, 0).eval()
        width = model.features(torch.zeros(1, *facts.shape)).shape[1]
    generator = torch.Generator().manual_seed(0)
    count, rows = facts.classes, ipc * facts.classes

    def drawn(size: int) -> torch.Tensor:
        return torch.randn(size, width, generator=generator).relu().to(device)

    features, real = drawn(rows).requires_grad_(), drawn(method.batch)
    targets = (torch.eye(count, device=device).repeat(ipc, 1) - 1 / count).requires_grad_()
    labels = torch.arange(method.batch, device=device) % count

    def compute() -> object:
        values = method.outer(features, targets, real, labels, facts.sizes["train"])
        return torch.autograd.grad(values["loss"], [features, targets])

    compute()  # what libraries allocate at their first call is not the loss's
    return peak_allocation(compute, device)
