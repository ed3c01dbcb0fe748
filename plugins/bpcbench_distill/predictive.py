"""The predictive of a torch network regressed on a coreset's labels."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from bpcbench.api import Context, Network
from bpcbench.records import Array, Arrays, Coreset, Predicted
from bpcbench_torch.device_predictive import CHUNK, DevicePredictive
from bpcbench_torch.predictive import load_arrays, state_arrays
from bpcbench_torch.regression import regress, tensors
from bpcbench_torch.training import features_in, settle_statistics


class Regression(Protocol):
    """How a network is regressed, by an inference or what it resolves to."""

    @property
    def steps(self) -> int:
        """Adam steps."""

    @property
    def rows(self) -> int:
        """Images per step of a coreset that has more."""

    @property
    def augmentation(self) -> str:
        """The augmentation strategy."""

    @property
    def label_scale(self) -> float:
        """The factor of targets derived from class labels or probabilities."""

    @property
    def temperature(self) -> float | None:
        """The softmax temperature; None: from the recipe, else 1/k."""

    @property
    def eps(self) -> float:
        """Adam's epsilon."""

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""


class RegressionPredictive(DevicePredictive):
    """log softmax(f(x) / temperature) of a network in evaluation mode."""

    def __init__(self, model: nn.Module, temperature: float, precision: str = "float32") -> None:
        self.model, self.temperature, self.precision = model.eval(), temperature, precision
        self.device = next(model.parameters()).device

    @torch.inference_mode()
    def outputs(self, images: Array) -> torch.Tensor:
        """Return f(x), which estimates one-hot minus 1/k."""
        return self._outputs(torch.tensor(images, dtype=torch.float32))

    def predict_tensor(self, images: torch.Tensor) -> Predicted:
        return Predicted((self._outputs(images) / self.temperature).log_softmax(1).cpu().numpy())

    def _outputs(self, images: torch.Tensor) -> torch.Tensor:
        with features_in(self.precision, self.device):
            return torch.cat([self.model(part.to(self.device)).float() for part in images.split(CHUNK)])

    def arrays(self) -> Arrays:
        """Return the network's parameters and buffers."""
        return state_arrays([self.model])


def fit(inference: Regression, coreset: Coreset, network: Network, ctx: Context) -> RegressionPredictive:
    """Train a new network on the coreset; BatchNorm then uses the statistics of the coreset alone."""
    model = regress(
        coreset,
        network,
        ctx,
        steps=inference.steps,
        rate=inference.rate,
        rows=inference.rows,
        augmentation=inference.augmentation,
        label_scale=inference.label_scale,
        eps=inference.eps,
    )
    images, _ = tensors(coreset, inference.label_scale, ctx.device)
    settle_statistics(model, images, inference.rows, torch.Generator().manual_seed(ctx.seed))
    return RegressionPredictive(model, _temperature(inference, coreset), ctx.precision)


def restore(
    inference: Regression, arrays: Arrays, coreset: Coreset, network: Network, ctx: Context
) -> RegressionPredictive:
    """Return the predictive of a stored network."""
    model: nn.Module = network.build(coreset.images.shape[1:], coreset.classes, ctx.seed)
    load_arrays(model, arrays, 0)
    return RegressionPredictive(model.to(ctx.device), _temperature(inference, coreset), ctx.precision)


def _temperature(inference: Regression, coreset: Coreset) -> float:
    if inference.temperature is not None:
        return inference.temperature
    return coreset.recipe.scalars.get("temperature", 1.0 / coreset.classes)
