"""The real-valued targets that regression needs, from a coreset of any convention."""

from __future__ import annotations

import math

import numpy as np

from bpcbench.records import Array, Coreset


def centred_targets(coreset: Coreset, scale: float = 1.0) -> Array:
    """Return float32 targets (n, k) for a Gaussian likelihood.

    `centred` targets are returned unchanged. Class labels become one-hot rows; these and `probabilities` become
    (p - 1/k) / sqrt(k/10) * scale, the initial labels of VBPC and FRePo.
    """
    if coreset.convention == "centred":
        return np.asarray(coreset.targets, np.float32)
    count = coreset.classes
    rows = np.eye(count, dtype=np.float32)[coreset.targets] if coreset.convention == "class" else coreset.targets
    return ((rows - 1.0 / count) * (scale / math.sqrt(count / 10))).astype(np.float32)
