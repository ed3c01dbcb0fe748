"""BPC-fKL and BPC-CD: differences of energies at two fixed points."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from bpcbench_bpc.contrastive import Contrastive
from bpcbench_bpc.forward_kl import ForwardKL


def slope(problem, theta):
    return torch.autograd.grad(
        F.cross_entropy(problem.network(theta, problem.images), problem.targets()), problem.images
    )[0]


@pytest.mark.parametrize("learned", [False, True])
def test_the_gradient_is_the_difference_of_energies(make_problem, central_difference, learned):
    problem = make_problem(learned_labels=learned)
    estimate = ForwardKL(inner_steps=0, sigma=0.0, draws=3).estimate(problem)

    def loss():
        at = [F.cross_entropy(problem.network(problem.window(e), problem.images), problem.targets()) for e in (1, 0)]
        return (at[0] - at[1]).detach()

    assert float(estimate.values["loss"]) == pytest.approx(float(loss()))
    for leaf, gradient in zip(problem.learned, estimate.gradients, strict=True):
        index = (1,) * leaf.dim() if leaf.dim() == 2 else (1, 0, 2, 1)
        assert float(gradient[index]) == pytest.approx(central_difference(loss, leaf, index), rel=1e-6)


def test_no_gradient_in_expectation_when_the_target_is_the_fit(make_problem):
    problem = make_problem()
    here = problem.window(0)
    same = make_problem(window=lambda ahead: here.clone(), normal=problem.normal)
    method = ForwardKL(inner_steps=0, sigma=0.1, draws=1)
    estimates = torch.stack([method.estimate(same).gradients[0] for _ in range(150)])
    z = estimates.mean(0) / (estimates.std(0) / len(estimates) ** 0.5)
    assert z.abs().max() < 4.5
    assert z.square().mean() < 1.8
    # The same count of draws does tell another target.
    other = torch.stack([method.estimate(problem).gradients[0] for _ in range(150)])
    assert (other.mean(0) / (other.std(0) / len(other) ** 0.5)).abs().max() > 20
    assert not ForwardKL(inner_steps=0, sigma=0.0).estimate(same).gradients[0].any()


@pytest.mark.parametrize(
    "method",
    [ForwardKL(inner_steps=0, sigma=0.0, draws=2), Contrastive(preset="official", inner_steps=0)],
    ids=lambda method: method.name,
)
def test_the_sign_flips_when_the_roles_swap(make_problem, method):
    one = make_problem()
    swapped = make_problem(window=lambda ahead: one.window(1 - ahead))
    gradient = method.estimate(one).gradients[0]
    torch.testing.assert_close(gradient, -method.estimate(swapped).gradients[0])
    torch.testing.assert_close(gradient, slope(one, one.window(1)) - slope(one, one.window(0)))


def test_nothing_reaches_the_experts_or_the_rate(make_problem):
    snapshots = [make_problem().window(e).requires_grad_() for e in (0, 1)]
    problem = make_problem(window=lambda ahead: snapshots[ahead])
    estimate = ForwardKL(inner_steps=2, draws=2).estimate(problem)
    assert not estimate.gradients[0].requires_grad
    assert estimate.rate is None


def test_draws_at_once_are_draws_one_by_one(make_problem):
    """With one chunk the noises come in another order, so they are given."""
    noises = torch.randn(6, 2, make_problem().network.size, dtype=torch.float64)

    def supply(chunk):
        blocks = iter(noises.reshape(6 // chunk, chunk, 2, -1).transpose(1, 2).flatten(0, 1))
        return lambda count, size: next(blocks)

    one, three, all_of_them = (
        ForwardKL(inner_steps=1, sigma=0.2, draws=6, chunk=chunk)
        .estimate(make_problem(normal=supply(chunk)))
        .gradients[0]
        for chunk in (1, 3, 6)
    )
    torch.testing.assert_close(one, three)
    torch.testing.assert_close(one, all_of_them)


def test_a_chain_of_no_steps_gives_no_gradient(make_problem):
    assert not Contrastive(inner_steps=0).estimate(make_problem()).gradients[0].any()


def test_contrastive_starts_its_chain_at_the_positive_sample(make_problem):
    problem = make_problem()
    estimate = Contrastive(inner_steps=1, inner_lr=0.3, sigma=0.0).estimate(problem)
    start = problem.window(0).requires_grad_()
    energy = F.cross_entropy(problem.network(start, problem.images.detach()), problem.classes)
    end = (start - 0.3 * torch.autograd.grad(energy, start)[0]).detach()
    torch.testing.assert_close(estimate.gradients[0], slope(problem, start.detach()) - slope(problem, end))


def test_contrastive_noise_is_that_of_the_positive_sample(make_problem):
    """The chain starts at tau + sigma e, and the positive energy is the one there, not at tau."""
    noise = torch.randn(make_problem().network.size, dtype=torch.float64)
    problem = make_problem(normal=lambda count, size: noise[None])
    estimate = Contrastive(inner_steps=1, inner_lr=0.3, sigma=0.2).estimate(problem)
    start = (problem.window(0) + 0.2 * noise).requires_grad_()
    energy = F.cross_entropy(problem.network(start, problem.images.detach()), problem.classes)
    end = (start - 0.3 * torch.autograd.grad(energy, start)[0]).detach()
    torch.testing.assert_close(estimate.gradients[0], slope(problem, start.detach()) - slope(problem, end))


def test_noise_of_the_chain(make_problem):
    problem = make_problem()
    quiet, noisy = (
        Contrastive(inner_steps=50, sigma=0.0, chain_noise=noise).estimate(problem).values["moved"]
        for noise in (0.0, 1.0)
    )
    expected = (50 * problem.network.size) ** 0.5
    assert quiet < 0.5 * expected < noisy < 2 * expected


def test_official_augmentations_compound(make_problem):
    seen = []

    def augment(images):
        seen.append(float(images.detach().abs().max() / top))
        return 2 * images

    problem = make_problem(choose=lambda: augment)
    top = problem.images.detach().abs().max()
    Contrastive(preset="official", inner_steps=3).estimate(problem)
    assert seen == [1, 2, 4, 1]
    seen.clear()
    Contrastive(inner_steps=3).estimate(problem)
    assert seen == [1, 1, 1, 1]


def test_the_logit_energy(make_problem):
    problem = make_problem()
    estimate = Contrastive(preset="official", inner_steps=0, energy="logit").estimate(problem)
    at = [problem.network(problem.window(e), problem.images)[torch.arange(4), problem.classes].mean() for e in (0, 1)]
    torch.testing.assert_close(estimate.values["loss"], (at[0] - at[1]).detach())
