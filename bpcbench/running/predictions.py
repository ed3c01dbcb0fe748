"""Predictions: computed batch by batch from a predictive, stored as float32 per example, and read back."""

from __future__ import annotations

import numpy as np

from bpcbench import metrics
from bpcbench.api import Predictive
from bpcbench.records import Array, Arrays, Predictions, Transform
from bpcbench.store.store import Artefact

EXTRA = "extra."
NORMALISED = 1e-3


def predict_split(
    predictive: Predictive, images: Array, labels: Array | None, transform: Transform, batch: int
) -> dict[str, Array]:
    """Return the arrays of Predictions for a whole split. Labels never reach the predictive."""
    parts: dict[str, list[Array]] = {}
    for start in range(0, len(images), batch):
        predicted = predictive.predict_pixels(np.asarray(images[start : start + batch]), transform)
        some = None if labels is None else labels[start : start + batch]
        log_probs = np.asarray(predicted.log_probs)
        count = min(batch, len(images) - start)
        if log_probs.ndim not in (2, 3) or log_probs.shape[-2] != count:
            raise ValueError(f"log_probs of {count} images must be (n, k) or (members, n, k), got {log_probs.shape}")
        found = _reduce(log_probs, some)
        for name, value in predicted.extras.items():
            found[EXTRA + name] = np.asarray(value, np.float32)
            if np.shape(value) != (count,):
                raise ValueError(f"extra {name!r} of {count} images must be (n,), got {np.shape(value)}")
        for name, value in found.items():
            parts.setdefault(name, []).append(value)
    arrays = {
        name: np.concatenate(values, axis=-1 if name == "member_log_likelihood" else 0)
        for name, values in parts.items()
    }
    if labels is not None:
        arrays["labels"] = np.asarray(labels, np.int64)
    return arrays


def _reduce(log_probs: Array, labels: Array | None) -> dict[str, Array]:
    if log_probs.dtype != np.float32:
        raise ValueError(f"log_probs must be float32, got {log_probs.dtype}")
    if np.isnan(log_probs).any():
        raise ValueError("log_probs contain NaN")
    totals = np.logaddexp.reduce(log_probs.astype(np.float64), axis=-1)
    if np.abs(totals).max(initial=0.0) > NORMALISED:
        raise ValueError(f"log_probs are not normalised: log of the sum is up to {np.abs(totals).max():.3g}")
    if log_probs.ndim == 2:
        return {"log_probs": log_probs}
    found: dict[str, Array] = {
        "log_probs": metrics.log_mean_exp(log_probs).astype(np.float32),
        "expected_entropy": np.mean([metrics.entropy(member) for member in log_probs], axis=0).astype(np.float32),
    }
    if labels is not None:
        found["member_log_likelihood"] = log_probs[:, np.arange(len(labels)), labels]
    return found


def read_predictions(artefact: Artefact) -> Predictions:
    """Return stored predictions."""
    arrays: Arrays = artefact.arrays
    return Predictions(
        log_probs=arrays["log_probs"],
        labels=arrays.get("labels"),
        member_log_likelihood=arrays.get("member_log_likelihood"),
        expected_entropy=arrays.get("expected_entropy"),
        extras={name.removeprefix(EXTRA): arrays[name] for name in arrays if name.startswith(EXTRA)},
    )
