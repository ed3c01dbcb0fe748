"""The inference `frepo`: a network regressed on real-valued labels. Torch is imported when fitting starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bpcbench.api import Context, Inference, Network, Predictive, option
from bpcbench.records import Arrays, Coreset, Inputs, Offer
from bpcbench_torch.memory import ADAM, FLOAT, predicted, sizes, trained
from bpcbench_torch.operations import STEP


@dataclass(frozen=True)
class RegressionInference(Inference):
    """A new network trained with 0.5 * ||f(x) - y||^2 on the coreset, as in FRePo's evaluation (Zhou et al., 2022).

    Training uses Adam with a linear warm-up and a cosine schedule that ends at 1 %, augmentation, and no early
    stopping. The outputs estimate one-hot minus 1/k, which ranks the classes but is not a log-probability. The
    predictive is softmax(f(x) / temperature). The temperature is the option, else that of the recipe (FRePo fits it on
    training data; see its `temperature_on`), else 1/k, at which an output of exactly one-hot minus 1/k gives its class
    the odds e^k : k-1. The NLL of this inference is thus "with fitted temperature"; accuracy does not depend on it.
    """

    name: ClassVar[str] = "frepo"
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "torch.optim")
    eps: ClassVar[float] = 1e-8

    steps: int = option(1000, "Adam steps")
    lr: float = option(3e-4, "learning rate after the warm-up")
    warmup: int = option(500, "steps of linear warm-up; at most half of all steps")
    rows: int = option(500, "images per step; a smaller coreset is used whole")
    augmentation: str = option("frepo", "augmentation strategy while training; frepo: by the number of channels")
    label_scale: float = option(1.0, "factor of targets derived from class labels or probabilities")
    temperature: float | None = option(None, "softmax temperature; none: from the recipe, else 1/k")

    def accepts(self, offer: Offer) -> str | None:
        """Return a reason to refuse networks of another framework."""
        if offer.network.framework != "torch":
            return f"{self.name} trains torch networks, but {offer.network.name} is a {offer.network.framework} network"
        return None

    def operations(self, offer: Offer, images: int) -> float | None:
        """Return F * (3 steps * rows + images), F being one image's forward pass."""
        one = offer.network.operations(offer.facts.shape, offer.facts.classes)
        rows = offer.ipc * offer.facts.classes
        return None if one is None else one * (STEP * self.steps * min(rows, self.rows) + images)

    def peak_bytes(self, offer: Offer) -> float | None:
        """Return 4 times what a training step or a prediction holds, whichever is more."""
        these = sizes(offer.network, offer.facts, offer.ipc)
        if these is None:
            return None
        held = ADAM * these.parameters + these.rows * (these.pixels + these.classes)
        step = trained(these, min(these.rows, self.rows), augmented=self.augmentation != "none")
        return FLOAT * (held + max(step, predicted(these)))

    def fit(self, coreset: Coreset, network: Network, inputs: Inputs, ctx: Context) -> Predictive:
        """Return the predictive of a newly trained network."""
        from bpcbench_distill.predictive import fit

        return fit(self, coreset, network, ctx)

    def restore(self, arrays: Arrays, coreset: Coreset, network: Network, inputs: Inputs, ctx: Context) -> Predictive:
        """Return the predictive of the stored network."""
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
