"""The method FRePo. Torch is imported when distillation starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from bpcbench.api import Context, Network, option
from bpcbench.records import Coreset, Data, Facts, Inputs, Native, Recipe, Ref
from bpcbench.sampling import per_class, stratified_holdout
from bpcbench_torch.networks import without_batch_norm
from bpcbench_torch.pool_method import PoolMethod

if TYPE_CHECKING:
    from torch import Tensor

_HELD = 5000
"""Held-out images that are preprocessed at a time."""


@dataclass(frozen=True)
class FRePo(PoolMethod):
    """Neural feature regression with pooling (Zhou, Nezhadarya & Ba, NeurIPS 2022).

    The outer loss on a real batch B with centred one-hot targets y is that of kernel ridge regression on features,

        mean_B 0.5 ||phi(x) Phi^T (K + 1e-6 tr(K)/n I)^{-1} Y - y||^2 - mean min(top1(Y) - top2(Y), 1/k),

    whose second term keeps a margin between the two largest entries of every learned label. As in the authors' code,
    there is no augmentation during distillation, mirrored copies of the images are appended (`mirror: auto`: for RGB
    images of at most 10 classes, or with one image per class), and LAMB has a cosine schedule that ends at 10 %.

    The authors' scripts distil with BatchNorm and evaluate without normalisation: they turn `batch` into `identity`.
    `evaluation_norm: none` does the same, where the pool has `conv-bn`; `same` evaluates with the network of the pool.

    The outputs of the native inference need a softmax temperature. It is fitted for a network trained on the coreset,
    on `temperature_share` of the training data: rows that distillation never sees (`temperature_on: held-out`), or,
    where distillation is to use all training data, rows that it saw (`seen`), which tables mark. With a share of 0
    nothing is fitted, and the inference uses 1/k.
    """

    name: ClassVar[str] = "frepo"

    lr: float = option(3e-4, "learning rate of the images")
    optimiser: Literal["adam", "lamb"] = option("lamb", "optimiser of images and labels")
    final_lr: float = option(0.1, "final learning rate of the cosine schedule, as a fraction of the initial one")
    augmentation: str = option("none", "strategy (bpcbench_torch.augmentation) during distillation")
    ridge: float = option(1e-6, "ridge relative to the mean of the kernel's diagonal")
    label_margin: bool = option(True, "add the margin term of the labels to the loss")
    mirror: Literal["auto", "yes", "no"] = option("auto", "append mirrored copies of the images")
    evaluation_steps: int = option(1000, "steps of the native inference")
    evaluation_lr: float = option(3e-4, "learning rate of the native inference", absent=3e-4)
    evaluation_norm: Literal["none", "same"] = option(
        "none", "native network: the pool's without BatchNorm, as in the authors' scripts, or the same", absent="same"
    )
    temperature_share: float = option(0.05, "fraction of train on which the softmax temperature is fitted; 0: none")
    temperature_on: Literal["held-out", "seen"] = option(
        "held-out", "whether those rows are kept from distillation, or distillation sees them", absent="held-out"
    )

    def __post_init__(self) -> None:
        """Reject invalid values."""
        super().__post_init__()
        if not 0 <= self.temperature_share < 1:
            raise ValueError(f"temperature_share must lie in [0, 1), got {self.temperature_share}")
        if self.temperature_on == "seen" and not self.temperature_share:
            raise ValueError("temperature_on: seen needs a temperature_share above 0")

    def evaluation_network(self) -> Network:
        """Return the network of the native inference, for which the temperature is fitted."""
        return self.network if self.evaluation_norm == "same" else without_batch_norm(self.network)

    def native(self, facts: Facts, ipc: int) -> Native:
        """Return plain regression of a new network on the learned labels, as in the authors' evaluation."""
        options = {"steps": self.evaluation_steps, "lr": self.evaluation_lr}
        return Native(Ref("frepo", options), self.evaluation_network())

    def notes(self) -> tuple[str, ...]:
        """Mark a temperature that was fitted on data of the distillation."""
        return ("temperature fitted on training data it saw",) if self.temperature_on == "seen" else ()

    def distil(self, data: Data, ipc: int, inputs: Inputs, ctx: Context) -> Coreset:
        """Return the last iterate, with a temperature fitted for a network trained on it."""
        if not self.temperature_share:
            return super().distil(data, ipc, inputs, ctx)
        from bpcbench_distill.inference import RegressionInference
        from bpcbench_distill.predictive import fit
        from bpcbench_torch.distillation import distil
        from bpcbench_torch.temperature import fit_temperature

        _, held = stratified_holdout(data.labels, self.temperature_share, seed=1)
        kept = None
        if self.temperature_on == "held-out":
            # The initial images come from all training data, so that all methods share them.
            held = np.setdiff1d(held, per_class(data.labels, ipc, self.initial_seed(ctx.seed)))
            kept = np.setdiff1d(np.arange(len(data.train)), held)
        coreset = distil(self, data, ipc, inputs, ctx, real_rows=kept)
        judge = RegressionInference(steps=self.evaluation_steps, lr=self.evaluation_lr)
        trained = fit(judge, coreset, self.evaluation_network(), ctx)
        outputs = np.concatenate(
            [
                trained.outputs(inputs.transform.apply(np.asarray(data.train.images[part]))).cpu().numpy()
                for part in np.array_split(held, -(-len(held) // _HELD))
            ]
        )
        temperature = fit_temperature(outputs, data.labels[held])
        return replace(coreset, recipe=Recipe(scalars={**coreset.recipe.scalars, "temperature": temperature}))

    def rows(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Append mirrored copies where the authors' code does."""
        from bpcbench_distill.kernel import mirrored

        mirror = self._mirrors(images.shape[1], targets.shape[1], len(targets))
        return mirrored(images, targets) if mirror else (images, targets)

    def row_count(self, facts: Facts, ipc: int) -> int:
        """Return the number of images, twice that with mirrored copies."""
        rows = ipc * facts.classes
        return 2 * rows if self._mirrors(facts.shape[0], facts.classes, rows) else rows

    def _mirrors(self, channels: int, classes: int, rows: int) -> bool:
        auto = channels == 3 and (classes <= 10 or (classes <= 200 and rows == classes))
        return self.mirror == "yes" or (self.mirror == "auto" and auto)

    def outer(self, features: Tensor, targets: Tensor, real: Tensor, labels: Tensor, n: int) -> dict[str, Tensor]:
        """Return the loss and its label term."""
        import torch.nn.functional as F  # noqa: N812

        from bpcbench_distill.kernel import krr, margin

        classes = targets.shape[1]
        centred = F.one_hot(labels, classes).to(targets.dtype) - 1.0 / classes
        regression = 0.5 * (krr(features, targets, real, self.ridge) - centred).square().sum(1).mean()
        if not self.label_margin:
            return {"loss": regression}
        label_term = margin(targets, 1.0 / classes)
        return {"loss": regression + label_term, "regression": regression.detach(), "margin": label_term.detach()}
