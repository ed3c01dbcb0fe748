"""BPC-fKL. Torch is imported when distillation starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bpcbench.api import option
from bpcbench_bpc.method import TrajectoryMethod
from bpcbench_torch.memory import DIFFERENTIATED, Sizes

if TYPE_CHECKING:
    from torch import Tensor

    from bpcbench_bpc.problem import Distortion, Estimate, Problem


@dataclass(frozen=True)
class ForwardKL(TrajectoryMethod):
    """BPC-fKL (Kim et al., NeurIPS 2022): the forward KL between Gaussians around an expert and around theta_u.

    grad_u D[pi_x || pi_u] = E_{pi_x}[grad_u E(theta; u)] - E_{pi_u}[grad_u E(theta; u)], with the posteriors replaced
    by N(tau_{t+e}, sigma^2 I) and N(theta_u, sigma^2 I), whose means are constants:

        1/S sum_s grad_u [ E(tau_{t+e} + e2_s; A_s(u)) - E(theta_u + e1_s; A_s(u)) ].

    E is the mean cross-entropy where the formula has the sum; the learning rate absorbs the factor. The terms of a draw
    share the augmentation A_s, but not the noise. Each draw is differentiated immediately, so memory does not grow with
    S. Both presets use the estimator of the public code; neither learns the inner step size.
    """

    name: ClassVar[str] = "bpc-fkl"

    sigma: float = option(0.01, "standard deviation of the parameter noise")
    draws: int = option(30, "S: noise draws per iteration")
    chunk: int = option(1, "draws computed together by vmap, for GPUs")

    def __post_init__(self) -> None:
        """Reject invalid values."""
        super().__post_init__()
        if self.sigma < 0 or self.draws < 1 or self.chunk < 1:
            raise ValueError("sigma must not be negative, draws and chunk must be at least 1")

    def passes(self) -> int:
        """Return the steps of the inner SGD and the draws around either end."""
        return self.inner_steps + 2 * self.draws

    def estimate_numbers(self, these: Sizes, *, augmented: bool) -> float:
        """Return those of a chunk of draws; memory does not grow with their number."""
        parameters = (2 * self.chunk + 4) * these.parameters
        copies = these.rows * these.pixels * (2 + DIFFERENTIATED * augmented)
        return self.chunk * (these.rows * these.one.gradient + copies) + parameters

    def estimate(self, problem: Problem) -> Estimate:
        """Return the gradient above."""
        import torch

        from bpcbench_bpc.inner import descend
        from bpcbench_bpc.problem import Estimate, add

        regions = problem.regions
        start, target = problem.window(0), problem.window(self.ahead)
        (fitted,) = descend(problem, start, self.inner_steps)
        ends = regions.hold("fitted", fitted), regions.hold("target", target)
        total, loss = None, fitted.new_zeros(())
        for first in range(0, self.draws, self.chunk):
            count = min(self.chunk, self.draws - first)
            distortions = tuple(problem.choose() for _ in range(count))
            region = self._terms(problem, *ends, distortions)
            apart, *gradients = regions(("fkl", distortions), region, fixed=[*ends, *problem.fixed])
            total = add(total, [regions.own(one) for one in gradients] if total is None else gradients)
            loss += apart
        assert total is not None
        moved, distance = (torch.linalg.vector_norm(end - start) for end in (fitted, target))
        return Estimate(total, values={"loss": loss, "moved": moved, "distance": distance})

    def _terms(
        self, problem: Problem, fitted: Tensor, target: Tensor, distortions: Sequence[Distortion]
    ) -> Callable[[], tuple[Tensor, ...]]:
        """Return the region of some draws: their share of the loss and of the gradients of the learned tensors."""
        import torch

        from bpcbench_bpc.energy import slopes
        from bpcbench_bpc.problem import pulled

        def region() -> tuple[Tensor, ...]:
            leaves, y = problem.copies()
            x = torch.stack([distortion(leaves[0]) for distortion in distortions])
            minus, below = slopes(problem.network, problem.around(fitted, self.sigma, len(x)), x, y)
            plus, above = slopes(problem.network, problem.around(target, self.sigma, len(x)), x, y)
            both = tuple((a - b) / self.draws for a, b in zip(above, below, strict=True))
            return (plus - minus) / self.draws, *pulled(x, y, both, leaves)

        return region
