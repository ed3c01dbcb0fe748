"""The inference `frepo`: a network regressed on real-valued labels. Torch is imported when something is fitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bpcbench.api import Context, Inference, Network, Predictive, option
from bpcbench.records import Arrays, Coreset, Given, Offer


@dataclass(frozen=True)
class RegressionInference(Inference):
    """A fresh network trained with 0.5 * ||f(x) - y||^2 on the coreset, as FRePo evaluates (Zhou et al., 2022).

    Adam with a linear warm-up and a cosine to 1 %, augmentation, no early stopping. Its outputs estimate one-hot minus
    1/k, which ranks the classes but is no log-probability. What it reports is softmax(f(x) / temperature), where the
    temperature comes from the recipe (FRePo fits it on training data it holds out for that alone) or from the option;
    else it is 1/k, at which an output that is exactly one-hot minus 1/k gives its class the odds e^k : k-1.
    NLL under this inference is therefore "with fitted temperature", accuracy does not depend on it.
    """

    name: ClassVar[str] = "frepo"
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "torch.optim")

    steps: int = option(1000, "Adam steps")
    lr: float = option(3e-4, "learning rate after the warm-up")
    warmup: int = option(500, "steps of linear warm-up; at most half of all steps")
    rows: int = option(500, "images per step; a coreset that is not larger is used whole")
    augmentation: str = option("frepo", "strategy while training; frepo: by the number of channels")
    label_scale: float = option(1.0, "factor of targets made from class numbers or probabilities")
    temperature: float | None = option(None, "of the softmax; none: from the recipe, else 1/k")

    def accepts(self, offer: Offer) -> str | None:
        """Return a reason for networks of another framework."""
        if offer.network.framework != "torch":
            return f"{self.name} trains torch networks, and {offer.network.name} is a {offer.network.framework} one"
        return None

    def fit(self, coreset: Coreset, network: Network, given: Given, ctx: Context) -> Predictive:
        """Return the predictive of a freshly trained network."""
        from bpcbench_distill.predictive import fit

        return fit(self, coreset, network, ctx)

    def restore(self, arrays: Arrays, coreset: Coreset, network: Network, given: Given, ctx: Context) -> Predictive:
        """Return the predictive with the network that was kept."""
        from bpcbench_distill.predictive import restore

        return restore(self, arrays, coreset, network, ctx)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        import math

        warm = min(self.warmup, self.steps // 2)
        if step < warm:
            return self.lr * (step + 1) / warm
        done = (step - warm) / max(1, self.steps - warm)
        return self.lr * (0.01 + 0.99 * (0.5 + 0.5 * math.cos(math.pi * done)))
