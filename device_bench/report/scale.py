"""Axes: where a value lies on a plot, and which values are written beside it. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from device_bench.report.text import significant

#: largest value over smallest from which an axis is logarithmic.
LOG_SPAN = 8.0
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """From values (``low`` to ``high``) to pixels (``start`` to ``end``; the end may be the smaller).

    Attributes:
        ticks: values to mark, ascending, inside the scale.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        """The pixel of a value, kept inside the scale."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        share = math.log(at / low) / math.log(high / low) if self.log else (at - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def value(self, pixel: float) -> float:
        """The value at a pixel."""
        share = (pixel - self.start) / (self.end - self.start)
        if self.log:
            return self.low * math.exp(share * math.log(self.high / self.low))
        return self.low + share * (self.high - self.low)

    def label(self, tick: float) -> str:
        """A tick as text: no more digits than its neighbours need."""
        if abs(tick) >= 10_000:
            return f"{tick:,.0f}"
        if self.log:
            return f"{tick:g}" if tick >= 1e-4 else significant(tick, 1)
        step = self.ticks[1] - self.ticks[0] if len(self.ticks) > 1 else abs(tick) or 1.0
        places = max(0, -math.floor(math.log10(step) + 1e-9))
        return f"{tick:.{places + (0 if _whole(step * 10**places) else 1)}f}"


def _whole(value: float) -> bool:
    return abs(value - round(value)) < 1e-6


def linear(values: Sequence[float], start: float, end: float, *, zero: bool = False, count: int = 5) -> Scale:
    """A linear scale with round ticks that holds all values; from 0 with ``zero``.

    Raises:
        ValueError: no values.
    """
    low, high = (min(0.0, *values) if zero else min(values)), max(values)
    if high - low < 1e-9 * max(abs(high), 1e-9):
        pad = abs(high) * 0.02 or 0.5
        low, high = (low if zero and low == 0 else low - pad), high + pad
    elif not zero:
        low, high = low - 0.06 * (high - low), high + 0.06 * (high - low)
    rough = (high - low) / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * s for s in _STEPS if power * s >= rough * 0.999)
    if zero:
        high = math.ceil(high / step - 1e-9) * step
    first = math.ceil(low / step - 1e-9)
    ticks = tuple(i * step for i in range(first, math.floor(high / step + 1e-9) + 1))
    return Scale(low=low, high=high, start=start, end=end, log=False, ticks=ticks)


def logarithmic(values: Sequence[float], start: float, end: float) -> Scale:
    """A logarithmic scale for values above 0, with ticks at 1, 2 and 5, or at powers of ten over a long span.

    Raises:
        ValueError: no values.
    """
    low, high = min(values) / 1.12, max(values) * 1.12
    decades = math.log10(high / low)
    digits = (1,) if decades > 4 else (1, 3) if decades > 2.2 else (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = tuple(d * 10.0**p for p in powers for d in digits if low <= d * 10.0**p <= high)
    return Scale(low=low, high=high, start=start, end=end, log=True, ticks=ticks)


def fitting(values: Sequence[float], start: float, end: float) -> Scale:
    """Logarithmic where the values span much, else linear."""
    spans = min(values) > 0 and max(values) / min(values) > LOG_SPAN
    return logarithmic(values, start, end) if spans else linear(values, start, end, count=4)
