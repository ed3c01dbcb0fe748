"""The scale of learned labels, fitted at the end of a distillation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bpcbench.api import Context
from bpcbench.records import Coreset, Data, Inputs
from bpcbench.sampling import stratified_subset
from bpcbench_torch.temperature import fit_temperature
from bpcbench_vbpc.inference import VariationalInference

if TYPE_CHECKING:
    from bpcbench_vbpc.method import VBPC

IMAGES = 2000
"""Training images on which the scale is fitted."""


def with_fitted_scale(method: VBPC, coreset: Coreset, data: Data, inputs: Inputs, ctx: Context) -> Coreset:
    """Return the coreset with its labels times the factor c that minimises the NLL of training images.

    The mean of the posterior of the last layer is linear in the labels, and its variance does not depend on them. So c
    is one over the softmax temperature of the predictive of a network that takes `label_fit` updates on the coreset.
    """
    judge = VariationalInference(
        steps=method.label_fit,
        lr=method.pool_lr,
        rows=method.pool_rows,
        augmentation=method.augmentation_used() if method.augment_pool else "none",
    )
    chosen = stratified_subset(np.asarray(data.labels), IMAGES, ctx.seed)
    predicted = judge.fit(coreset, method.network, inputs, ctx)
    log_probs = predicted.predict(inputs.transform.apply(np.asarray(data.train.images[chosen]))).log_probs
    factor = 1.0 / fit_temperature(log_probs, np.asarray(data.labels)[chosen])
    ctx.log(label_factor=factor)
    return replace(coreset, targets=(coreset.targets * factor).astype(np.float32))
