"""Regression of a new network on a coreset's real-valued targets, shared by `vi`, `frepo` and `rcig`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bpcbench.api import Context, Network
from bpcbench.records import Coreset
from bpcbench_torch.strategy import strategy
from bpcbench_torch.targets import centred_targets
from bpcbench_torch.training import features_in, loss_for, relative_weights


def tensors(coreset: Coreset, label_scale: float, device: str) -> tuple[Tensor, Tensor]:
    """Return a coreset's images and its real-valued targets, on the device."""
    images = torch.tensor(coreset.images, device=device)
    return images, torch.tensor(centred_targets(coreset, label_scale), device=device)


def regress(
    coreset: Coreset,
    network: Network,
    ctx: Context,
    *,
    steps: int,
    rate: Callable[[int], float],
    rows: int,
    augmentation: str,
    label_scale: float,
    eps: float = 1e-8,
) -> nn.Module:
    """Return a new network after `steps` Adam steps on 0.5 * mean ||f(x) - y||^2, in evaluation mode.

    The mean is weighted if the coreset has weights. Every step uses `rows` random images if the coreset has more.
    `rate` maps a step to its learning rate, `eps` is Adam's. Precision `bf16` runs forward passes under autocast.
    """
    model: nn.Module = network.build(coreset.images.shape[1:], coreset.classes, ctx.seed).to(ctx.device)
    images, targets = tensors(coreset, label_scale, ctx.device)
    weights = relative_weights(coreset, ctx.device)
    optimizer = torch.optim.Adam(model.parameters(), rate(0), eps=eps)
    generator = torch.Generator(ctx.device).manual_seed(ctx.seed)
    chooser = torch.Generator().manual_seed(ctx.seed)
    augment = strategy(augmentation, coreset.images.shape[1])
    model.train()
    state = {"model": model, "optimizer": optimizer, "generator": generator, "chooser": chooser}
    for step in ctx.steps(steps, state=state, what="network"):
        x, y, w = images, targets, weights
        if len(x) > rows:
            chosen = torch.randperm(len(x), generator=generator, device=x.device)[:rows]
            x, y, w = x[chosen], y[chosen], None if w is None else w[chosen]
        optimizer.param_groups[0]["lr"] = rate(step)
        with features_in(ctx.precision, x.device):
            outputs = model(augment(x, generator, chooser=chooser))
        loss = loss_for("centred", outputs.float(), y, w)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        ctx.log(loss=loss)
    return model.eval()
