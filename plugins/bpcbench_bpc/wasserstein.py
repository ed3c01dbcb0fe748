"""BPC-W. Torch is imported when distillation starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bpcbench.api import option
from bpcbench_bpc.graphs import graphs_used, kept_graphs
from bpcbench_bpc.method import TrajectoryMethod
from bpcbench_torch.memory import Sizes, unrolled

if TYPE_CHECKING:
    from torch import Tensor

    from bpcbench_bpc.problem import Estimate, Problem


@dataclass(frozen=True)
class Wasserstein(TrajectoryMethod):
    """BPC-W (Kim et al., NeurIPS 2022), which is MTT (Cazenavette et al., CVPR 2022): match the expert's parameters.

    Between Gaussians of equal covariance W_2^2 is the squared distance of the means, here relative to the distance that
    the expert covers:

        L(u, rate) = ||theta_u(u, rate) - tau_{t+e}||^2 / ||tau_t - tau_{t+e}||^2,

    differentiated exactly through all T inner steps (second order). The step size of the inner SGD is learned too. In
    the public code (official) it may become negative; clean keeps it above a hundredth of its initial value.
    """

    name: ClassVar[str] = "bpc-w"

    rate_lr: float = option(1e-5, "learning rate of the inner step size")
    graphs: int | None = option(
        None,
        "inner steps whose graph is kept; the others are recomputed; none: what fits in 4 GB, 0 on a GPU",
        key=False,
    )

    def __post_init__(self) -> None:
        """Reject invalid values."""
        super().__post_init__()
        if self.rate_lr < 0 or (self.graphs is not None and self.graphs < 0):
            raise ValueError("rate_lr and graphs must not be negative")

    def rate_learning(self) -> float:
        """Return the learning rate of the inner step size."""
        return self.rate_lr

    def constrain(self, rate: Tensor) -> None:
        """Keep the step size positive."""
        if not self.official:
            rate.data.clamp_(min=self.inner_lr / 100)

    def passes(self) -> int:
        """Return the steps of the inner SGD; pulling back through one is worth two."""
        return 3 * self.inner_steps

    def estimate_numbers(self, these: Sizes, *, augmented: bool) -> float:
        """Return those of the unrolled steps: the graphs that are kept, and one that is pulled back through."""
        graphs = kept_graphs(these, self.inner_steps, augmented=augmented) if self.graphs is None else self.graphs
        return unrolled(these, self.inner_steps, graphs, augmented=augmented)

    def region_numbers(self, these: Sizes) -> float:
        """Return those of a step that is recomputed and pulled back through."""
        return unrolled(these, 1, 1, augmented=True)

    def replayed_numbers(self, these: Sizes, kinds: int) -> float:
        """Return those of all steps without their graphs, and of recording one."""
        part = unrolled(these, self.inner_steps, 0, augmented=True) + self.region_numbers(these)
        return part + self.recorded_numbers(these, kinds)

    def estimate(self, problem: Problem) -> Estimate:
        """Return the gradients of L."""
        from bpcbench_bpc.inner import Unrolled
        from bpcbench_bpc.problem import Estimate

        start, target = problem.window(0), problem.window(self.ahead)
        graphs = graphs_used(self.graphs, problem, self.inner_steps)
        unrolled = Unrolled(problem, start, self.inner_steps, graphs=graphs)
        squared_distance = (start - target).square().sum()
        error = unrolled.theta - target
        loss = error.square().sum() / squared_distance
        gradients, rate = unrolled.pull(2 * error / squared_distance)
        return Estimate(
            gradients, rate, {"loss": loss, "rate": problem.rate.detach(), "distance": squared_distance.sqrt()}
        )
