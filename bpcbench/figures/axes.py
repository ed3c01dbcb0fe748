"""Axes: where a number lies between two ends, which numbers are marked, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Axis:
    """A linear axis from `low` to `high`; logarithmic with `threshold`, and linear where |value| < threshold.

    On a logarithmic axis the linear part from 0 to the threshold takes as much room as a factor of ten.
    """

    low: float
    high: float
    threshold: float | None = None

    def at(self, value: float) -> float:
        """Return where a value lies: 0 at the low end, 1 at the high end."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        return (self._scaled(value) - low) / (high - low)

    def ticks(self, about: int = 5) -> list[tuple[float, str]]:
        """Return the marked values between the ends, roughly so many, with their texts."""
        if self.threshold is None:
            return _linear_ticks(self.low, self.high, about)
        return [(value, number_text(value)) for value in self._log_ticks(about)]

    def _scaled(self, value: float) -> float:
        if self.threshold is None:
            return value
        size = abs(value) / self.threshold
        return math.copysign(size if size < 1 else 1 + math.log10(size), value)

    def _log_ticks(self, about: int) -> list[float]:
        threshold = self.threshold or 1.0
        largest = max(abs(self.low), abs(self.high))
        first, last = math.floor(math.log10(threshold)), math.ceil(math.log10(largest))
        stride = max(1, -(-(last - first) // (about + 1)))
        factors = (1.0, 2.0, 5.0) if largest < 500 * threshold else (1.0,)
        sizes = [_power(factor, power) for power in range(first, last + 1, stride) for factor in factors]
        signed = sorted({0.0, *sizes, *(-size for size in sizes)})
        # Next to zero there is no room for the numbers of the linear part.
        return [v for v in signed if self.low <= v <= self.high and (v == 0 or abs(v) >= threshold * (1 - 1e-9))]


def spanning(values: Iterable[float], pad: float = 0.05, logarithmic: bool = False) -> Axis:
    """Return an axis with room for all finite values, and some more, but not beyond zero without need."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if math.isclose(low, high):  # rounding is no range
        high = low
    positive = [value for value in finite if value > 0] if logarithmic else []
    if positive:
        threshold = min(positive)
        if low > 0:
            factor = (high / low) ** pad if high > low else 2.0
            return Axis(low / factor, high * factor, low / factor)
        return Axis(low, high * (max(high / threshold, 10.0)) ** pad, threshold)
    room = (high - low) * pad if high > low else abs(low) / 10 or 1.0
    start = max(0.0, low - room) if low >= 0 else low - room
    return Axis(start, min(0.0, high + room) if high <= 0 and start < 0 else high + room)


def number_text(value: float, decimals: int | None = None) -> str:
    """Return a number as it stands at an axis: 0.25, −3, 20,000, 2×10⁶."""
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e6:
        mantissa, _, power = f"{value:.2e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".")
        raised = f"10{str(int(power)).translate(_SUPERSCRIPTS)}"
        text = {"1": raised, "-1": f"-{raised}"}.get(mantissa, f"{mantissa}×{raised}")
    elif decimals is None:
        text = f"{value:,.6f}".rstrip("0").rstrip(".")
    else:
        text = f"{value:,.{decimals}f}"
    return text.replace("-", "−")


def _linear_ticks(low: float, high: float, about: int) -> list[tuple[float, str]]:
    power = math.floor(math.log10((high - low) / about))
    steps: Sequence[float] = [_power(factor, power) for factor in (1.0, 2.0, 5.0, 10.0)]
    step = min(steps, key=lambda each: abs(math.log((high - low) / each / about)))
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(number * step, number_text(number * step, decimals)) for number in range(first, last + 1)]


def _power(factor: float, power: int) -> float:
    # 10.0 ** -3 is not the float nearest to 0.001; its text is.
    return float(f"{factor:g}e{power}")
