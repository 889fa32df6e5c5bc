"""What makes samples unfit for a comparison: two modes, or a drift. Needs numpy."""

from __future__ import annotations

import math

import numpy as np

from device_bench.compare.change import Samples, autocorrelation

#: the excess mass of a second mode, times the root of the number of samples, that 1 of 1,000 sets of independent
#: uniform samples exceeds: uniform is the unimodal distribution that looks most like two (found by simulation, see
#: the tests).
CRITICAL = 1.3
#: share of the samples that a second mode must hold, however many samples there are.
LEAST_MODE = 0.05
#: samples below which modes are not looked for.
LEAST_SAMPLES = 40
#: median of the last quarter over that of the first, minus 1, from which a run drifts; and the standard normal quantile
#: that the trend (Spearman's rank correlation with time) must reach as well.
DRIFT = 0.1
_TREND_Z = 3.3
_LEVELS = np.geomspace(0.01, 20.0, 48)
_LARGEST = 2000


def modes(samples: Samples, apart: float) -> tuple[float, float] | None:
    """The two levels between which samples jump, in ns; None when they have one mode.

    The excess mass test (Müller and Sawitzki 1991; its statistic is twice Hartigan's dip): how much more of the samples
    two intervals hold than one does, above what their length explains.

    Args:
        apart: relative distance below which two levels are one for all practical purposes.
    """
    if len(samples) < LEAST_SAMPLES:
        return None
    thinned = samples[:: math.ceil(len(samples) / _LARGEST)]
    excess, gap = _excess_mass(_spread_ties(thinned))
    rho = max(autocorrelation(thinned), 0.0)
    independent = len(thinned) * (1 - rho) / (1 + rho)
    if excess < max(CRITICAL / math.sqrt(max(independent, 1.0)), LEAST_MODE):
        return None
    lower, upper = thinned[thinned <= gap], thinned[thinned > gap]
    if not len(lower) or not len(upper):
        return None
    low, high = float(np.median(lower)), float(np.median(upper))
    return (low, high) if high / max(low, 1.0) - 1 >= apart else None


def _spread_ties(samples: Samples) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Sorted, with samples that a coarse clock made equal spread over the clock's step."""
    values = np.sort(samples).astype(np.float64)
    distinct = np.unique(values)
    if len(distinct) < 2 or len(distinct) > len(values) / 2:
        return values
    step = float(np.diff(distinct).min())
    found, starts, counts = np.unique(values, return_index=True, return_counts=True)
    place = np.arange(len(values)) - np.repeat(starts, counts)
    return np.repeat(found, counts) + step * ((place + 0.5) / np.repeat(counts, counts) - 0.5)


def _excess_mass(ordered: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    """The largest gain of a second interval, as a share of the samples, and a value between the two intervals."""
    count = len(ordered)
    scale = float(np.subtract(*np.quantile(ordered, [0.75, 0.25]))) or float(ordered[-1] - ordered[0])
    if scale <= 0:
        return 0.0, float(ordered[0])
    x = ordered / scale
    mass = np.arange(count + 1) / count
    # An interval from the i-th to the j-th sample holds its share of them, minus level times its length.
    begins = _LEVELS[:, None] * x - mass[:-1]
    ends = mass[1:] - _LEVELS[:, None] * x
    until = np.maximum.accumulate(ends + np.maximum.accumulate(begins, axis=1), axis=1)
    after = np.maximum.accumulate((begins + np.maximum.accumulate(ends[:, ::-1], axis=1)[:, ::-1])[:, ::-1], axis=1)
    pairs = until[:, :-1] + after[:, ::-1][:, 1:]
    gains = pairs.max(axis=1) - until[:, -1]
    level = int(gains.argmax())
    # Where the pair is best, any split inside the gap is equally good: take its middle.
    best = np.flatnonzero(pairs[level] >= pairs[level].max() - 1e-12)
    at = int(best[len(best) // 2])
    return float(gains[level]), float((ordered[at] + ordered[at + 1]) / 2)


def drift(samples: Samples) -> float | None:
    """How much slower (or faster) the last quarter is than the first; None when that is no trend."""
    count = len(samples)
    quarter = count // 4
    if quarter < 5:
        return None
    found = float(np.median(samples[-quarter:]) / max(float(np.median(samples[:quarter])), 1.0)) - 1
    if abs(found) < DRIFT:
        return None
    ranks = np.argsort(np.argsort(samples, kind="stable"), kind="stable")
    trend = float(np.corrcoef(ranks, np.arange(count))[0, 1])
    return found if abs(trend) * math.sqrt(count - 1) > _TREND_Z else None
