"""FBPC. Torch is imported when distillation starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from bpcbench.api import option
from bpcbench_bpc.graphs import graphs_used, kept_graphs
from bpcbench_bpc.method import TrajectoryMethod
from bpcbench_bpc.trajectories import Trajectories
from bpcbench_torch.memory import Sizes, unrolled

if TYPE_CHECKING:
    from torch import Tensor

    from bpcbench_bpc.problem import Estimate, Problem


@dataclass(frozen=True)
class FunctionSpace(TrajectoryMethod):
    """FBPC (Kim, Lee & Lee, NeurIPS 2023): the forward KL between posteriors of functions. A reconstruction.

    We found no public code: the form follows published descriptions, and the constants are ours. Tables show it without
    ranking it. The exact gradient is
    grad_u D[nu_x || nu_u] = E_{f~nu_x}[grad_u CE(f(u), y)] - E_{f~nu_u}[grad_u CE(f(u), y)], so only the marginals at u
    matter. Linearised, they are Gaussian: [nu]_u = N(f(u; mu), Psi), with Psi the empirical covariance of the outputs
    f(u; theta_j) of J points of a trajectory. With R_j = (f(u; theta_j) - mean) / sqrt(J - 1), or 0 if J = 1,

        z = f(A(u); mu) + sum_j R_j e_j + delta e_0,   L = mean over draws of CE(z_x, y) - CE(z_u, y),

    where e_j is one number for all of u (the full low-rank covariance) or, with `diagonal`, independent entries of the
    same variances. The theta_j are tau_{t+e}, ... of the expert, with mu_x their mean, and the last J iterates of the
    inner SGD, with mu_u the last one. The gradient flows through f(A(u); mu) only.

    `variant: real` is another interpretation: KL[N(m_x, v_x) || N(m_u, v_u)] of the outputs at a batch of real images,
    entry by entry, differentiated with respect to u by unrolling theta_u (as in BPC-W). m_u is the output of the last
    iterate, and the variances, with delta^2 added, are constants. `official` changes only what all methods share.
    """

    name: ClassVar[str] = "fbpc"
    ranked: ClassVar[bool] = False

    points: int = option(5, "J: points of each trajectory")
    delta: float = option(1e-3, "standard deviation of the jitter of outputs")
    draws: int = option(20, "draws of outputs per iteration; they are cheap")
    covariance: Literal["low-rank", "diagonal"] = option("low-rank", "covariance of the outputs")
    variant: Literal["coreset", "real"] = option("coreset", "where functions are compared: at u, or at real images")
    batch: int = option(256, "real images per iteration of the variant `real`")
    graphs: int | None = option(
        None,
        "variant `real`: inner steps whose graph is kept, others are recomputed; none: what fits in 4 GB, 0 on a GPU",
        key=False,
    )

    def __post_init__(self) -> None:
        """Reject invalid values."""
        super().__post_init__()
        if self.points < 1 or self.draws < 1 or self.batch < 1:
            raise ValueError("points, draws and batch must be at least 1")
        if self.points > self.inner_steps + 1:
            raise ValueError(f"{self.points} points need at least {self.points - 1} inner_steps")
        if self.delta < 0 or (self.variant == "real" and self.delta == 0):
            raise ValueError("delta must not be negative, and must be above 0 for the variant `real`")
        if self.graphs is not None and self.graphs < 0:
            raise ValueError("graphs must not be negative")

    def reach(self, plan: Trajectories) -> int:
        """Return the distance from a window's start to the last of the J points."""
        return self.ahead + (self.points - 1) * plan.stride

    def notes(self) -> tuple[str, ...]:
        """Mark results as a reconstruction."""
        return (*super().notes(), "reconstruction")

    def batch_used(self) -> int:
        """Return the batch size of the variant `real`; the other variant needs no real images."""
        return self.batch if self.variant == "real" else 0

    def passes(self) -> int:
        """Return the steps of the inner SGD and the points of either side."""
        return self.inner_steps + 2 * self.points

    def estimate_numbers(self, these: Sizes, *, augmented: bool) -> float:
        """Return those of one pass in the images beside the points; of the variant `real`, of the unrolled steps."""
        points = 3 * self.points * these.parameters
        if self.variant == "coreset":
            # The points of one side lie there as a list while they are stacked, before a pass with those of both.
            beside = 2 * self.points * these.parameters
            return max(points + these.parameters, self._pass_numbers(these, augmented=augmented) + beside)
        at_real = self.batch * these.one.gradient
        graphs = kept_graphs(these, self.inner_steps, augmented=augmented) if self.graphs is None else self.graphs
        return max(unrolled(these, self.inner_steps, graphs, augmented=augmented), at_real) + points

    def region_numbers(self, these: Sizes) -> float:
        """Return those of a pass or, for the variant `real`, of a step that is recomputed and pulled back through."""
        if self.variant == "coreset":
            return super().region_numbers(these)
        return max(unrolled(these, 1, 1, augmented=True), self.batch * these.one.gradient)

    def replayed_numbers(self, these: Sizes, kinds: int) -> float:
        """Return those of recording a part; for the variant `real` beside all steps without their graphs."""
        if self.variant == "coreset":
            one, inner = self.points * these.parameters, self.inner_numbers(these, augmented=True)
            part = max(inner, self._pass_numbers(these, augmented=True))
            beside = max(3 * one, 2 * one + (part if kinds > 1 else inner))
            return part + beside + self.recorded_numbers(these, kinds)
        part = unrolled(these, self.inner_steps, 0, augmented=True) + self.region_numbers(these)
        return part + self.recorded_numbers(these, kinds)

    def _pass_numbers(self, these: Sizes, *, augmented: bool) -> float:
        return super().estimate_numbers(these, augmented=augmented)

    def recorded_numbers(self, these: Sizes, kinds: int) -> float:
        """Return those of all methods, and of the points, which one region reads."""
        return super().recorded_numbers(these, kinds) + 2 * self.points * these.parameters

    def estimate(self, problem: Problem) -> Estimate:
        """Return the gradient of L, or of the KL of the variant `real`."""
        import torch

        assert isinstance(self.trajectories, Trajectories)
        start, stride = problem.window(0), self.trajectories.stride
        expert = torch.stack([problem.window(self.ahead + j * stride) for j in range(self.points)])
        return self._at_real(problem, start, expert) if self.variant == "real" else self._at_u(problem, start, expert)

    def _at_u(self, problem: Problem, start: Tensor, expert: Tensor) -> Estimate:
        import torch

        from bpcbench_bpc.inner import descend
        from bpcbench_bpc.problem import Estimate, pulled

        chain = torch.stack(descend(problem, start, self.inner_steps, keep=self.points))
        distortion = problem.choose()

        def region(expert: Tensor, chain: Tensor) -> tuple[Tensor, ...]:
            leaves, y = problem.copies()
            x = distortion(leaves[0])
            plus, above = self._side(problem, expert, x, y, mean=expert.mean(0))
            minus, below = self._side(problem, chain, x, y)
            return plus - minus, *pulled(x, y, [a - b for a, b in zip(above, below, strict=True)], leaves)

        loss, *gradients = problem.regions(("fbpc", distortion), region, [expert, chain], fixed=problem.fixed)
        return Estimate(gradients, values={"loss": problem.regions.own(loss)})

    def _side(
        self, problem: Problem, thetas: Tensor, images: Tensor, targets: Tensor, *, mean: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the mean energy of outputs drawn around those of `mean` or the last point, and its gradients."""
        import torch

        from bpcbench_bpc.energy import energy

        y = targets.detach()
        inputs = [images.detach().requires_grad_()]
        if y.is_floating_point():
            inputs.append(y.requires_grad_())
        # The outputs of a single point, or of the last point if it is the mean, are those of the centre. The others
        # come first: later they would need their memory beside the centre's graph.
        others = thetas[:-1] if mean is None or len(thetas) == 1 else thetas
        with torch.no_grad():
            apart = [problem.network(theta, images) for theta in others]
        centre = problem.network(thetas[-1] if mean is None else mean, inputs[0])
        with torch.no_grad():
            outputs = torch.stack(apart + [centre] * (len(thetas) - len(others)))
        z = draw_outputs(centre, outputs, self.covariance, self.delta, self.draws, problem.normal)
        repeated = y.expand(self.draws, *y.shape).flatten(0, 1)
        value = energy(z.flatten(0, 1), repeated)
        return value.detach(), torch.autograd.grad(value, inputs)

    def _at_real(self, problem: Problem, start: Tensor, expert: Tensor) -> Estimate:
        import torch

        from bpcbench_bpc.inner import Unrolled
        from bpcbench_bpc.problem import Estimate

        graphs = graphs_used(self.graphs, problem, self.inner_steps)
        unrolled = Unrolled(problem, start, self.inner_steps, graphs=graphs)
        chain = torch.stack(unrolled.last(self.points))
        images, _ = problem.real()

        def region(expert: Tensor, chain: Tensor, images: Tensor) -> tuple[Tensor, ...]:
            with torch.no_grad():
                expert_outputs = torch.stack([problem.network(theta, images) for theta in expert])
                chain_outputs = torch.stack([problem.network(theta, images) for theta in chain])
            floor = self.delta**2
            v_x, v_u = (
                outputs.var(0) + floor if self.points > 1 else torch.full_like(outputs[0], floor)
                for outputs in (expert_outputs, chain_outputs)
            )
            theta = chain[-1].detach().requires_grad_()
            error = expert_outputs.mean(0) - problem.network(theta, images)
            kl = 0.5 * ((v_x + error.square()) / v_u + v_u.log() - v_x.log() - 1).sum() / len(images)
            return kl.detach(), torch.autograd.grad(kl, theta)[0]

        kl, adjoint = problem.regions("fbpc at real images", region, [expert, chain, images])
        gradients, _ = unrolled.pull(adjoint)
        return Estimate(gradients, values={"loss": problem.regions.own(kl)})


def draw_outputs(
    centre: Tensor,
    outputs: Tensor,
    covariance: Literal["low-rank", "diagonal"],
    delta: float,
    draws: int,
    normal: Callable[..., Tensor],
) -> Tensor:
    """Return Gaussian outputs (draws, n, k) around `centre` (n, k), with the covariance of `outputs` (J, n, k).

    `low-rank` uses the full empirical covariance between all entries, `diagonal` only its diagonal. Both add
    independent jitter of standard deviation `delta`. `normal(*shape)` draws standard normal numbers.
    """
    import torch

    points = len(outputs)
    z = centre.expand(draws, *centre.shape)
    if points > 1:
        spread = (outputs - outputs.mean(0)) / (points - 1) ** 0.5
        if covariance == "low-rank":
            z = z + torch.einsum("dj,jnk->dnk", normal(draws, points), spread)
        else:
            z = z + normal(*z.shape) * torch.linalg.vector_norm(spread, dim=0)
    return z + delta * normal(*z.shape) if delta else z
