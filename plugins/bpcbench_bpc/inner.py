"""The inner SGD on the coreset, shared by all methods: with constant images, or differentiable."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from bpcbench_bpc.energy import Kind, energy
from bpcbench_bpc.problem import Problem, add


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
    images of the step before. Images are constants: no graph outlives a step.
    """
    rate, images, targets = problem.rate.detach(), problem.images.detach(), problem.targets().detach()
    theta = theta.detach()
    kept = deque([theta], maxlen=keep)
    x = images
    for _ in range(steps):
        x = problem.augment(x if compounding else images)
        leaf = theta.requires_grad_()
        (gradient,) = torch.autograd.grad(energy(problem.network(leaf, x), targets, kind), leaf)
        theta = leaf.detach() - rate * gradient
        if noise:
            theta += noise * problem.normal(problem.network.size)
        kept.append(theta)
    return [iterate.detach() for iterate in kept]


@dataclass
class _Step:
    """One inner step: its start, its inputs (`x` and `y` as functions of the learned tensors), and its gradient."""

    theta: Tensor
    x: Tensor
    y: Tensor
    inputs: list[Tensor]
    gradient: Tensor | None


class Unrolled:
    """T steps of theta <- theta - rate * grad E(theta; A(u)), with exact derivatives.

    Each step has its own graph, and `pull` chains them by hand. With g the step's gradient and l the adjoint,
    l <- l - rate * d<g, l>/dtheta, while -rate * d<g, l>/du and -<g, l> go to the images and the rate. So the graphs of
    all but the last `graphs` steps can be dropped and rebuilt when needed. The results are bitwise equal; each dropped
    graph saves its memory and costs one more forward and backward pass.
    """

    def __init__(self, problem: Problem, theta: Tensor, steps: int, *, graphs: int | None = None) -> None:
        self.problem = problem
        self.rate = problem.rate.detach()
        self.steps: list[_Step] = []
        theta = theta.detach()
        for index in range(steps):
            step = self._step(theta)
            gradient = self._gradient(step)
            theta = theta.detach() - self.rate * gradient.detach()
            if graphs is None or index >= steps - graphs:
                step.gradient = gradient
            self.steps.append(step)
            del gradient  # else a graph that is dropped lives on beside the next one
        self.theta = theta
        """The last iterate, as a constant."""

    def _step(self, theta: Tensor) -> _Step:
        x, y = self.problem.augment(self.problem.images), self.problem.targets()
        inputs = [theta.detach().requires_grad_(), x.detach().requires_grad_()]
        if y.is_floating_point():
            inputs.append(y.detach().requires_grad_())
        return _Step(theta, x, y, inputs, None)

    def _gradient(self, step: _Step) -> Tensor:
        theta, x = step.inputs[:2]
        y = step.inputs[2] if len(step.inputs) > 2 else step.y
        (gradient,) = torch.autograd.grad(energy(self.problem.network(theta, x), y), theta, create_graph=True)
        return gradient

    def last(self, count: int) -> list[Tensor]:
        """Return the last `count` iterates, as constants; call it before `pull`."""
        iterates = [*(step.theta for step in self.steps), self.theta]
        return [iterate.detach() for iterate in iterates[-count:]]

    def pull(self, adjoint: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the gradients of the learned tensors and of the rate, given the gradient in the last iterate.

        It frees the graphs, so it can be called only once.
        """
        total: list[Tensor] | None = None
        rate = torch.zeros_like(self.rate)
        while self.steps:
            step = self.steps.pop()
            gradient = self._gradient(step) if step.gradient is None else step.gradient
            rate -= gradient.detach() @ adjoint
            moved, *slopes = torch.autograd.grad(gradient, step.inputs, -self.rate * adjoint)
            total = add(total, self.problem.back(step.x, step.y, tuple(slopes)))
            adjoint = adjoint + moved
        if total is None:
            total = [torch.zeros_like(leaf) for leaf in self.problem.learned]
        return total, rate
