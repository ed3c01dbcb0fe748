"""BPC-W's gradients through the inner SGD."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from bpcbench_bpc.inner import Unrolled, descend
from bpcbench_bpc.wasserstein import Wasserstein

STEPS = 4


def loss_of(problem, steps=STEPS):
    """The loss, spelled out step by step without the code under test."""
    theta, target = problem.window(0), problem.window(1)
    way = (theta - target).square().sum()
    for _ in range(steps):
        leaf = theta.detach().requires_grad_()
        logits = problem.network(leaf, problem.images.detach())
        log_probs = torch.log_softmax(logits, 1)
        targets = problem.targets().detach()
        if not targets.is_floating_point():
            targets = F.one_hot(targets, 3).double()
        (slope,) = torch.autograd.grad(-(targets * log_probs).sum(1).mean(), leaf)
        theta = theta - problem.rate.detach() * slope
    return (theta - target).square().sum() / way


@pytest.mark.parametrize("graphs", [None, 0, 2])
@pytest.mark.parametrize("learned", [False, True])
def test_gradients_against_central_differences(make_problem, central_difference, learned, graphs):
    problem = make_problem(learned_labels=learned)
    estimate = Wasserstein(inner_steps=STEPS, graphs=graphs).estimate(problem)
    torch.testing.assert_close(estimate.values["loss"], loss_of(problem))
    for leaf, gradient in zip(problem.learned, estimate.gradients, strict=True):
        assert gradient.abs().max() > 1e-4
        for index in itertools.islice(itertools.product(*map(range, leaf.shape)), 0, None, 5):
            wanted = central_difference(lambda: loss_of(problem), leaf, index)
            assert float(gradient[index]) == pytest.approx(wanted, rel=1e-5, abs=1e-8)
    wanted = central_difference(lambda: loss_of(problem), problem.rate, ())
    assert float(estimate.rate) == pytest.approx(wanted, rel=1e-6)


class _Bent:
    """An augmentation without random numbers that is not linear."""

    def __call__(self, images):
        return 0.7 * images.flip(3) ** 2

    def recorded(self, images):
        return self(images), ()

    def repeated(self, images, numbers):
        return self(images)


def test_an_augmentation_is_differentiated_too(make_problem, central_difference):
    flip = make_problem(choose=_Bent)
    estimate = Wasserstein(inner_steps=STEPS).estimate(flip)

    def loss():
        seen = make_problem()
        with torch.no_grad():
            seen.images.copy_(flip.augment(flip.images))
        return loss_of(seen)

    wanted = central_difference(loss, flip.images, (2, 0, 1, 3))
    assert float(estimate.gradients[0][2, 0, 1, 3]) == pytest.approx(wanted, rel=1e-5)


def test_dropped_graphs_change_no_bit(make_problem):
    kept, dropped, some = (Wasserstein(inner_steps=6, graphs=g).estimate(make_problem()) for g in (None, 0, 2))
    for other in (dropped, some):
        assert torch.equal(kept.gradients[0], other.gradients[0])
        assert torch.equal(kept.rate, other.rate)


def test_without_steps_the_loss_is_one(make_problem):
    estimate = Wasserstein(inner_steps=0).estimate(make_problem())
    assert float(estimate.values["loss"]) == pytest.approx(1.0)
    assert not estimate.gradients[0].any()


def test_both_inner_loops_go_the_same_way(make_problem):
    problem = make_problem()
    iterates = descend(problem, problem.window(0), 5, keep=3)
    unrolled = Unrolled(problem, problem.window(0), 5)
    for one, other in zip(iterates, unrolled.last(3), strict=True):
        torch.testing.assert_close(one, other)
    assert not any(iterate.requires_grad for iterate in iterates)


def test_the_inner_loop_is_torch_sgd(make_problem):
    problem = make_problem()
    theta = problem.window(0).requires_grad_()
    sgd = torch.optim.SGD([theta], lr=float(problem.rate))
    for _ in range(7):
        sgd.zero_grad()
        F.cross_entropy(problem.network(theta, problem.images.detach()), problem.classes).backward()
        sgd.step()
    (ours,) = descend(problem, problem.window(0), 7)
    torch.testing.assert_close(ours, theta.detach())


def test_the_step_size_stays_positive_unless_official():
    for preset, wanted in (("clean", 0.0003), ("official", -1.0)):
        rate = torch.tensor(-1.0)
        Wasserstein(preset=preset, inner_lr=0.03).constrain(rate)
        assert float(rate) == pytest.approx(wanted)
