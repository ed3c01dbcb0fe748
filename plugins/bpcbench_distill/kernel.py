"""Kernel ridge regression on the features of a coreset, and FRePo's terms around it.

FRePo (Zhou, Nezhadarya & Ba, 2022): with Phi = phi(X^) and K = Phi Phi^T, the prediction for a real batch is

    phi(X_B) Phi^T (K + ridge * tr(K)/n^ * I)^{-1} Y^.

Everything is differentiable, and computed on the device and in the precision of the features.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def cholesky(matrix: Tensor) -> Tensor:
    """Return the lower Cholesky factor of a symmetric matrix, or NaN everywhere if it is not positive definite.

    `torch.linalg.cholesky` raises instead, for which it waits for the device at every call. A NaN reaches the loss,
    whose check reports it.
    """
    factor, info = torch.linalg.cholesky_ex(matrix)
    return factor.masked_fill(info != 0, math.nan)


def krr(features_s: Tensor, targets: Tensor, features_b: Tensor, ridge: float = 1e-6) -> Tensor:
    """Return the predictions (B, k) of kernel ridge regression, with the ridge relative to the mean of K's diagonal.

    The training rows are `features_s` (n^, h) and `targets` (n^, k); mirrored copies count as rows. The smaller of K
    and Phi^T Phi is factorised, since Phi^T (K + rI)^{-1} = (Phi^T Phi + rI)^{-1} Phi^T.

    The reference code always factorises K, in float32. In the larger of the two forms a ridge of 1e-6 is below the
    rounding error of float32, and the factorisation fails. The smaller one also fails if the features are degenerate
    (equal images, dead units). The result is then NaN: pass float64 features.
    """
    rows, width = features_s.shape
    gram = features_s @ features_s.mT if rows <= width else features_s.mT @ features_s
    # Phi Phi^T and Phi^T Phi have the same trace; the mean is over rows in either form.
    shift = ridge * gram.diagonal().sum() / rows
    factor = cholesky(gram + shift * torch.eye(len(gram), dtype=gram.dtype, device=gram.device))
    if rows <= width:
        return (features_b @ features_s.mT) @ torch.cholesky_solve(targets, factor)
    return features_b @ torch.cholesky_solve(features_s.mT @ targets, factor)


def margin(targets: Tensor, bound: float) -> Tensor:
    """Return FRePo's label term: the mean over rows of -min(largest - second largest target, bound).

    It keeps a margin between the two largest entries of every learned label; beyond `bound` (1/k in FRePo, 1/(2k) in
    RCIG) it has no gradient. FRePo applies it to the labels before mirroring.
    """
    first, second = targets.topk(2, dim=1).values.unbind(1)
    return -(first - second).clamp(max=bound).mean()


def mirrored(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the images (n, c, h, w) followed by their horizontally mirrored copies, and the targets twice."""
    return torch.cat([images, images.flip(-1)]), torch.cat([targets, targets])
