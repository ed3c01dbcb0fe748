"""FRePo's kernel ridge regression against scikit-learn, and the terms around it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge
from torch import Tensor

from bpcbench_distill.kernel import cholesky, krr, margin, mirrored

SIZES = [(9, 30), (30, 9), (12, 12)]


def problem(rows: int, width: int, classes: int = 4, batch: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    shapes = ((rows, width), (rows, classes), (batch, width))
    features, targets, phi = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return features, targets, phi


@pytest.mark.parametrize(("rows", "width"), SIZES)
@pytest.mark.parametrize("ridge", [1e-6, 1e-2, 1.0])
def test_against_kernel_ridge_of_scikit_learn(rows: int, width: int, ridge: float) -> None:
    features, targets, phi = problem(rows, width)
    absolute = ridge * np.trace(features.numpy() @ features.numpy().T) / rows
    model = KernelRidge(alpha=absolute, kernel="linear").fit(features.numpy(), targets.numpy())
    np.testing.assert_allclose(krr(features, targets, phi, ridge), model.predict(phi.numpy()), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("rows", "width"), [(4, 7), (7, 4)])
def test_gradients_against_central_differences(rows: int, width: int) -> None:
    inputs = [tensor.requires_grad_() for tensor in problem(rows, width, 3, 2)]
    assert torch.autograd.gradcheck(lambda *tensors: krr(*tensors, ridge=1e-2), inputs)


@pytest.mark.parametrize(("rows", "width"), [(100, 512), (1000, 512)])
def test_float32_suffices_in_the_smaller_form(rows: int, width: int) -> None:
    """Measured: 2e-6 (100 rows) and 9e-6 (1000) relative; factorising K itself fails for 1000 rows of 512 features."""
    generator = torch.Generator().manual_seed(0)
    features, phi = (torch.randn((size, width), generator=generator).relu() for size in (rows, 50))
    targets = torch.eye(10)[torch.arange(rows) % 10] - 0.1
    exact = krr(features.double(), targets.double(), phi.double())
    assert float((krr(features, targets, phi) - exact).norm() / exact.norm()) < 5e-5
    gram = features @ features.T
    failed = cholesky(gram + 1e-6 * gram.diagonal().mean() * torch.eye(rows)).isnan().any()
    assert bool(failed) == (rows > width)


def test_the_ridge_follows_the_scale_of_the_features() -> None:
    features, targets, phi = problem(9, 30)
    torch.testing.assert_close(krr(features, targets, phi, 0.1), krr(50 * features, targets, 50 * phi, 0.1))


def test_an_indefinite_matrix_gives_nan() -> None:
    assert cholesky(torch.tensor([[1.0, 2.0], [2.0, 1.0]])).isnan().all()
    matrix = torch.tensor([[4.0, 2.0], [2.0, 5.0]])
    torch.testing.assert_close(cholesky(matrix), torch.linalg.cholesky(matrix))


def test_margin_counts_up_to_the_bound_and_has_no_gradient_beyond() -> None:
    targets = torch.tensor([[0.9, -0.1, -0.1], [0.2, 0.1, 0.0], [0.0, 0.05, -1.0]], requires_grad=True)
    loss = margin(targets, 1 / 3)
    assert loss.item() == pytest.approx(-(1 / 3 + 0.1 + 0.05) / 3)
    (gradient,) = torch.autograd.grad(loss, targets)
    wanted = torch.tensor([[0.0, 0.0, 0.0], [-1.0, 1.0, 0.0], [1.0, -1.0, 0.0]]) / 3
    torch.testing.assert_close(gradient, wanted)


def test_mirrored_copies_follow_their_originals() -> None:
    images = torch.arange(24.0).reshape(2, 1, 3, 4).requires_grad_()
    targets = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    both, twice = mirrored(images, targets)
    np.testing.assert_array_equal(both[:2].detach(), images.detach())
    np.testing.assert_array_equal(both[2:].detach(), images.detach().numpy()[..., ::-1])
    assert torch.equal(twice, targets.repeat(2, 1))
    (gradient,) = torch.autograd.grad(both.sum(), images)
    assert torch.equal(gradient, torch.full_like(images, 2.0))


def test_nothing_leaves_the_device() -> None:
    features, targets, phi = (tensor.to("meta").requires_grad_() for tensor in problem(9, 30))
    loss = krr(features, targets, phi).square().sum() + margin(targets, 0.1)
    assert [gradient.device.type for gradient in torch.autograd.grad(loss, [features, targets])] == ["meta"] * 2
