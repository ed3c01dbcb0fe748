"""Train one expert and record its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from bpcbench.api import Context
from bpcbench.records import Arrays, Data, Transform
from bpcbench_bpc.trajectories import augmentation_for, snapshot_name
from bpcbench_torch.batches import TrainingImages
from bpcbench_torch.flat import FlatNetwork
from bpcbench_torch.strategy import strategy
from bpcbench_torch.transfer import on_device

if TYPE_CHECKING:
    from bpcbench_bpc.trajectories import Trajectories


def record(plan: Trajectories, data: Data, transform: Transform, ctx: Context) -> Arrays:
    """Return the flat parameters of an expert by epoch; they depend on the plan, the data and `ctx.seed`."""
    network = FlatNetwork(plan.network.build(data.facts.shape, data.facts.classes, ctx.seed).to(ctx.device))
    theta, velocity = network.initial(), torch.zeros(network.size, device=ctx.device)
    epochs = _Epochs(data, transform, plan.batch, ctx)
    augment = strategy(augmentation_for(plan.augmentation, data.facts.shape[0]), data.facts.shape[0])
    generator = torch.Generator(ctx.device).manual_seed(ctx.seed + 1)
    chooser = torch.Generator().manual_seed(ctx.seed + 2)
    # Filled by copying: a snapshot must not share memory with parameters that keep changing.
    kept = torch.zeros(len(plan.snapshots), network.size, dtype=getattr(torch, plan.dtype))
    kept[0].copy_(theta)
    state = {
        "theta": theta,
        "velocity": velocity,
        "order": epochs.order,
        "shuffler": epochs.generator,
        "generator": generator,
        "chooser": chooser,
        "kept": kept,
    }
    for step in ctx.steps(plan.epochs * epochs.batches, state=state, what="updates"):
        epoch, position = divmod(step, epochs.batches)
        images, labels = epochs.batch(position)
        leaf = theta.detach().requires_grad_()
        loss = F.cross_entropy(network(leaf, augment(images, generator, chooser=chooser)), labels)
        (gradient,) = torch.autograd.grad(loss, leaf)
        velocity.mul_(plan.momentum).add_(gradient).add_(theta, alpha=plan.weight_decay)
        late = plan.decay and epoch > plan.epochs // 2 + 1
        theta.sub_(velocity, alpha=plan.lr * (0.1 if late else 1.0))
        ctx.log(loss=loss.detach())
        if position + 1 == epochs.batches and (epoch + 1) % plan.stride == 0:
            kept[(epoch + 1) // plan.stride].copy_(theta)
    return {snapshot_name(epoch): row.numpy() for epoch, row in zip(plan.snapshots, kept, strict=True)}


class _Epochs:
    """The training data in shuffled batches; unlike `Batches`, an epoch includes the last, smaller batch."""

    def __init__(self, data: Data, transform: Transform, size: int, ctx: Context) -> None:
        self.size, self.device = size, ctx.device
        self.labels = torch.as_tensor(np.asarray(data.labels), dtype=torch.int64, device=ctx.device)
        self.source = TrainingImages(data.train.images, transform, device=ctx.device)
        self.batches = -(-len(self.labels) // size)
        self.generator = torch.Generator().manual_seed(ctx.seed)
        self.order = torch.arange(len(self.labels))

    def batch(self, position: int) -> tuple[Tensor, Tensor]:
        """Return a batch of the current epoch; position 0 starts a new epoch."""
        if position == 0:
            self.order.copy_(torch.randperm(len(self.order), generator=self.generator))
        rows = self._rows(position)
        following = self._rows(position + 1) if position + 1 < self.batches else None
        return self.source.take(rows, following), self.labels[on_device(rows, self.device)]

    def _rows(self, position: int) -> Tensor:
        return self.order[position * self.size : (position + 1) * self.size].sort().values
