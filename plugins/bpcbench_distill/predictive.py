"""Fitting and using a network that was regressed on a coreset's labels, in torch."""

from __future__ import annotations

import torch
from torch import nn

from bpcbench.api import Context, Network, Predictive
from bpcbench.records import Array, Arrays, Coreset
from bpcbench_distill.inference import RegressionInference
from bpcbench_torch.predictive import load_arrays, state_arrays
from bpcbench_torch.strategy import strategy
from bpcbench_torch.targets import centred_targets
from bpcbench_torch.training import settle_statistics

_CHUNK = 250


class RegressionPredictive(Predictive):
    """log softmax(f(x) / temperature) of a network in evaluation mode."""

    def __init__(self, model: nn.Module, temperature: float) -> None:
        self.model, self.temperature = model.eval(), temperature
        self.device = next(model.parameters()).device

    @torch.inference_mode()
    def outputs(self, images: Array) -> torch.Tensor:
        """Return f(x), which estimates one-hot minus 1/k."""
        parts = torch.tensor(images, dtype=torch.float32).split(_CHUNK)
        return torch.cat([self.model(part.to(self.device)).float() for part in parts])

    def log_probs(self, images: Array) -> Array:
        """Return log-probabilities of images in network space."""
        return (self.outputs(images) / self.temperature).log_softmax(1).cpu().numpy()

    def arrays(self) -> Arrays:
        """Return the network."""
        return state_arrays([self.model])


def fit(inference: RegressionInference, coreset: Coreset, network: Network, ctx: Context) -> RegressionPredictive:
    """Train a fresh network on the coreset; BatchNorm then uses statistics of the coreset alone."""
    model: nn.Module = network.build(coreset.images.shape[1:], coreset.classes, ctx.seed).to(ctx.device)
    images = torch.tensor(coreset.images, device=ctx.device)
    targets = torch.tensor(centred_targets(coreset, inference.label_scale), device=ctx.device)
    optimizer = torch.optim.Adam(model.parameters(), inference.lr)
    generator = torch.Generator(ctx.device).manual_seed(ctx.seed)
    chooser = torch.Generator().manual_seed(ctx.seed)
    augment = strategy(inference.augmentation, coreset.images.shape[1])
    model.train()
    state = {"model": model, "optimizer": optimizer, "generator": generator, "chooser": chooser}
    for step in ctx.steps(inference.steps, state=state, what="network"):
        x, y = images, targets
        if len(x) > inference.rows:
            rows = torch.randperm(len(x), generator=generator, device=x.device)[: inference.rows]
            x, y = x[rows], y[rows]
        optimizer.param_groups[0]["lr"] = inference.rate(step)
        loss = 0.5 * (model(augment(x, generator, chooser=chooser)) - y).square().sum(1).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        ctx.log(loss=loss.detach())
    settle_statistics(model, images, inference.rows, torch.Generator().manual_seed(ctx.seed))
    return RegressionPredictive(model, _temperature(inference, coreset))


def restore(
    inference: RegressionInference, arrays: Arrays, coreset: Coreset, network: Network, ctx: Context
) -> RegressionPredictive:
    """Return the predictive of a kept network."""
    model: nn.Module = network.build(coreset.images.shape[1:], coreset.classes, ctx.seed)
    load_arrays(model, arrays, 0)
    return RegressionPredictive(model.to(ctx.device), _temperature(inference, coreset))


def _temperature(inference: RegressionInference, coreset: Coreset) -> float:
    if inference.temperature is not None:
        return inference.temperature
    return coreset.recipe.scalars.get("temperature", 1.0 / coreset.classes)
