"""BPC-rKL. Torch is imported when distillation starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bpcbench.api import option
from bpcbench_bpc.method import TrajectoryMethod
from bpcbench_bpc.together import GPU_BYTES, chunks, together
from bpcbench_bpc.trajectories import Trajectories
from bpcbench_torch.memory import FLOAT, Sizes, trained_together
from bpcbench_torch.networks import batch_normalised

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
    chunk: int = option(1, "draws whose noise is drawn at once, and that are computed together by vmap")
    together: int | None = option(
        None,
        "draws computed together, with the noise of chunks; none: a chunk, on a GPU as many as fit in 1 GB",
        key=False,
    )

    def __post_init__(self) -> None:
        """Reject invalid values."""
        super().__post_init__()
        if not self.sigma > 0 or self.draws < 2 or self.chunk < 1 or self.batch < 1:
            raise ValueError("sigma must be above 0, draws at least 2, chunk and batch at least 1")
        if self.together is not None and self.together < 1:
            raise ValueError(f"together must be at least 1, got {self.together}")

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
        """Return those of the covariance, and of real images or coreset under the draws that a GPU computes together.

        On a CPU these may be fewer.
        """
        return self._of_draws(self._together(these)[0], these)

    def replayed_numbers(self, these: Sizes, kinds: int) -> float:
        """Return those of recording a part: draws have no augmentation, so only a rest of them is recorded apart."""
        count, inner = self._together(these)[0], self.inner_numbers(these, augmented=True)
        draws, rest = self._of_draws(count, these), self.draws % count
        again = max(inner, self._of_draws(rest, these) if rest else 0.0)
        return max(draws + again, 2 * inner) + self.recorded_numbers(these, kinds)

    def recorded_numbers(self, these: Sizes, kinds: int) -> float:
        """Return those of the inner SGD, its result, and the gradients of the draws."""
        gradients = self._together(these)[0] * these.rows * these.pixels
        return (2 + kinds) * these.parameters + gradients

    def _together(self, these: Sizes) -> tuple[int, int]:
        """Return how many draws a GPU computes together, and how many real images per forward pass."""
        return self._fitting(these, gpu=True, row_wise=not batch_normalised(self.network))

    def _of_draws(self, count: int, these: Sizes) -> float:
        """Return the numbers of so many draws, of which a GPU takes as many real images as fit."""
        real = count * min(self.batch, self._together(these)[1]) * these.one.forward
        return max(real, self._numbers(count, these)) + 3 * these.rows * these.pixels + 5 * these.parameters

    def _numbers(self, count: int, these: Sizes) -> float:
        passes = these.rows * these.one.gradient
        if count > 1:
            passes = trained_together(these, these.rows, count, augmented=False)
        return passes + count * (2 * these.rows * these.pixels + these.parameters)

    def _rows(self, count: int, these: Sizes, *, gpu: bool) -> int:
        """Return the real images per forward pass: as many as suit a CPU, or as fit in the memory for draws."""
        if count == self.chunk and not gpu:
            return _ROWS
        return max(1, int(GPU_BYTES / FLOAT / count / these.one.forward))

    def _size(self, problem: Problem) -> tuple[int, int]:
        """Return how many draws are computed together, and how many real images per forward pass."""
        these, gpu, row_wise = problem.sizes, problem.images.is_cuda, problem.network.row_wise
        if these is not None:
            return self._fitting(these, gpu=gpu, row_wise=row_wise)
        count = together(self.together, chunk=self.chunk, draws=self.draws, gpu=gpu, numbers=None)
        return count, self.batch if gpu or not row_wise else _ROWS

    def _fitting(self, these: Sizes, *, gpu: bool, row_wise: bool) -> tuple[int, int]:
        """Return the same for known sizes: BatchNorm takes all real images at a time."""

        def numbers(count: int) -> float:
            whole = 0.0 if row_wise else count * self.batch * these.one.forward
            return max(self._numbers(count, these), whole)

        count = together(self.together, chunk=self.chunk, draws=self.draws, gpu=gpu, numbers=numbers)
        return count, self._rows(count, these, gpu=gpu) if row_wise else self.batch

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
        size, rows = self._size(problem)
        for first in range(0, self.draws, size):
            counts = chunks(first, size, self.chunk, self.draws)

            def region(counts: Sequence[int] = counts) -> tuple[Tensor, ...]:
                noisy = [problem.around(fitted, self.sigma, count) for count in counts]
                thetas = noisy[0] if len(noisy) == 1 else torch.cat(noisy)
                pseudo, slopes = _pseudo(problem, thetas)
                return _log_likelihoods(problem.network, thetas, images.split(rows), labels), pseudo, *slopes

            fixed = [fitted, images, labels, *problem.fixed]
            real, pseudo, *slopes = regions(("rkl", *counts), region, fixed=fixed)
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


def _log_likelihoods(network: FlatNetwork, thetas: Tensor, parts: Sequence[Tensor], labels: Tensor) -> Tensor:
    """Return the log-likelihood of each image of a batch, in parts, under each draw, (draws, batch)."""
    import torch

    from bpcbench_bpc.energy import outputs

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
