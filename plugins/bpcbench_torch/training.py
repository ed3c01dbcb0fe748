"""Training one torch network on a coreset."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from bpcbench.api import Context
from bpcbench.records import Convention, Coreset
from bpcbench_torch.transfer import on_device

_AUTOCAST = {"float32": None, "bf16": torch.bfloat16}
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def features_in(precision: str, device: str | torch.device) -> torch.autocast:
    """Return the context of a network's passes: `bf16` computes them under autocast, and results are cast back."""
    return torch.autocast(torch.device(device).type, _AUTOCAST[precision], enabled=_AUTOCAST[precision] is not None)


@dataclass(frozen=True)
class Schedule:
    """Settings of Adam; a coreset larger than `batch_size` is used in shuffled batches, a smaller one whole."""

    steps: int
    lr: float
    batch_size: int
    weight_decay: float = 0.0
    cosine: bool = False

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: constant, or decaying to zero along a half cosine."""
        return self.lr * (0.5 + 0.5 * math.cos(math.pi * step / self.steps)) if self.cosine else self.lr


def relative_weights(coreset: Coreset, device: str | torch.device) -> Tensor | None:
    """Return the weights of a coreset's rows divided by their mean, None if all rows count the same."""
    if coreset.weights is None:
        return None
    weights = torch.tensor(coreset.weights, dtype=torch.float64)
    if not bool(weights.isfinite().all()) or float(weights.min()) < 0 or float(weights.sum()) <= 0:
        raise ValueError("the weights of a coreset must be finite and not negative, and not all 0")
    return (weights / weights.mean()).to(device, torch.float32)


def loss_for(convention: Convention, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the loss for a coreset's convention, averaged over rows, each times its relative weight if there are any.

    `class`: -log softmax(f)_y. `probabilities`: -sum_j y_j log softmax(f)_j. `centred`: 0.5 * ||f - y||^2; the outputs
    then estimate one-hot minus 1/k, so their softmax ranks the classes but is far too flat as a probability.
    """
    if weights is not None:
        if convention == "centred":
            return 0.5 * (weights * (outputs - targets).square().sum(1)).mean()
        return (weights * F.cross_entropy(outputs, targets, reduction="none")).mean()
    if convention == "centred":
        return 0.5 * (outputs - targets).square().sum(1).mean()
    return F.cross_entropy(outputs, targets)


def train(model: nn.Module, coreset: Coreset, schedule: Schedule, ctx: Context, *, seed: int, what: str = "") -> None:
    """Train `model`, which is on `ctx.device`, in place, and leave it in evaluation mode.

    Precision `bf16` runs forward passes under autocast; parameters stay float32. Rows count by their weights in the
    loss; the statistics of BatchNorm are those of all rows alike.
    """
    if ctx.precision not in _AUTOCAST:
        raise ValueError(f"torch inferences compute in {' or '.join(_AUTOCAST)}, not in {ctx.precision!r}")
    images = torch.tensor(coreset.images, device=ctx.device)
    targets = torch.tensor(coreset.targets, device=ctx.device)
    targets = targets.long() if coreset.convention == "class" else targets.float()
    weights = relative_weights(coreset, ctx.device)
    generator = torch.Generator().manual_seed(seed)
    order = torch.arange(len(images))
    batches = max(1, len(images) // schedule.batch_size)
    optimizer = torch.optim.Adam(model.parameters(), schedule.lr, weight_decay=schedule.weight_decay)
    state = {"model": model, "optimizer": optimizer, "generator": generator, "order": order}
    model.train()
    for step in ctx.steps(schedule.steps, state=state, what=what):
        x, y, w = images, targets, weights
        if len(images) > schedule.batch_size:
            if step % batches == 0:
                order.copy_(torch.randperm(len(order), generator=generator))
            start = step % batches * schedule.batch_size
            rows = on_device(order[start : start + schedule.batch_size], ctx.device)
            x, y, w = images[rows], targets[rows], None if weights is None else weights[rows]
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        with features_in(ctx.precision, images.device):
            outputs = model(x)
        loss = loss_for(coreset.convention, outputs.float(), y, w)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        ctx.log(loss=loss.detach())
    settle_statistics(model, images, schedule.batch_size, generator)
    model.eval()


@torch.no_grad()
def settle_statistics(model: nn.Module, images: Tensor, batch_size: int, generator: torch.Generator) -> None:
    """Set the running statistics of every BatchNorm to those of `images`, in one pass in training mode.

    Predictions in evaluation mode then depend on these images alone, never on the test batch. More than `batch_size`
    images are split into shuffled batches of nearly equal size, whose statistics are averaged.
    """
    norms = [module for module in model.modules() if isinstance(module, _BATCH_NORMS)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
    model.train()
    parts = [torch.arange(len(images))]
    if len(images) > batch_size:
        # Shuffled, because batches of one class each would miss the variance between classes.
        parts = list(torch.randperm(len(images), generator=generator).tensor_split(-(-len(images) // batch_size)))
    for index, rows in enumerate(parts):
        for norm in norms:
            # The weight of a cumulative average; torch's own, momentum None, reads its counter from the device.
            norm.momentum = 1.0 / (index + 1)
        model(images[on_device(rows, images.device)])
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
