"""How much a percentile changed between two cells, with a confidence interval from the raw samples.

Samples of one process are not independent, and two processes differ by more than their samples show (memory layout,
clock, what else runs): Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time" (ISMM 2013) and "Quantifying
Performance Changes with Effect Size Confidence Intervals" (2012). So both levels are drawn:

- within a repeat, circular blocks of consecutive samples are resampled (Künsch 1989; Politis and Romano 1992), long
  enough to keep the samples' autocorrelation (Carlstein's rule for an AR(1) series, 1986);
- between repeats, of which there are few, the difference of the means is drawn from Student's t with the variance
  pooled over both sides: three repeats are too few to be resampled themselves.

The change is the ratio of the geometric means of the repeats' percentiles, minus 1. Needs numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_bench.statistics import NEEDED

Samples = NDArray[np.int64]
DRAWS = 1000
#: samples of a repeat that are resampled: evenly spaced ones of more. That widens the interval, and never narrows it.
RESAMPLED = 1000


@dataclass(frozen=True, kw_only=True)
class Change:
    """Of one percentile, B against A.

    Attributes:
        a_ms, b_ms: geometric means of the repeats' percentiles.
        change: ``b / a - 1``; ``low`` and ``high`` are its interval.
    """

    a_ms: float
    b_ms: float
    change: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """Rounded to what was measured."""
        return {
            "a_ms": round(self.a_ms, 6),
            "b_ms": round(self.b_ms, 6),
            "change": round(self.change, 6),
            "low": round(self.low, 6),
            "high": round(self.high, 6),
        }


def changes(
    a: Sequence[Samples], b: Sequence[Samples], *, confidence: float, seed: int, percents: Sequence[int] = (50, 95)
) -> dict[int, Change]:
    """Percentile -> its change; a percentile for which either side has too few samples is left out.

    Args:
        a, b: ns, one array per repeat, in the order in which they were measured.
        confidence: of the interval, 0.95 for 95 %.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    enough = [p for p in percents if min(sum(map(len, side)) for side in (a, b)) >= NEEDED[p]]
    if not enough:
        return {}
    drawn = [[_within(samples, enough, rng) for samples in side] for side in (a, b)]
    found = {}
    for i, percent in enumerate(enough):
        levels = [np.log([percentile(s, percent) for s in side]) for side in (a, b)]
        means = [float(level.mean()) for level in levels]
        within = [np.mean([d[i] for d in side], axis=0) for side in drawn]
        difference = means[1] - means[0] + within[1] - within[0] + _between(levels, rng)
        low, high = np.quantile(difference, [(1 - confidence) / 2, (1 + confidence) / 2])
        found[percent] = Change(
            a_ms=math.exp(means[0]) / 1e6,
            b_ms=math.exp(means[1]) / 1e6,
            change=math.expm1(means[1] - means[0]),
            low=math.expm1(low),
            high=math.expm1(high),
        )
    return found


def percentile(samples: Samples, percent: int) -> int:
    """Nearest rank, as in the lab's own figures; at least 1 ns, for the logarithm."""
    return max(int(np.partition(samples, _rank(len(samples), percent))[_rank(len(samples), percent)]), 1)


def _rank(count: int, percent: int) -> int:
    return max(math.ceil(percent * count / 100), 1) - 1


def _within(samples: Samples, percents: Sequence[int], rng: np.random.Generator) -> list[NDArray[Any]]:
    """For each percentile: draws of how far its logarithm is off, by the samples of one repeat."""
    used = samples
    if len(used) > RESAMPLED:
        used = used[np.linspace(0, len(used) - 1, RESAMPLED).round().astype(np.int64)]
    count = len(used)
    length = block_length(used)
    starts = rng.integers(0, count, size=(DRAWS, math.ceil(count / length)))
    places = (starts[:, :, None] + np.arange(length)) % count
    resampled = used[places.reshape(DRAWS, -1)[:, :count]]
    ranks = [_rank(count, p) for p in percents]
    resampled.partition(ranks, axis=1)
    return [
        np.log(np.maximum(resampled[:, r], 1)) - math.log(percentile(used, p))
        for r, p in zip(ranks, percents, strict=True)
    ]


def block_length(samples: Samples) -> int:
    """Consecutive samples that belong together: ``(2ρ / (1 - ρ²))^(2/3) · n^(1/3)``, at most a tenth of them."""
    count = len(samples)
    rho = autocorrelation(samples)
    if rho <= 0 or count < 20:
        return 1
    rho = min(rho, 0.99)
    wanted = (2 * rho / (1 - rho**2)) ** (2 / 3) * count ** (1 / 3)
    return max(1, min(round(wanted), count // 10))


def autocorrelation(samples: Samples) -> float:
    """Lag-1 correlation of the samples' ranks: a single slow sample does not decide it."""
    ranks = np.argsort(np.argsort(samples, kind="stable"), kind="stable").astype(np.float64)
    ranks -= ranks.mean()
    total = float(ranks @ ranks)
    return float(ranks[1:] @ ranks[:-1]) / total if total > 0 and len(samples) > 2 else 0.0


def _between(levels: Sequence[NDArray[Any]], rng: np.random.Generator) -> NDArray[Any]:
    """Draws of how far the difference of the means is off, by the choice of repeats. 0 with one repeat on each side."""
    freedom = sum(len(level) - 1 for level in levels)
    if freedom == 0:
        return np.zeros(DRAWS)
    squares = sum(float(((level - level.mean()) ** 2).sum()) for level in levels)
    error = math.sqrt(squares / freedom * sum(1 / len(level) for level in levels))
    return error * rng.standard_t(freedom, DRAWS)
