"""Kernel ridge regression on the features of a coreset, and FRePo's terms around it.

FRePo (Zhou, Nezhadarya & Ba, 2022): with Phi = phi(X^) and K = Phi Phi^T, the prediction for a real batch is

    phi(X_B) Phi^T (K + ridge * tr(K)/n^ * I)^{-1} Y^.

Everything is differentiable, and computed where the features lie and in their precision.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def cholesky(matrix: Tensor) -> Tensor:
    """Return the lower Cholesky factor of a symmetric matrix, or NaN everywhere if it is not positive definite.

    `torch.linalg.cholesky` would raise instead, for which it has to wait for the device at every call; a NaN reaches
    the loss, where whoever watches it sees it.
    """
    factor, info = torch.linalg.cholesky_ex(matrix)
    return factor.masked_fill(info != 0, math.nan)


def krr(features_s: Tensor, targets: Tensor, features_b: Tensor, ridge: float = 1e-6) -> Tensor:
    """Return the predictions (B, k) of kernel ridge regression with a ridge in units of the mean of K's diagonal.

    The rows to learn from are `features_s` (n^, h) and `targets` (n^, k); mirrored copies count as rows. The matrix
    that is factorised is the smaller one of K and Phi^T Phi, for Phi^T (K + rI)^{-1} = (Phi^T Phi + rI)^{-1} Phi^T.

    The reference factorises K in float32 whatever the width. In the larger of the two forms a ridge of 1e-6 is below
    the rounding of float32, and the factorisation fails; so does the smaller one if the features are degenerate (equal
    images, dead units). The result is then NaN: pass float64 features.
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

    It keeps the winning class of every learned label ahead; beyond `bound` (1/k in FRePo, 1/(2k) in RCIG) it has no
    gradient. FRePo takes the labels before mirroring.
    """
    first, second = targets.topk(2, dim=1).values.unbind(1)
    return -(first - second).clamp(max=bound).mean()


def mirrored(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the images (n, c, rows, columns) followed by their horizontally mirrored copies, and the targets twice."""
    return torch.cat([images, images.flip(-1)]), torch.cat([targets, targets])
