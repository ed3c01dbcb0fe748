"""The softmax temperature that turns regression outputs into probabilities."""

from __future__ import annotations

import numpy as np

from bpcbench.records import Array

RANGE = (1e-4, 1e3)


def fit_temperature(outputs: Array, labels: Array) -> float:
    """Return the T that minimises the mean of -log softmax(outputs / T) at the labels (Guo et al., 2017).

    The objective is convex in 1/T. The search is over log T, in a range that covers all useful outputs.
    """
    from scipy.optimize import minimize_scalar

    logits = np.asarray(outputs, np.float64)
    rows = np.arange(len(labels))

    def loss(log_t: float) -> float:
        scaled = logits / np.exp(log_t)
        return float(np.mean(np.logaddexp.reduce(scaled, axis=1) - scaled[rows, labels]))

    optimum = minimize_scalar(loss, bounds=tuple(np.log(RANGE)), method="bounded", options={"xatol": 1e-5})
    return float(np.exp(optimum.x))
