"""The inference `vi`. Torch is imported when something is fitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from bpcbench.api import Context, Inference, Network, Predictive, option
from bpcbench.records import Arrays, Coreset, Given, Offer


@dataclass(frozen=True)
class VariationalInference(Inference):
    """Closed-form variational inference of the last layer (Lee et al., ICLR 2025, Algorithm 2).

    A fresh network takes `steps` Adam steps of 0.5 * ||f(x) - y||^2 on the coreset; the features of the clean coreset
    then give the posterior q(W) of the last layer, and one forward pass per test image its predictive,
    p(y|x) = softmax(m(x) / sqrt(1 + (pi/8) v(x))). The predictive variance v is kept beside the probabilities.

    Any coreset can be read: class numbers and probabilities become centred targets, one-hot minus 1/k, times
    `label_scale`. Options left at none come from the coreset's recipe, else from the paper (rho 1, gamma 100).
    """

    name: ClassVar[str] = "vi"
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "torch.optim")

    steps: int = option(100, "T': Adam steps before the closed form")
    lr: float = option(3e-4, "learning rate, constant")
    rows: int = option(1000, "images per step; a coreset that is not larger is used whole")
    augmentation: str = option("paper", "strategy while training; paper: by the number of channels")
    rho: float | None = option(None, "prior precision; none: from the recipe, else 1")
    gamma: float | None = option(None, "likelihood precision; none: from the recipe, else 100")
    beta_s: float | None = option(None, "weight of the KL; none: from the recipe, else the number of images")
    label_scale: float = option(1.0, "factor of targets made from class numbers or probabilities")
    statistics: Literal["running", "settled"] = option("running", "BatchNorm: as trained, or of the clean coreset")
    variance_factor: float = option(1.0, "factor of the variance in the mean-field softmax")
    samples: int = option(0, "draws of a Monte Carlo predictive; 0: the mean-field formula")

    def accepts(self, offer: Offer) -> str | None:
        """Return a reason for networks of another framework."""
        if offer.network.framework != "torch":
            return f"{self.name} trains torch networks, and {offer.network.name} is a {offer.network.framework} one"
        return None

    def fit(self, coreset: Coreset, network: Network, given: Given, ctx: Context) -> Predictive:
        """Return the predictive of a freshly trained network with its last layer's posterior."""
        from bpcbench_vbpc.predictive import fit

        return fit(self, coreset, network, ctx)

    def restore(self, arrays: Arrays, coreset: Coreset, network: Network, given: Given, ctx: Context) -> Predictive:
        """Return the predictive with the network that was kept; the closed form is computed again."""
        from bpcbench_vbpc.predictive import restore

        return restore(self, arrays, coreset, network, ctx)

    def scalar(self, coreset: Coreset, name: str, default: float) -> float:
        """Return an option, or what the recipe says, or the default."""
        own = getattr(self, name)
        return float(own if own is not None else coreset.recipe.scalars.get(name, default))
