"""From Gaussian logits to log-probabilities, and the outer loss of VBPC (Lee, Lee & Lee, 2025, sec. 3.5).

The logits of one image are z ~ N(mean, variance * I_k): independent classes with a common variance.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Form = Literal["mean", "sum"]
_CHUNK = 2**24
"""Sampled logits in memory at a time."""


def mean_field_log_probs(mean: Tensor, variance: Tensor, scale: float = math.pi / 8, factor: float = 1.0) -> Tensor:
    """Return log softmax(mean / sqrt(1 + scale * factor * variance)), (B, k) (Lu, Ie & Sha, 2020).

    The paper derives this for E[log softmax(z)], but moves the expectation inside the logarithm. The formula thus
    approximates log E[softmax(z)], with errors of either sign, so the outer loss is not a bound. The derivation
    concerns z_j - z_i, whose variance is 2 * variance for independent classes, but the paper inserts the variance once:
    `factor=1` is as printed, `factor=2` as derived. docs/vbpc_mean_field.md gives the errors of both.
    """
    return (mean / (1.0 + scale * factor * variance).sqrt().unsqueeze(-1)).log_softmax(-1)


def monte_carlo_log_probs(mean: Tensor, variance: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """Return log of the average of softmax(z) over `samples` draws, (B, k), an estimate of log E[softmax(z)].

    All rows share the same standard normal draws, so a row does not depend on the rest of its batch. Seed the generator
    again for every batch if results must not depend on how a data set is split into batches. The draws are made on the
    generator's device, and are the same for a batch on any device.
    """
    rows, classes = mean.shape
    noise = torch.randn((samples, 1, classes), generator=generator, device=generator.device, dtype=mean.dtype)
    noise = noise.to(mean.device)
    # At variance 0 the square root has no derivative; the clamp's is 0.
    deviation = variance.clamp(min=torch.finfo(variance.dtype).tiny).sqrt().unsqueeze(-1)
    parts = noise.split(max(1, _CHUNK // max(1, rows * classes)))
    sums = [(mean + deviation * part).log_softmax(-1).logsumexp(0) for part in parts]
    return torch.stack(sums).logsumexp(0) - math.log(samples)


def outer_loss(
    log_probs: Tensor, labels: Tensor, kl: Tensor, beta_d: float, n: int | None = None, form: Form = "mean"
) -> Tensor:
    """Return the loss of the coreset on a real batch with class labels (B,).

    `mean`: mean_B(-log p_y) + beta_D KL, an average as in the code that VBPC builds on. `sum`: eq. final_outer as
    printed, (n/|B|) sum_B(-log p_y) + beta_D KL, with the size `n` of the data set. They differ by an overall factor n,
    to which Adam is invariant, and in the relative weight of the KL, which is n times smaller in `sum`; for
    beta_D = 1e-8 it is negligible in both.
    """
    cross_entropy = F.nll_loss(log_probs, labels)
    if form == "sum":
        if n is None:
            raise ValueError("the sum form needs the size n of the data set")
        return n * cross_entropy + beta_d * kl
    return cross_entropy + beta_d * kl
