"""Log-probabilities of Gaussian logits: formula, sampling and quadrature, and the page about the formula's bias."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bpcbench_vbpc import bias
from bpcbench_vbpc.likelihood import mean_field_log_probs, monte_carlo_log_probs, outer_loss

ROOT = Path(__file__).parents[2]


def double(*values: object) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(np.array(value), dtype=torch.float64) for value in values)


def quadrature(mean: tuple[float, float], variance: float) -> np.ndarray:
    """Return E[softmax(z)] of two classes by Gauss-Hermite quadrature over z_0 - z_1 ~ N(., 2 variance)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(151)
    first = weights @ (1 / (1 + np.exp(-(mean[0] - mean[1]) - np.sqrt(2 * variance) * nodes))) / weights.sum()
    return np.array([first, 1 - first])


@pytest.mark.parametrize("variance", bias.VARIANCES)
@pytest.mark.parametrize("mean", [(0.0, 0.0), (2.0, 0.0), (-1.0, 3.0)])
def test_sampling_agrees_with_gauss_hermite_quadrature_for_two_classes(
    mean: tuple[float, float], variance: float
) -> None:
    samples = 200_000
    generator = torch.Generator().manual_seed(3)
    sampled = monte_carlo_log_probs(*double([mean], [variance]), samples, generator)[0].exp()
    wanted = quadrature(mean, variance)
    assert sampled.numpy() == pytest.approx(wanted, abs=4 * 0.5 / samples**0.5)  # a probability deviates by 0.5 at most
    # The 151 nodes are good to 4e-6 at the largest variance, and to 1e-9 at the others.
    assert np.exp(bias.expectations(np.array(mean), variance)[1]) == pytest.approx(wanted, rel=1e-5)


def test_the_reference_of_the_page_agrees_with_sampling_and_with_known_values() -> None:
    mean, variance = np.array([2.0, 0.5, -1.0, 0.0]), 4.0
    expected_log, log_expected = bias.expectations(mean, variance)
    assert np.exp(log_expected).sum() == pytest.approx(1, abs=1e-12)
    logits = np.random.default_rng(0).normal(mean, variance**0.5, (400_000, 4))
    log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    error = 4 / len(logits) ** 0.5
    assert expected_log == pytest.approx(log_p.mean(0), abs=error * log_p.std())
    assert np.exp(log_expected) == pytest.approx(np.exp(log_p).mean(0), abs=error * 0.5)
    # Monte Carlo and formula of an independent calculation, for the top class.
    once, twice = (mean_field_log_probs(*double([mean], [variance]), factor=factor)[0, 0] for factor in (1.0, 2.0))
    assert [expected_log[0], log_expected[0]] == pytest.approx([-1.186, -0.678], abs=2e-3)
    assert [float(once), float(twice)] == pytest.approx([-0.606, -0.733], abs=1e-3)


def test_the_page_about_the_bias_is_what_its_command_prints() -> None:
    page = bias.page()
    print(page)
    assert (ROOT / "docs" / "vbpc_mean_field.md").read_text() == page


def test_what_the_page_says_of_its_numbers() -> None:
    cases = list(bias.rows())
    assert [(row.classes, row.variance) for row in cases] == [(k, v) for k in bias.CLASSES for v in bias.VARIANCES]
    once = {k: np.stack([(row.once - row.log_expected)[:2] for row in cases if row.classes == k]) for k in bias.CLASSES}
    twice = {k: np.stack([(row.twice - row.log_expected)[:2] for row in cases if row.classes == k]) for k in once}
    assert all((once[k][:, 0] > 0).all() and (once[k][:, 1] < 0).all() for k in (2, 4, 10))
    assert max(once[k][:, 0].max() for k in (2, 4, 10)) < 0.105
    assert min(once[k][:, 1].min() for k in (2, 4, 10)) > -0.235
    assert (once[100][:, 0] < 0).all()
    assert (once[100][:, 1] > 0).all()
    assert np.abs(once[100]).max() < 0.585
    assert np.abs(once[10]).max() < 0.07
    assert np.abs(twice[2]).max() < 0.005
    assert all((np.abs(twice[k]) > np.abs(once[k])).all() for k in (10, 100))
    assert max(np.abs(once[k][0]).max() for k in once) < 0.04
    assert all((row.expected_log < row.log_expected).all() for row in cases)  # Jensen


def test_formula_and_sampling_are_the_softmax_where_nothing_is_uncertain() -> None:
    mean = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    variance = torch.zeros(5, requires_grad=True)
    for got in (mean_field_log_probs(mean, variance), monte_carlo_log_probs(mean, variance, 10, torch.Generator())):
        torch.testing.assert_close(got, mean.log_softmax(1))
        gradients = torch.autograd.grad(got[:, 0].sum(), [mean, variance])
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_the_formula_against_its_text_and_its_gradient() -> None:
    mean, variance = double([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]], [0.7, 5.0])
    scaled = mean / torch.sqrt(1 + torch.pi / 8 * 2 * variance)[:, None]
    torch.testing.assert_close(mean_field_log_probs(mean, variance, factor=2.0), scaled.log_softmax(1))
    torch.testing.assert_close(mean_field_log_probs(mean, variance, scale=0.0), mean.log_softmax(1))
    assert torch.autograd.gradcheck(mean_field_log_probs, (mean.requires_grad_(), variance.requires_grad_()))


def test_sampled_rows_do_not_depend_on_the_rest_of_the_batch_nor_on_the_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(0)
    mean, variance = torch.randn(6, 3, generator=generator), torch.rand(6, generator=generator) * 9
    whole = monte_carlo_log_probs(mean, variance, 50, torch.Generator().manual_seed(1))
    part = monte_carlo_log_probs(mean[4:], variance[4:], 50, torch.Generator().manual_seed(1))
    torch.testing.assert_close(part, whole[4:], rtol=1e-6, atol=1e-6)
    monkeypatch.setattr("bpcbench_vbpc.likelihood._CHUNK", 18 * 7)
    torch.testing.assert_close(monte_carlo_log_probs(mean, variance, 50, torch.Generator().manual_seed(1)), whole)
    torch.testing.assert_close(whole.exp().sum(1), torch.ones(6))


def test_both_forms_of_the_outer_loss() -> None:
    log_probs = torch.tensor([[0.5, 0.5], [0.2, 0.8]]).log()
    labels, kl = torch.tensor([0, 1]), torch.tensor(3.0)
    mean = -(np.log(0.5) + np.log(0.8)) / 2
    assert outer_loss(log_probs, labels, kl, 0.1).item() == pytest.approx(mean + 0.3)
    assert outer_loss(log_probs, labels, kl, 0.1, n=50, form="sum").item() == pytest.approx(50 * mean + 0.3)
    with pytest.raises(ValueError, match="size n"):
        outer_loss(log_probs, labels, kl, 0.1, form="sum")
