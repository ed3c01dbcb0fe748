"""Convergence diagnostics of chains: R-hat and effective sample size, with NumPy and SciPy only.

Vehtari, Gelman, Simpson, Carpenter & Bürkner, "Rank-normalization, folding, and localization: an improved R-hat",
Bayesian Analysis 2021. All functions take draws (chains, draws, quantities) and return one number per quantity, NaN if
the quantity does not vary.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bpcbench.records import Array

Floats = npt.NDArray[np.float64]

SMALLEST = 4
"""The fewest draws per chain that split into halves with a variance."""


def rhat(draws: Array) -> Floats:
    """Return the rank-normalised split R-hat: the larger of the values for the draws and for the folded draws.

    R-hat is sqrt(((n - 1)/n W + B) / W) on the normal scores of ranks, with W the variance within half-chains and B the
    variance between their means. It is near 1 if chains agree in location and scale; do not trust values above 1.01.
    """
    halves = _halves(_checked(draws))
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    return np.fmax(_rhat(_normal_scores(halves)), _rhat(_normal_scores(folded)))


def ess(draws: Array) -> Floats:
    """Return the bulk effective sample size: chains * draws / tau for normal scores of ranks of split chains.

    tau = 1 + 2 sum_t rho_t, summed by Geyer's initial monotone sequence. rho_t combines all chains, so chains that
    disagree have a small effective sample size. The maximum is chains * draws * log10(chains * draws).
    """
    halves = _normal_scores(_halves(_checked(draws)))
    chains, n, _ = halves.shape
    covariances = _autocovariances(halves)
    within = covariances[:, 0].mean(0) * n / (n - 1)
    total = within * (n - 1) / n + halves.mean(1).var(0, ddof=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        rho = 1 - (within - covariances.mean(0)) / total
    rho[0] = np.where(total > 0, 1.0, np.nan)
    tau = _geyer(rho)
    count = chains * n
    return np.asarray(count / np.maximum(tau, 1 / np.log10(count)))


def _geyer(rho: Floats) -> Floats:
    """Return the autocorrelation time from autocorrelations (lags, quantities).

    For a reversible chain the pair sums rho_2t + rho_2t+1 are positive and decreasing. They are added while they are
    positive, each capped at the one before. Of the first pair that is left out, or of the last pair, the even term is
    added if it is positive.
    """
    lags, quantities = rho.shape
    most = max(0, (lags - 3) // 2)
    pairs = rho[: 2 * most : 2] + rho[1 : 2 * most : 2]
    positive = np.logical_and.accumulate(pairs > 0, axis=0)
    sums = np.where(positive, np.minimum.accumulate(pairs, axis=0), 0.0).sum(0)
    rest = rho[2 * positive.sum(0), np.arange(quantities)]
    return np.asarray(2 * sums - 1 + np.maximum(rest, 0.0))


def _checked(draws: Array) -> Floats:
    values = np.asarray(draws, np.float64)
    if values.ndim != 3 or values.shape[1] < SMALLEST:
        raise ValueError(f"draws must be (chains, at least {SMALLEST} draws, quantities), got {values.shape}")
    return values


def _halves(values: Floats) -> Floats:
    """Return the halves of every chain as separate chains; the middle draw of an odd number is dropped."""
    half = values.shape[1] // 2
    return np.concatenate([values[:, :half], values[:, -half:]])


def _normal_scores(values: Floats) -> Floats:
    from scipy import special, stats

    count = values.shape[0] * values.shape[1]
    ranks = stats.rankdata(values.reshape(count, -1), axis=0)
    return np.asarray(special.ndtri((ranks - 0.375) / (count + 0.25))).reshape(values.shape)


def _rhat(scores: Floats) -> Floats:
    n = scores.shape[1]
    within = scores.var(1, ddof=1).mean(0)
    between = scores.mean(1).var(0, ddof=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.sqrt((n - 1) / n + between / within))


def _autocovariances(values: Floats) -> Floats:
    """Return the autocovariances (chains, lags, quantities) of each chain about its own mean, divided by n."""
    n = values.shape[1]
    centred = values - values.mean(1, keepdims=True)
    spectrum = np.fft.rfft(centred, 2 * n, axis=1)
    return np.asarray(np.fft.irfft(spectrum * spectrum.conj(), axis=1)[:, :n]) / n
