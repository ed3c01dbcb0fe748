"""The inference `vi`. Torch is imported when fitting starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from bpcbench.api import Context, Inference, Network, Predictive, option
from bpcbench.records import Arrays, Coreset, Inputs, Offer
from bpcbench_torch.memory import ADAM, FLOAT, PREDICTED, predicted, sizes, trained, trained_together
from bpcbench_torch.operations import STEP


@dataclass(frozen=True)
class VariationalInference(Inference):
    """Closed-form variational inference of the last layer (Lee, Lee & Lee, ICLR 2025, Algorithm 2).

    A new network takes `steps` Adam steps on 0.5 * ||f(x) - y||^2 over the coreset. The features of the unaugmented
    coreset then give the posterior q(W) of the last layer, and one forward pass per test image gives the predictive
    p(y|x) = softmax(m(x) / sqrt(1 + (pi/8) v(x))). The predictive variance v is stored with the probabilities.

    Any coreset is accepted: class labels and probabilities become centred targets, (one-hot - 1/k) / sqrt(k/10) times
    `label_scale`, which at 1 are VBPC's initial labels. Options left at none come from the coreset's recipe, else from
    the paper (rho 1, gamma 100).

    The posterior mean of the logits is linear in the targets. Targets of unit size therefore give small logits and an
    NLL near log k, however well they rank the classes. Two options put coresets of other methods on the scale of
    logits: `label_scale` for class labels and probabilities, chosen on the validation split, and `by_temperature` for
    real-valued targets whose method fitted a softmax temperature T (FRePo): y / T, since softmax(f / T) is what it
    predicts with. VBPC's own targets have no temperature, and stay as they are.

    `naive` computes the same posterior and predictive from the h x h covariance, equal up to rounding. `measure` logs
    the peak of the memory that closed form and predictive of a batch of features allocate.
    """

    name: ClassVar[str] = "vi"
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "torch.optim")

    steps: int = option(100, "T': Adam steps before the closed form")
    lr: float = option(3e-4, "learning rate, constant")
    rows: int = option(1000, "images per step; a smaller coreset is used whole")
    augmentation: str = option("paper", "augmentation strategy while training; paper: by the number of channels")
    rho: float | None = option(None, "prior precision; none: from the recipe, else 1")
    gamma: float | None = option(None, "likelihood precision; none: from the recipe, else 100")
    beta_s: float | None = option(None, "weight of the KL; none: from the recipe, else the number of images")
    label_scale: float = option(1.0, "factor of targets derived from class labels or probabilities")
    by_temperature: bool = option(
        False, "divide real-valued targets by the softmax temperature of the recipe, if it has one", absent=False
    )
    statistics: Literal["running", "settled"] = option("running", "BatchNorm: as trained, or of the plain coreset")
    variance_factor: float = option(1.0, "factor of the variance in the mean-field softmax")
    samples: int = option(0, "draws of a Monte Carlo predictive; 0: the mean-field formula")
    naive: bool = option(False, "use the h x h covariance: the paper's ablation, for timing", absent=False)
    measure: bool = option(False, "measure the memory of closed form and predictive, for --costs", absent=False)

    together: int = option(
        1, "evaluation seeds of one coreset whose networks are trained together; equal up to rounding", absent=1
    )

    def __post_init__(self) -> None:
        if self.together < 1:
            raise ValueError(f"together must be at least 1, got {self.together}")

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
        """Return 4 times what training, the closed form or a prediction holds, whichever is the most.

        Training is a step's, with the network and its optimiser. The closed form has the features of all rows twice
        and four matrices; a prediction has the factor, the features and a batch of test images.
        """
        these = sizes(offer.network, offer.facts, offer.ipc)
        if these is None:
            return None
        width, rows = these.one.features, these.rows
        held, images = ADAM * these.parameters, rows * (these.pixels + these.classes)
        step, augmented = min(rows, self.rows), self.augmentation != "none"
        training = trained(these, step, augmented=augmented)
        if offer.seeds > 1:
            # The networks themselves are kept beside the stack.
            held += (offer.seeds * (ADAM + 1) - ADAM) * these.parameters
            training = trained_together(these, step, offer.seeds, augmented=augmented)
        side = width if self.naive else min(rows, width)
        closed = rows * width + max(PREDICTED * these.one.forward, rows * width + 4 * side**2)
        fitted = rows * width + 2 * side**2 + 3 * PREDICTED * side + predicted(these)
        return FLOAT * (held + max(images + training, images + closed, fitted))

    def fit(self, coreset: Coreset, network: Network, inputs: Inputs, ctx: Context) -> Predictive:
        """Return the predictive of a newly trained network with its last layer's posterior."""
        from bpcbench_vbpc.predictive import fit

        return fit(self, self.rescaled(coreset), network, ctx)

    def seeds_together(self) -> int:
        """Return the option `together`."""
        return self.together

    def fit_together(
        self, coreset: Coreset, network: Network, inputs: Inputs, ctx: Context, seeds: Sequence[int]
    ) -> Sequence[Predictive]:
        """Return a predictive for each of several seeds, whose networks are trained as one."""
        from bpcbench_vbpc.predictive import fit_together

        return fit_together(self, self.rescaled(coreset), network, ctx, seeds)

    def restore(self, arrays: Arrays, coreset: Coreset, network: Network, inputs: Inputs, ctx: Context) -> Predictive:
        """Return the predictive of the stored network; the closed form is recomputed."""
        from bpcbench_vbpc.predictive import restore

        return restore(self, arrays, self.rescaled(coreset), network, ctx)

    def rescaled(self, coreset: Coreset) -> Coreset:
        """Return the coreset with its real-valued targets over its temperature, or as it is."""
        temperature = coreset.recipe.scalars.get("temperature")
        if not self.by_temperature or temperature is None or coreset.convention != "centred":
            return coreset
        return replace(coreset, targets=(coreset.targets / temperature).astype(coreset.targets.dtype))

    def scalar(self, coreset: Coreset, name: str, default: float) -> float:
        """Return the option if set, else the value of the recipe, else the default."""
        own = getattr(self, name)
        return float(own if own is not None else coreset.recipe.scalars.get(name, default))
