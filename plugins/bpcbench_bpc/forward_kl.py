"""BPC-fKL. Torch is imported when distillation starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from bpcbench.api import option
from bpcbench_bpc.method import TrajectoryMethod
from bpcbench_bpc.together import chunks, together
from bpcbench_torch.memory import DIFFERENTIATED, Sizes, trained_together

if TYPE_CHECKING:
    from torch import Tensor

    from bpcbench_bpc.problem import Distortion, Estimate, Problem

    Ends = tuple[Tensor, Tensor]


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
    chunk: int = option(1, "draws whose noise is drawn at once, and that are computed together by vmap")
    together: int | None = option(
        None,
        "draws computed together, with the noise of chunks; none: a chunk, on a GPU as many as fit in 1 GB",
        key=False,
    )

    def __post_init__(self) -> None:
        """Reject invalid values."""
        super().__post_init__()
        if self.sigma < 0 or self.draws < 1 or self.chunk < 1:
            raise ValueError("sigma must not be negative, draws and chunk must be at least 1")
        if self.together is not None and self.together < 1:
            raise ValueError(f"together must be at least 1, got {self.together}")

    def passes(self) -> int:
        """Return the steps of the inner SGD and the draws around either end."""
        return self.inner_steps + 2 * self.draws

    def estimate_numbers(self, these: Sizes, *, augmented: bool) -> float:
        """Return those of the draws that are computed together on a GPU, which may be more than on a CPU."""
        return self._numbers(self._together(these, augmented=augmented), these, augmented=augmented)

    def replayed_numbers(self, these: Sizes, kinds: int) -> float:
        """Return those of recording a part; draws that are computed together are recorded once, and once for a rest."""
        count = self._together(these, augmented=True)
        if count == self.chunk:
            return super().replayed_numbers(these, kinds)
        beside = max(self.inner_numbers(these, augmented=True), 2 * (self.draws % count) * these.parameters)
        noise = 2 * self.chunk * these.parameters
        return self._numbers(count, these, augmented=True) + beside + noise + self.recorded_numbers(these, kinds)

    def _together(self, these: Sizes, *, augmented: bool) -> int:
        numbers = partial(self._numbers, these=these, augmented=augmented)
        return together(self.together, chunk=self.chunk, draws=self.draws, gpu=True, numbers=numbers)

    def _numbers(self, count: int, these: Sizes, *, augmented: bool) -> float:
        images = these.rows * these.pixels * (2 + DIFFERENTIATED * augmented)
        if count == 1:
            return these.rows * these.one.gradient + images + 6 * these.parameters
        passes = trained_together(these, these.rows, count, augmented=False)
        # Draws lie there one by one and stacked, and once more where a graph reads them.
        return passes + count * images + (6 * count + 4) * these.parameters

    def estimate(self, problem: Problem) -> Estimate:
        """Return the gradient above."""
        import torch

        from bpcbench_bpc.inner import descend
        from bpcbench_bpc.problem import Estimate, add

        regions = problem.regions
        start, target = problem.window(0), problem.window(self.ahead)
        (fitted,) = descend(problem, start, self.inner_steps)
        ends = regions.hold("fitted", fitted), regions.hold("target", target)
        size = self._size(problem)
        total, loss = None, fitted.new_zeros(())
        for first in range(0, self.draws, size):
            counts = chunks(first, size, self.chunk, self.draws)
            apart, *gradients = (self._chunk if len(counts) == 1 else self._chunks)(problem, ends, counts)
            total = add(total, [regions.own(one) for one in gradients] if total is None else gradients)
            loss += apart
        assert total is not None
        moved, distance = (torch.linalg.vector_norm(end - start) for end in (fitted, target))
        return Estimate(total, values={"loss": loss, "moved": moved, "distance": distance})

    def _size(self, problem: Problem) -> int:
        these, numbers = problem.sizes, None
        if these is not None:
            numbers = partial(self._numbers, these=these, augmented=True)
        gpu = problem.images.is_cuda
        return together(self.together, chunk=self.chunk, draws=self.draws, gpu=gpu, numbers=numbers)

    def _chunk(self, problem: Problem, ends: Ends, counts: Sequence[int]) -> tuple[Tensor, ...]:
        """Return the share of a chunk of draws of the loss, and of the gradients of the learned tensors."""
        import torch

        from bpcbench_bpc.problem import pulled

        distortions = tuple(problem.choose() for _ in range(counts[0]))

        def region() -> tuple[Tensor, ...]:
            leaves, y = problem.copies()
            x = torch.stack([distortion(leaves[0]) for distortion in distortions])
            apart, slopes = self._terms(problem, x, y, *(problem.around(end, self.sigma, len(x)) for end in ends))
            return apart, *pulled(x, y, slopes, leaves)

        return problem.regions(("fkl", distortions), region, fixed=[*ends, *problem.fixed])

    def _chunks(self, problem: Problem, ends: Ends, counts: Sequence[int]) -> tuple[Tensor, ...]:
        """Return the same for several chunks at a time.

        A region of all of it would depend on what every draw has drawn, so each augmentation is a region of its own.
        """
        import torch

        from bpcbench_bpc.problem import add

        regions, drawn, noisy = problem.regions, [], []
        for count in counts:
            for distortion in [problem.choose() for _ in range(count)]:
                seen, *numbers = (regions.own(one) for one in _augment(problem, distortion))
                drawn.append((distortion, seen, numbers))
            noisy.append([regions.own(thetas) for thetas in self._noisy(problem, ends, count)])
        low, high = (torch.cat(side) for side in zip(*noisy, strict=True))

        def region(x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, ...]:
            leaves, y = problem.copies()
            apart, slopes = self._terms(problem, x, y, low, high)
            return apart, slopes[0], *(torch.autograd.grad(y, leaves[1:], slopes[1:]) if len(leaves) > 1 else ())

        stacked = torch.stack([seen for _, seen, _ in drawn])
        apart, slopes, *others = regions(("fkl", "together"), region, [stacked, low, high], problem.fixed)
        total: list[Tensor] | None = None
        for (distortion, _, numbers), slope in zip(drawn, slopes, strict=True):

            def back(slope: Tensor, *numbers: Tensor, distortion: Distortion = distortion) -> tuple[Tensor, ...]:
                leaf = problem.images.detach().requires_grad_()
                return tuple(torch.autograd.grad(distortion.repeated(leaf, numbers), leaf, slope))

            found = regions(("fkl", "back", distortion), back, [slope, *numbers], problem.fixed)
            total = add(total, [regions.own(found[0])] if total is None else list(found))
        assert total is not None
        return apart, *total, *others

    def _noisy(self, problem: Problem, ends: Ends, count: int) -> tuple[Tensor, ...]:
        """Return a chunk of draws around either end."""

        def region() -> tuple[Tensor, ...]:
            return tuple(problem.around(end, self.sigma, count) for end in ends)

        return problem.regions(("fkl", "noise", count), region, fixed=ends)

    def _terms(self, problem: Problem, x: Tensor, y: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the share of some draws of the loss, and of the gradients in their images and targets."""
        from bpcbench_bpc.energy import slopes

        minus, below = slopes(problem.network, low, x, y)
        plus, above = slopes(problem.network, high, x, y)
        return (plus - minus) / self.draws, [(a - b) / self.draws for a, b in zip(above, below, strict=True)]


def _augment(problem: Problem, distortion: Distortion) -> tuple[Tensor, ...]:
    """Return the images under an augmentation, and its random numbers."""

    def region() -> tuple[Tensor, ...]:
        x, numbers = distortion.recorded(problem.images.detach())
        return x, *numbers

    return problem.regions(("augmented", distortion), region, fixed=problem.fixed)
