"""BPC-CD. Torch is imported when distillation starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from bpcbench.api import option
from bpcbench_bpc.method import TrajectoryMethod
from bpcbench_bpc.trajectories import Trajectories

if TYPE_CHECKING:
    from torch import Tensor

    from bpcbench_bpc.problem import Estimate, Problem


@dataclass(frozen=True)
class Contrastive(TrajectoryMethod):
    """BPC-CD (Tiwary et al., UAI 2024): contrastive divergence with the coreset's posterior as an energy model.

    A chain of k steps on u, started at a positive sample, replaces the expectation under pi_u:

        grad_u [ E(theta+; A(u)) - E(theta-; A(u)) ],   theta+ = tau_t + sigma * e,
        theta- = k steps of theta <- theta - rate * grad E(theta; A(u)) + chain_noise * e from theta+.

    Official is the image gradient of the first public version; the later version, which does not run, differs only in
    the positive sample. There theta+ = tau_{t+e} although the chain starts at tau_t, there is no noise, and every step
    of the chain augments the already augmented images of the step before. The matching and meta terms of that code do
    not reach the images. `energy: logit` is what its launch script computes, because it passes the string False for a
    switch.
    """

    name: ClassVar[str] = "bpc-cd"

    inner_steps: int = option(10, "k: steps of the chain")
    inner_lr: float = option(0.01, "step size of the chain")
    sigma: float = option(0.001, "noise of the positive sample (preset clean only)")
    chain_noise: float = option(0.0, "noise per step of the chain (preset clean only)")
    energy: Literal["ce", "logit"] = option("ce", "cross-entropy, or the negative logit of the true class")

    def __post_init__(self) -> None:
        """Reject invalid values."""
        super().__post_init__()
        if self.sigma < 0 or self.chain_noise < 0:
            raise ValueError("sigma and chain_noise must not be negative")

    def reach(self, plan: Trajectories) -> int:
        """Return 0 for the preset clean, which uses only the start of the window."""
        return self.ahead if self.official else 0

    def passes(self) -> int:
        """Return the steps of the chain and both samples."""
        return self.inner_steps + 2

    def estimate(self, problem: Problem) -> Estimate:
        """Return the gradient above."""
        import torch

        from bpcbench_bpc.energy import slopes
        from bpcbench_bpc.inner import descend
        from bpcbench_bpc.problem import Estimate, pulled

        start = problem.window(0)
        positive = problem.window(self.ahead) if self.official else start
        if not self.official and self.sigma:
            start = positive = problem.around(start, self.sigma, 1)[0]
        noise = 0.0 if self.official else self.chain_noise
        (negative,) = descend(
            problem, start, self.inner_steps, noise=noise, compounding=self.official, kind=self.energy
        )
        distortion = problem.choose()

        def region(positive: Tensor, negative: Tensor) -> tuple[Tensor, ...]:
            leaves, y = problem.copies()
            x = distortion(leaves[0])
            plus, above = slopes(problem.network, positive[None], x, y, self.energy)
            minus, below = slopes(problem.network, negative[None], x, y, self.energy)
            return plus - minus, *pulled(x, y, [a - b for a, b in zip(above, below, strict=True)], leaves)

        loss, *gradients = problem.regions(("contrast", distortion), region, [positive, negative], fixed=problem.fixed)
        moved = torch.linalg.vector_norm(negative - start)
        return Estimate(gradients, values={"loss": problem.regions.own(loss), "moved": moved})
