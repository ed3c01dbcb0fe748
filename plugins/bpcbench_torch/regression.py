"""Regression of a new network on a coreset's real-valued targets, shared by `vi`, `frepo` and `rcig`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from bpcbench.api import Context, Network
from bpcbench.records import Coreset
from bpcbench_torch.stacked import StackedNetworks
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


def regress_together(
    coreset: Coreset,
    network: Network,
    ctx: Context,
    seeds: Sequence[int],
    *,
    steps: int,
    rate: Callable[[int], float],
    rows: int,
    augmentation: str,
    label_scale: float,
    eps: float = 1e-8,
) -> list[nn.Module]:
    """Return the networks that `regress` returns for each of these seeds, up to rounding, trained in one loop.

    Initial values, rows and augmentations are those that `regress` draws. Only the networks are computed together.
    """
    shape = coreset.images.shape[1:]
    model = StackedNetworks([network.build(shape, coreset.classes, seed).to(ctx.device) for seed in seeds])
    images, targets = tensors(coreset, label_scale, ctx.device)
    weights = relative_weights(coreset, ctx.device)
    optimizer = torch.optim.Adam(model.parameters(), rate(0), eps=eps)
    generators = [torch.Generator(ctx.device).manual_seed(seed) for seed in seeds]
    choosers = [torch.Generator().manual_seed(seed) for seed in seeds]
    augment = strategy(augmentation, shape[0])
    model.train()
    state = {"model": model, "optimizer": optimizer}
    state |= {f"generator.{index}": generator for index, generator in enumerate(generators)}
    state |= {f"chooser.{index}": chooser for index, chooser in enumerate(choosers)}
    losses = torch.func.vmap(
        lambda outputs, y, w: loss_for("centred", outputs, y, w), in_dims=(0, 0, None if weights is None else 0)
    )
    for step in ctx.steps(steps, state=state, what=f"{len(seeds)} networks"):
        batches = []
        for generator, chooser in zip(generators, choosers, strict=True):
            x, y, w = images, targets, weights
            if len(x) > rows:
                chosen = torch.randperm(len(x), generator=generator, device=x.device)[:rows]
                x, y, w = x[chosen], y[chosen], None if w is None else w[chosen]
            batches.append((augment(x, generator, chooser=chooser), y, w))
        xs, ys, ws = (None if part[0] is None else _stack(part) for part in zip(*batches, strict=True))
        optimizer.param_groups[0]["lr"] = rate(step)
        with features_in(ctx.precision, ctx.device):
            outputs = model(xs)
        loss = losses(outputs.float(), ys, ws)
        optimizer.zero_grad(set_to_none=True)
        loss.sum().backward()
        optimizer.step()
        ctx.log(loss=loss[0], worst_loss=loss.max())
    return model.eval().separated()


def _stack(parts: Sequence[Tensor]) -> Tensor:
    """Return tensors with an axis in front; the same tensor for all is not copied."""
    if all(part is parts[0] for part in parts):
        return parts[0].expand(len(parts), *parts[0].shape)
    return torch.stack(list(parts))
