"""Statistics of repeated runs: mean ± sample std with n, t-intervals, paired differences, tests, ranks and ties.

Values that are not finite are never dropped: a mean over them is inf or NaN, and whatever has no meaning then (a std,
an interval) is None. Means and stds are correctly rounded, so the order of runs cannot change a digit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)

_LEVEL = 0.95


@dataclass(frozen=True)
class Summary:
    """The summary of one cell of a table.

    `mean` is over the `n` coresets' own means and `std` their sample std (ddof 1); `within` is the average sample std
    of the evaluations of one coreset; `low` and `high` bound the two-sided 95 % t-interval of the mean. None where
    there are too few values, or where values are not finite.
    """

    mean: float
    std: float | None
    n: int
    within: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Difference:
    """The mean of `n` paired differences and its two-sided 95 % t-interval; no bounds if n < 2 or not finite."""

    mean: float
    low: float | None
    high: float | None
    n: int


def summarise(by_coreset: Mapping[Key, Sequence[float]]) -> Summary:
    """Return the summary of the evaluations of each coreset; ValueError if there is no coreset or an empty one.

    Every coreset counts once, however often it was evaluated. `within` is over the coresets that were evaluated more
    than once, and None if there is none.
    """
    if not by_coreset:
        raise ValueError("nothing to summarise: no coreset was evaluated")
    for key, values in by_coreset.items():
        if not len(values):
            raise ValueError(f"coreset {key!r} has no evaluation")
    means = [_mean(values) for values in by_coreset.values()]
    spreads = [_std(values) for values in by_coreset.values() if len(values) > 1]
    known = [spread for spread in spreads if spread is not None]
    bounds = t_interval(means)
    return Summary(
        mean=_mean(means),
        std=_std(means),
        n=len(means),
        within=_mean(known) if known and len(known) == len(spreads) else None,
        low=None if bounds is None else bounds[0],
        high=None if bounds is None else bounds[1],
    )


def t_interval(values: Sequence[float], level: float = _LEVEL) -> tuple[float, float] | None:
    """Return the two-sided Student interval of the mean: mean ± t_(n-1, (1+level)/2) std / sqrt(n).

    None if there are fewer than two values or one is not finite. Student, "The probable error of a mean", 1908.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    std = _std(values)
    if std is None:
        return None
    from scipy.special import stdtrit

    half = float(stdtrit(len(values) - 1, (1.0 + level) / 2.0)) * std / math.sqrt(len(values))
    mean = _mean(values)
    return mean - half, mean + half


def paired_difference(a: Mapping[Key, float], b: Mapping[Key, float]) -> Difference:
    """Return the mean of a - b over the keys (seeds) that both have; ValueError if they share none.

    inf - inf is NaN: two diverged runs have no meaningful difference.
    """
    shared = [key for key in a if key in b]
    if not shared:
        raise ValueError("a paired difference needs at least one key that both sides have")
    differences = [float(a[key]) - float(b[key]) for key in shared]
    low, high = t_interval(differences) or (None, None)
    return Difference(mean=_mean(differences), low=low, high=high, n=len(shared))


def ranks(values: Sequence[float | None], higher_is_better: bool) -> list[float | None]:
    """Return the rank of each value, 1 being best; equal values share the average of their ranks.

    None and NaN get the rank None; ±inf are ranked like any value.
    """
    ordered = sorted(_real(values), reverse=higher_is_better)
    shared = {value: ordered.index(value) + (ordered.count(value) + 1) / 2 for value in ordered}
    return [None if value is None else shared.get(float(value)) for value in values]


def paired_test(a: Mapping[Key, float], b: Mapping[Key, float]) -> float | None:
    """Return the two-sided p-value of the paired t-test over the keys that both have.

    None where there is no test: fewer than two pairs, a difference that is not finite, or differences that are all
    equal, from which no noise can be estimated.
    """
    differences = [float(a[key]) - float(b[key]) for key in a if key in b]
    std = _std(differences)
    if std is None or negligible(std, [value for key in a if key in b for value in (a[key], b[key])]):
        return None
    t = abs(_mean(differences)) / std * math.sqrt(len(differences))
    return _two_sided(t, len(differences) - 1)


def welch_test(a: Summary, b: Summary) -> float | None:
    """Return the two-sided p-value of Welch's t-test of two means over coresets.

    None where there is no test: n < 2, a mean or std that is not finite, or two stds of zero. Welch, "The
    generalization of Student's problem when several different population variances are involved", 1947.
    """
    if a.n < 2 or b.n < 2 or a.std is None or b.std is None:
        return None
    scale = max(a.std, b.std)
    if scale == 0.0 or math.isnan(a.mean - b.mean):
        return None
    # In units of the larger std, squares neither overflow nor underflow.
    errors = (a.std / scale) ** 2 / a.n, (b.std / scale) ** 2 / b.n
    freedom = sum(errors) ** 2 / (errors[0] ** 2 / (a.n - 1) + errors[1] ** 2 / (b.n - 1))
    return _two_sided(abs(a.mean - b.mean) / scale / math.sqrt(sum(errors)), freedom)


def tied(a: Summary, b: Summary, level: float = _LEVEL) -> bool:
    """Return whether the difference of two means is within noise: Welch's t-test does not reject at 1 - level.

    Where there is no test, only equal means are tied; NaN equals nothing.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    if a.mean == b.mean:
        return True
    p = welch_test(a, b)
    return p is not None and p >= 1.0 - level


def negligible(spread: float, values: Iterable[float]) -> bool:
    """Return whether a spread is zero up to the rounding of its values."""
    return spread <= 1e-12 * max((abs(float(value)) for value in values), default=0.0)


def _two_sided(t: float, freedom: float) -> float:
    from scipy.special import stdtr

    return float(2.0 * stdtr(freedom, -t))


def _mean(values: Sequence[float]) -> float:
    return statistics.mean([float(value) for value in values])


def _std(values: Sequence[float]) -> float | None:
    """Return the sample std, or None where it does not exist."""
    reals = [float(value) for value in values]
    if len(reals) < 2 or not all(math.isfinite(value) for value in reals):
        return None
    try:
        return statistics.stdev(reals)
    except OverflowError:
        return None


def _real(values: Sequence[float | None]) -> list[float]:
    return [float(value) for value in values if value is not None and not math.isnan(value)]
