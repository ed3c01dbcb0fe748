"""The variational predictive of the last layer, in torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from bpcbench.api import Context, Network
from bpcbench.records import Array, Arrays, Coreset, Predicted
from bpcbench_torch.device_predictive import CHUNK, DevicePredictive
from bpcbench_torch.peak import peak_allocation
from bpcbench_torch.predictive import load_arrays, state_arrays
from bpcbench_torch.regression import regress, regress_together, tensors
from bpcbench_torch.training import features_in, settle_statistics
from bpcbench_vbpc import naive, posterior
from bpcbench_vbpc.inference import VariationalInference
from bpcbench_vbpc.likelihood import mean_field_log_probs, monte_carlo_log_probs

BMA_MEMORY = "cost/BMA MB"
"""What `measure` logs: the peak of the closed form and the predictive of one forward pass."""


class VariationalPredictive(DevicePredictive):
    """The predictive of a trained network whose last layer has the posterior `q`; stores n^ h + 2 n^^2 numbers."""

    def __init__(
        self,
        inference: VariationalInference,
        model: nn.Module,
        q: posterior.Posterior,
        seed: int,
        precision: str = "float32",
    ) -> None:
        self.inference, self.model, self.q, self.seed, self.precision = inference, model.eval(), q, seed, precision
        self.device = next(model.parameters()).device

    def predict_tensor(self, images: Tensor) -> Predicted:
        """Return log-probabilities and the predictive variance of the logits."""
        rows = [self._logits(part) for part in images.split(CHUNK)]
        mean, variance = (torch.cat(parts) for parts in zip(*rows, strict=True))
        if self.inference.samples:
            # Seeded for every batch, so that a row does not depend on how the split is divided into batches.
            generator = torch.Generator().manual_seed(self.seed)
            log_probs = monte_carlo_log_probs(mean, variance, self.inference.samples, generator)
        else:
            log_probs = mean_field_log_probs(mean, variance, factor=self.inference.variance_factor)
        return Predicted(log_probs.float().cpu().numpy(), {"variance": variance.float().cpu().numpy()})

    def _logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.q.predict(_features(self.model, images.to(self.device), self.precision))

    def full(self) -> tuple[Array, Array]:
        """Return the posterior: the means m*, (h, k), and the covariance V*, (h, h), shared by all classes."""
        mean, covariance = self.q.full()
        return mean.cpu().numpy(), covariance.cpu().numpy()

    def arrays(self) -> Arrays:
        """Return the network's arrays; the posterior is recomputed from them and the coreset."""
        return state_arrays([self.model])


def fit(inference: VariationalInference, coreset: Coreset, network: Network, ctx: Context) -> VariationalPredictive:
    """Train a new network on the coreset and compute the closed-form posterior of its last layer."""
    model = regress(
        coreset,
        network,
        ctx,
        steps=inference.steps,
        rate=lambda step: inference.lr,
        rows=inference.rows,
        augmentation=inference.augmentation,
        label_scale=inference.label_scale,
    )
    images, targets = tensors(coreset, inference.label_scale, ctx.device)
    return _settled(inference, model, images, targets, coreset, ctx, ctx.seed)


def fit_together(
    inference: VariationalInference, coreset: Coreset, network: Network, ctx: Context, seeds: Sequence[int]
) -> list[VariationalPredictive]:
    """Return what `fit` returns for each of these seeds, up to rounding; the networks are trained as one."""
    models = regress_together(
        coreset,
        network,
        ctx,
        seeds,
        steps=inference.steps,
        rate=lambda step: inference.lr,
        rows=inference.rows,
        augmentation=inference.augmentation,
        label_scale=inference.label_scale,
    )
    images, targets = tensors(coreset, inference.label_scale, ctx.device)
    return [
        _settled(inference, model, images, targets, coreset, ctx, seed)
        for model, seed in zip(models, seeds, strict=True)
    ]


def _settled(
    inference: VariationalInference,
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    coreset: Coreset,
    ctx: Context,
    seed: int,
) -> VariationalPredictive:
    """Return the predictive of a network that was trained with a seed."""
    if inference.statistics == "settled":
        settle_statistics(model, images, inference.rows, torch.Generator().manual_seed(seed))
    return _predictive(inference, model, images, targets, coreset, ctx, seed)


def restore(
    inference: VariationalInference, arrays: Arrays, coreset: Coreset, network: Network, ctx: Context
) -> VariationalPredictive:
    """Return the predictive of a stored network."""
    model: nn.Module = network.build(coreset.images.shape[1:], coreset.classes, ctx.seed)
    load_arrays(model, arrays, 0)
    images, targets = tensors(coreset, inference.label_scale, ctx.device)
    return _predictive(inference, model.to(ctx.device), images, targets, coreset, ctx, ctx.seed)


@torch.no_grad()
def _predictive(
    inference: VariationalInference,
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    coreset: Coreset,
    ctx: Context,
    seed: int,
) -> VariationalPredictive:
    model.eval()
    features = torch.cat([_features(model, part, ctx.precision) for part in images.split(CHUNK)])
    rows = float(len(images))
    if coreset.weights is not None:
        # A row of weight w is w rows: the sums over rows of the closed form see each times the square root of w.
        rows = float(coreset.weights.sum(dtype=np.float64))
        roots = torch.tensor(coreset.weights, device=features.device, dtype=features.dtype).sqrt()[:, None]
        features, targets = roots * features, roots * targets
    rho, gamma = inference.scalar(coreset, "rho", 1.0), inference.scalar(coreset, "gamma", 100.0)
    beta_s = inference.scalar(coreset, "beta_s", rows)
    closed_form = naive.fit if inference.naive else posterior.fit
    if inference.measure:
        batch = features.new_ones((CHUNK, features.shape[1]))
        peak = peak_allocation(lambda: closed_form(features, targets, rho, gamma, beta_s).predict(batch), ctx.device)
        ctx.log(**{BMA_MEMORY: peak / 1e6})
    q = closed_form(features, targets, rho, gamma, beta_s)
    if not math.isfinite(float(q.kl())):
        raise ValueError("the posterior of the last layer is not finite: the coreset or the network has diverged")
    return VariationalPredictive(inference, model, q, seed, ctx.precision)


def _features(model: nn.Module, images: Tensor, precision: str) -> Tensor:
    """Return features as float32, for the closed form; `bf16` computes them under autocast."""
    with features_in(precision, images.device):
        features: Tensor = model.features(images)  # type: ignore[operator]
    return features.float()
