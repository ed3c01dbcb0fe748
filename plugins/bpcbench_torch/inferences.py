"""Plain training as inference: a single network or a deep ensemble. Torch is imported when fitting starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bpcbench.api import Context, Inference, Network, Predictive, option
from bpcbench.records import Arrays, Coreset, Inputs, Offer
from bpcbench_torch.memory import ADAM, FLOAT, predicted, sizes, trained
from bpcbench_torch.operations import STEP


@dataclass(frozen=True)
class _Trained(Inference):
    """Networks trained on the coreset with Adam; the loss follows the coreset's convention (see `loss_for`).

    BatchNorm's running statistics come from the coreset alone. For `centred` targets the probabilities are the softmax,
    at temperature 1, of outputs fitted to one-hot minus 1/k: good for accuracy, but far too flat for NLL.
    """

    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "torch.optim")
    sampled: ClassVar[bool] = False

    steps: int = option(300, "Adam steps per network")
    lr: float = option(1e-3, "learning rate")
    batch_size: int = option(256, "images per step; a smaller coreset is used whole")
    weight_decay: float = option(0.0, "L2 penalty added to the gradient")
    cosine: bool = option(False, "decay the learning rate to zero along a half cosine")

    def seeds(self, seed: int) -> list[int]:
        """Return the seed of every network."""
        return [seed]

    def accepts(self, offer: Offer) -> str | None:
        """Return a reason to refuse networks of another framework."""
        if offer.network.framework != "torch":
            return f"{self.name} trains torch networks, but {offer.network.name} is a {offer.network.framework} network"
        return None

    def operations(self, offer: Offer, images: int) -> float | None:
        """Return members * F * (3 steps * rows + images), F being one image's forward pass."""
        one = offer.network.operations(offer.facts.shape, offer.facts.classes)
        rows = offer.ipc * offer.facts.classes
        each = STEP * self.steps * min(rows, self.batch_size) + images
        return None if one is None else len(self.seeds(0)) * one * each

    def peak_bytes(self, offer: Offer) -> float | None:
        """Return 4 times what a training step of the last network or a prediction holds, whichever is more."""
        these = sizes(offer.network, offer.facts, offer.ipc)
        if these is None:
            return None
        held = (len(self.seeds(0)) - 1 + ADAM) * these.parameters + these.rows * (these.pixels + these.classes)
        step = trained(these, min(these.rows, self.batch_size), augmented=False)
        return FLOAT * (held + max(step, predicted(these)))

    def fit(self, coreset: Coreset, network: Network, inputs: Inputs, ctx: Context) -> Predictive:
        """Return the predictive of newly trained networks, each trained in its own loop."""
        from bpcbench_torch.predictive import NetworkPredictive
        from bpcbench_torch.training import Schedule, train

        schedule = Schedule(self.steps, self.lr, self.batch_size, self.weight_decay, self.cosine)
        models = []
        seeds = self.seeds(ctx.seed)
        for index, seed in enumerate(seeds):
            model = network.build(coreset.images.shape[1:], coreset.classes, seed).to(ctx.device)
            what = f"network {index + 1} of {len(seeds)}" if self.sampled else "network"
            train(model, coreset, schedule, ctx, seed=seed, what=what)
            models.append(model)
        return NetworkPredictive(models, sampled=self.sampled, device=ctx.device)

    def restore(self, arrays: Arrays, coreset: Coreset, network: Network, inputs: Inputs, ctx: Context) -> Predictive:
        """Return the predictive from stored parameters and buffers."""
        from bpcbench_torch.predictive import NetworkPredictive, load_arrays

        models = []
        for index, seed in enumerate(self.seeds(ctx.seed)):
            model = network.build(coreset.images.shape[1:], coreset.classes, seed)
            load_arrays(model, arrays, index)
            models.append(model)
        return NetworkPredictive(models, sampled=self.sampled, device=ctx.device)


@dataclass(frozen=True)
class NetworkInference(_Trained):
    """One network trained on the coreset: p(y|x) = softmax(f(x))."""

    name: ClassVar[str] = "network"


@dataclass(frozen=True)
class Ensemble(_Trained):
    """Deep ensemble (Lakshminarayanan et al., 2017): p(y|x) = mean over members of softmax(f_m(x)).

    Members differ in their initial weights and, for coresets larger than a batch, in the batch order.
    """

    name: ClassVar[str] = "ensemble"
    sampled: ClassVar[bool] = True

    members: int = option(5, "number of networks")

    def accepts(self, offer: Offer) -> str | None:
        """Return a reason to refuse an empty ensemble or networks of another framework."""
        if self.members < 1:
            return f"{self.name} needs at least 1 member, got {self.members}"
        return super().accepts(offer)

    def seeds(self, seed: int) -> list[int]:
        """Return a seed per member; a larger ensemble contains the members of a smaller one."""
        states = [np.random.SeedSequence([seed, index]).generate_state(1, np.uint64) for index in range(self.members)]
        return [int(state[0]) >> 1 for state in states]
