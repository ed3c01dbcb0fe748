"""The inner SGD on the coreset, shared by all methods: with constant images, or differentiable."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from bpcbench_bpc.energy import Kind, energy
from bpcbench_bpc.problem import Distortion, Problem, add, pulled
from bpcbench_torch.capture import Region


def descend(
    problem: Problem,
    theta: Tensor,
    steps: int,
    *,
    keep: int = 1,
    noise: float = 0.0,
    compounding: bool = False,
    kind: Kind = "ce",
) -> list[Tensor]:
    """Return the last `keep` iterates of theta <- theta - rate * grad E(theta; A(u)) + noise * N(0, I).

    Every step uses all images and a new augmentation A, applied to the images or, if `compounding`, to the augmented
    images of the step before. Images are constants: no graph outlives a step. Each step is a region.
    """
    current = [theta.detach(), *([problem.images.detach()] if compounding else [])]
    kept = deque(current[:1], maxlen=keep)
    for index in range(steps):
        distortion = problem.choose()

        def step(theta: Tensor, *before: Tensor, distortion: Distortion = distortion) -> tuple[Tensor, ...]:
            x = distortion(before[0] if compounding else problem.images.detach())
            leaf = theta.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(energy(problem.network(leaf, x), problem.targets().detach(), kind), leaf)
            theta = leaf.detach() - problem.rate.detach() * gradient
            if noise:
                theta += noise * problem.normal(problem.network.size)
            return (theta, x) if compounding else (theta,)

        key = ("descend", distortion, kind, noise, compounding)
        current = list(problem.regions(key, step, current, problem.fixed))
        kept.append(problem.regions.own(current[0]) if index >= steps - keep else current[0])
    return [iterate.detach() for iterate in kept]


@dataclass
class _Step:
    """One inner step: its start, its augmentation, and either the random numbers of that or its graph."""

    theta: Tensor
    distortion: Distortion
    numbers: list[Tensor]
    graph: _Graph | None = None


@dataclass
class _Graph:
    """The gradient of an inner step as a function of `inputs`; `x` and `y` are functions of the learned tensors."""

    x: Tensor
    y: Tensor
    inputs: list[Tensor]
    gradient: Tensor

    @classmethod
    def of(cls, problem: Problem, theta: Tensor, x: Tensor, y: Tensor) -> _Graph:
        """Return the graph of the gradient at theta for augmented images and targets."""
        inputs = [theta.detach().requires_grad_(), x.detach().requires_grad_()]
        if y.is_floating_point():
            inputs.append(y.detach().requires_grad_())
        loss = energy(problem.network(inputs[0], inputs[1]), inputs[2] if len(inputs) > 2 else y)
        return cls(x, y, inputs, torch.autograd.grad(loss, inputs[0], create_graph=True)[0])

    def pull(self, rate: Tensor, adjoint: Tensor, leaves: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the change of the adjoint, and the gradients of the rate (with its sign changed) and the leaves."""
        along = self.gradient.detach() @ adjoint
        moved, *slopes = torch.autograd.grad(self.gradient, self.inputs, -rate * adjoint)
        return moved, along, pulled(self.x, self.y, slopes, leaves)


class Unrolled:
    """T steps of theta <- theta - rate * grad E(theta; A(u)), with exact derivatives.

    Each step has its own graph, and `pull` chains them by hand. With g the step's gradient and l the adjoint,
    l <- l - rate * d<g, l>/dtheta, while -rate * d<g, l>/du and -<g, l> go to the images and the rate. So the graphs of
    all but the last `graphs` steps can be dropped and rebuilt when needed, from the step's start and the random numbers
    of its augmentation. The results are bitwise equal; each dropped graph saves its memory and costs one more forward
    and backward pass. A step whose graph is dropped is a region, and so is pulling back through it.
    """

    def __init__(self, problem: Problem, theta: Tensor, steps: int, *, graphs: int | None = None) -> None:
        self.problem = problem
        self.rate = problem.rate.detach()
        self.steps: list[_Step] = []
        theta = theta.detach()
        for index in range(steps):
            distortion = problem.choose()
            if graphs is None or index >= steps - graphs:
                graph = _Graph.of(problem, theta, distortion(problem.images), problem.targets())
                self.steps.append(_Step(theta, distortion, [], graph))
                theta = theta - self.rate * graph.gradient.detach()
            else:
                moved, *numbers = problem.regions(
                    ("unrolled", distortion), _stepping(problem, distortion), [theta], problem.fixed
                )
                self.steps.append(_Step(theta, distortion, [problem.regions.own(number) for number in numbers]))
                theta = problem.regions.own(moved)
        self.theta = theta
        """The last iterate, as a constant."""

    def last(self, count: int) -> list[Tensor]:
        """Return the last `count` iterates, as constants; call it before `pull`."""
        iterates = [*(step.theta for step in self.steps), self.theta]
        return [iterate.detach() for iterate in iterates[-count:]]

    def pull(self, adjoint: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the gradients of the learned tensors and of the rate, given the gradient in the last iterate.

        It frees the graphs, so it can be called only once.
        """
        problem = self.problem
        total: list[Tensor] | None = None
        rate = torch.zeros_like(self.rate)
        while self.steps:
            step = self.steps.pop()
            if step.graph is not None:
                moved, along, slopes = step.graph.pull(self.rate, adjoint, problem.learned)
                adjoint = adjoint + moved
            else:
                adjoint, along, *slopes = problem.regions(
                    ("pull", step.distortion),
                    _pulling(problem, step.distortion),
                    [step.theta, adjoint, *step.numbers],
                    problem.fixed,
                )
                if total is None:
                    slopes = [problem.regions.own(slope) for slope in slopes]
            rate -= along
            total = add(total, slopes)
        if total is None:
            total = [torch.zeros_like(leaf) for leaf in problem.learned]
        return total, rate


def _stepping(problem: Problem, distortion: Distortion) -> Region:
    """Return the region of an inner step: from theta to the next one and the random numbers of the augmentation."""

    def region(theta: Tensor) -> tuple[Tensor, ...]:
        x, numbers = distortion.recorded(problem.images.detach())
        gradient = _Graph.of(problem, theta, x, problem.targets().detach()).gradient.detach()
        return theta - problem.rate.detach() * gradient, *numbers

    return region


def _pulling(problem: Problem, distortion: Distortion) -> Region:
    """Return the region that pulls an adjoint back: to the next one, and the gradients of the rate and the leaves."""

    def region(theta: Tensor, adjoint: Tensor, *numbers: Tensor) -> tuple[Tensor, ...]:
        leaves, targets = problem.copies()
        graph = _Graph.of(problem, theta, distortion.repeated(leaves[0], numbers), targets)
        moved, along, slopes = graph.pull(problem.rate.detach(), adjoint, leaves)
        return adjoint + moved, along, *slopes

    return region
