"""BPC-rKL. Torch is imported when distillation starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bpcbench.api import option
from bpcbench_bpc.method import TrajectoryMethod
from bpcbench_bpc.trajectories import Trajectories
from bpcbench_torch.memory import Sizes

if TYPE_CHECKING:
    from torch import Tensor

    from bpcbench_bpc.problem import Estimate, Problem
    from bpcbench_torch.flat import FlatNetwork

_ROWS = 200
"""Real images per forward pass if rows are independent: larger batches do not fit in the CPU's caches."""


@dataclass(frozen=True)
class ReverseKL(TrajectoryMethod):
    """BPC-rKL (Kim et al., NeurIPS 2022): the reverse KL, by the covariance identity of Manousakas et al. (2020).

    With g = log p(y | x, theta) and theta_s = theta_u + sigma * e_s, S draws of pi_u's Gaussian,

        grad_{u_m} D[pi_u || pi_x] = Cov_s( grad_{u_m} g(u_m), sum_m' g(u_m') - sum_n g(x_n) ).

    The sum over the data is estimated by N/B times the sum over a batch of B. Clean uses these weights, the unbiased
    divisor S - 1, and the gradient of D/N, so that learning rates are comparable. Official uses means instead of both
    sums, the divisor S and no momentum. Neither augments here. The expert matters only as the start of the inner SGD.
    The covariance is accumulated in one pass, and one forward pass of u gives both g and its gradient.
    """

    name: ClassVar[str] = "bpc-rkl"

    sigma: float = option(0.01, "standard deviation of the parameter noise")
    draws: int = option(30, "S: noise draws per iteration")
    batch: int = option(1000, "B: real images per iteration")
    chunk: int = option(1, "draws computed together by vmap, for GPUs")

    def __post_init__(self) -> None:
        """Reject invalid values."""
        super().__post_init__()
        if not self.sigma > 0 or self.draws < 2 or self.chunk < 1 or self.batch < 1:
            raise ValueError("sigma must be above 0, draws at least 2, chunk and batch at least 1")

    def image_momentum(self) -> float:
        """Return the momentum, which is 0 in the public code."""
        return 0.0 if self.official else self.momentum

    def reach(self, plan: Trajectories) -> int:
        """Return 0: only the start of a window is used."""
        return 0

    def batch_used(self) -> int:
        """Return the number of real images per iteration."""
        return self.batch

    def passes(self) -> int:
        """Return the steps of the inner SGD and the draws."""
        return self.inner_steps + self.draws

    def real_passes(self) -> int:
        """Return a batch for each draw."""
        return self.draws * self.batch

    def estimate_numbers(self, these: Sizes, *, augmented: bool) -> float:
        """Return those of a chunk of draws of the real batch or of the coreset, and of the covariance."""
        parameters = (self.chunk + 5) * these.parameters
        real = self.chunk * min(self.batch, _ROWS) * these.one.forward
        pseudo = self.chunk * these.rows * (these.one.gradient + 2 * these.pixels)
        return max(real, pseudo) + 3 * these.rows * these.pixels + parameters

    def estimate(self, problem: Problem) -> Estimate:
        """Return the gradient above."""
        import torch

        from bpcbench_bpc.inner import descend
        from bpcbench_bpc.problem import Estimate

        regions = problem.regions
        (fitted,) = descend(problem, problem.window(0), self.inner_steps)
        fitted = regions.hold("fitted", fitted)
        images, labels = (regions.hold(name, batch) for name, batch in zip(("x", "y"), problem.real(), strict=True))
        own = len(problem.images) / problem.examples if not self.official else 1.0
        covariance, base = Covariance(), None
        for first in range(0, self.draws, self.chunk):
            count = min(self.chunk, self.draws - first)

            def region(count: int = count) -> tuple[Tensor, ...]:
                thetas = problem.around(fitted, self.sigma, count)
                pseudo, slopes = _pseudo(problem, thetas)
                return _log_likelihoods(problem.network, thetas, images, labels), pseudo, *slopes

            real, pseudo, *slopes = regions(
                ("rkl", count), region, fixed=[fitted, images, labels, *problem.fixed]
            )
            # Subtracting a constant per example leaves the covariance unchanged and preserves float32 precision.
            base = (regions.own(real[0]), regions.own(pseudo[0])) if base is None else base
            covariance.add(own * (pseudo - base[1]).mean(1) - (real - base[0]).mean(1), slopes)
        assert base is not None
        gradients = covariance.total(self.draws if self.official else self.draws - 1)
        norm = torch.linalg.vector_norm(gradients[0])
        return Estimate(gradients, values={"gradient": norm, "likelihood": own * base[1].mean() - base[0].mean()})


class Covariance:
    """The covariance of a scalar with several arrays over draws, in one pass and without storing them.

    Blocks of draws are centred on their own means and then merged (Chan, Golub & LeVeque, 1983), because the difference
    of two large sums would lose float32 precision.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor
        self.means: list[Tensor]
        self.sums: list[Tensor]

    def add(self, values: Tensor, arrays: list[Tensor]) -> None:
        """Add a block of draws: values (draws,), arrays (draws, ...)."""
        count, mean, means = len(values), values.mean(0), [array.mean(0) for array in arrays]
        inner = [
            ((values - mean) @ (array - centre).flatten(1)).view_as(centre)
            for array, centre in zip(arrays, means, strict=True)
        ]
        if self.count == 0:
            self.count, self.mean, self.means, self.sums = count, mean, means, inner
            return
        total = self.count + count
        apart = mean - self.mean
        for old, new, ours, block in zip(self.means, means, self.sums, inner, strict=True):
            ours.add_(block).add_((new - old) * apart, alpha=self.count * count / total)
            old.add_(new - old, alpha=count / total)
        self.mean = self.mean + apart * (count / total)
        self.count = total

    def total(self, divisor: int) -> list[Tensor]:
        """Return the sum of centred products, divided by `divisor`."""
        return [array / divisor for array in self.sums]


def _log_likelihoods(network: FlatNetwork, thetas: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """Return the log-likelihood of each image of a batch under each draw, (draws, batch)."""
    import torch

    from bpcbench_bpc.energy import outputs

    parts = images.split(_ROWS) if network.row_wise and not images.is_cuda else (images,)
    with torch.no_grad():
        logits = torch.cat([outputs(network, thetas, part) for part in parts], 1)
    log_probs = torch.log_softmax(logits, -1)
    return log_probs.gather(-1, labels[None, :, None].expand(len(thetas), -1, 1)).squeeze(2)


def _pseudo(problem: Problem, thetas: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return each coreset image's log-likelihood under each draw, (draws, n), and the gradients of each draw's sum."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    from bpcbench_bpc.energy import outputs

    count = len(thetas)
    # One copy per draw, so that one backward pass gives the gradient of each draw.
    leaves = [leaf.detach().expand(count, *leaf.shape).clone().requires_grad_() for leaf in problem.learned]
    targets = problem.classes if problem.logits is None else torch.softmax(leaves[1], -1)
    logits = outputs(problem.network, thetas, leaves[0])
    each = targets if problem.logits is not None else targets.expand(count, -1)
    values = -F.cross_entropy(logits.flatten(0, 1), each.flatten(0, 1), reduction="none").view(count, -1)
    slopes = torch.autograd.grad(values.sum(), leaves)
    return values.detach(), list(slopes)
