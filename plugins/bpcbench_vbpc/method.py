"""The method VBPC. Torch is imported when distillation starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from bpcbench.api import Context, option
from bpcbench.records import Coreset, Data, Facts, Inputs, Native, Ref
from bpcbench_torch.memory import Sizes
from bpcbench_torch.pool_method import PoolMethod

if TYPE_CHECKING:
    from torch import Tensor

_MATRICES = 10
"""Float32 matrices that the loss and its gradient hold at a time, as measured."""


@dataclass(frozen=True)
class VBPC(PoolMethod):
    """Variational Bayesian pseudo-coreset (Lee, Lee & Lee, ICLR 2025, Algorithm 1).

    Given features Phi of the coreset under a pool network, the posterior of the last layer that minimises the coreset's
    variational objective is Gaussian in closed form (`bpcbench_vbpc.posterior`). The outer loss on a real batch B,

        mean_B CE(m(x) / sqrt(1 + (pi/8) v(x)), y) + beta_D KL[q || prior],

    with predictive mean m and variance v, is differentiated exactly through that closed form. Labels are learned too.

    Where the paper is silent or inconsistent, the defaults are: gamma = 100 is the precision of the likelihood; the
    loss averages over the batch (`form: sum` is as printed); features use BatchNorm's running statistics, from the
    coreset; one augmentation is drawn per call, for pool updates and real batches as well (`augment_pool`,
    `augment_real`); pool counters start staggered; the cosine schedule ends at 0. `PoolMethod` gives the reasons for
    those that the suites under paper/ change.

    The defaults of `label_scale` and `label_lr` are the paper's. Other values are for short budgets: 500,000 steps
    leave time for the labels to grow, a few hundred do not. Nor does the paper have `label_fit`, which ends a
    distillation by fitting the scale of the labels on training images (`bpcbench_vbpc.label_scale`); snapshots have the
    labels as learned.
    """

    name: ClassVar[str] = "vbpc"

    rho: float = option(1.0, "prior precision")
    gamma: float = option(100.0, "precision of the Gaussian likelihood")
    beta_s: float | None = option(None, "weight of the coreset's KL; none: the number of images")
    beta_d: float = option(1e-8, "weight of the KL in the outer loss")
    form: Literal["mean", "sum"] = option("mean", "outer loss averaged over the batch, or summed as printed")
    variance_factor: float = option(1.0, "factor of the variance in the mean-field softmax; 1 as printed, 2 as derived")
    noise: bool = option(True, "include noise in the augmentations")
    label_fit: int = option(
        0, "updates of a new network on which the scale of the labels is fitted at the end; 0: as learned", absent=0
    )
    naive: bool = option(False, "use the h x h covariance: the paper's ablation, for tests and timing")
    measure: bool = option(False, "measure the memory of the loss before the first step, for --costs", absent=False)
    evaluation_steps: int = option(100, "T': Adam steps of the native inference before the closed form", key=False)
    memory: float = option(16.0, "GB; cells whose posterior needs more are skipped", key=False)

    def __post_init__(self) -> None:
        """Reject invalid values."""
        super().__post_init__()
        for name in ("rho", "gamma"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        if self.label_fit < 0:
            raise ValueError(f"label_fit must not be negative, got {self.label_fit}")
        if not self.memory > 0:
            raise ValueError(f"memory must be above 0, got {self.memory}")
        if self.beta_d < 0 or (self.beta_s is not None and self.beta_s <= 0):
            raise ValueError("beta_d must not be negative, and beta_s must be above 0")

    def skip(self, facts: Facts, ipc: int) -> str | None:
        """Return a reason to skip also if neither the n^ x n^ nor the h x h matrices fit in `memory`."""
        if reason := super().skip(facts, ipc):
            return reason
        rows, width = ipc * facts.classes, self._width(facts)
        if width is None:
            return None
        needed = _MATRICES * 4 * (width if self.naive else min(rows, width)) ** 2 / 1e9
        if needed <= self.memory:
            return None
        what = f"{width} x {width}" if self.naive else f"{rows} x {rows} (images) or {width} x {width} (features)"
        return f"the posterior's matrices, {what}, need about {needed:.1f} GB, but `memory` is {self.memory:g} GB"

    def _width(self, facts: Facts) -> int | None:
        """Return h, from the parameters that one more class adds to the network; None if the counts are unknown."""
        one, two = (self.network.parameters(facts.shape, classes) for classes in (1, 2))
        return None if one is None or two is None else two - one - 1

    def operations(self, facts: Facts, ipc: int) -> float | None:
        """Return those of the networks; `naive` adds 8 h^3 per step for V and its gradient."""
        known, width = super().operations(facts, ipc), self._width(facts)
        return known + 8 * self.steps * float(width) ** 3 if known and width and self.naive else known

    def loss_numbers(self, rows: int, batch: int, these: Sizes) -> float:
        """Return those of the posterior's matrices, of the real batch against them, and of the features' gradient."""
        width = these.one.features
        side = width if self.naive else min(rows, width)
        return (5 if self.naive else _MATRICES) * side**2 + 4 * batch * side + 2 * rows * width

    def native(self, facts: Facts, ipc: int) -> Native:
        """Return the variational inference of the paper, with the network of the pool."""
        options = {"steps": self.evaluation_steps, "augmentation": self.augmentation_used()}
        return Native(Ref("vi", options), self.network)

    def augmentation_used(self) -> str:
        """Return the strategy, without noise if noise is off."""
        return self.augmentation if self.noise else f"{self.augmentation}-quiet"

    def scalars(self, rows: int) -> dict[str, float]:
        """Return the values that `vi` uses for options left at none."""
        # Left out where it is the number of images, which `vi` counts itself: a union of coresets has more.
        own = {} if self.beta_s is None else {"beta_s": self.beta_s}
        return {"rho": self.rho, "gamma": self.gamma, **own}

    def distil(self, data: Data, ipc: int, inputs: Inputs, ctx: Context) -> Coreset:
        """Return the last iterate, with `label_fit` its labels rescaled.

        With `measure`, log what the loss and its gradient allocate first.
        """
        if self.measure:
            from bpcbench_vbpc.loss_memory import LOSS_MEMORY, loss_memory

            ctx.log(**{LOSS_MEMORY: loss_memory(self, data.facts, ipc, ctx.device) / 1e6})
        coreset = super().distil(data, ipc, inputs, ctx)
        if not self.label_fit:
            return coreset
        from bpcbench_vbpc.label_scale import with_fitted_scale

        return with_fitted_scale(self, coreset, data, inputs, ctx)

    def outer(self, features: Tensor, targets: Tensor, real: Tensor, labels: Tensor, n: int) -> dict[str, Tensor]:
        """Return the loss, the KL and the mean predictive variance."""
        from bpcbench_vbpc import naive, posterior
        from bpcbench_vbpc.likelihood import mean_field_log_probs, outer_loss

        fit = naive.fit if self.naive else posterior.fit
        q = fit(features, targets, self.rho, self.gamma, self.beta_s)
        mean, variance = q.predict(real)
        kl = q.kl()
        log_probs = mean_field_log_probs(mean, variance, factor=self.variance_factor)
        loss = outer_loss(log_probs, labels, kl, self.beta_d, n=n, form=self.form)
        return {"loss": loss, "kl": kl.detach(), "variance": variance.mean().detach()}
