"""Figures from raw samples, on the host. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

#: samples, over all repeats, that a percentile needs before it means anything: at least five lie beyond it.
NEEDED = {50: 10, 90: 50, 95: 100, 99: 1000}


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Of one set of samples, in ms. A percentile without enough samples is None.

    Attributes:
        spread: standard deviation over the mean.
        drift: median of the last quarter of the samples over that of the first, minus 1: above 0, it got slower.
    """

    samples: int
    min_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float | None
    max_ms: float
    mean_ms: float
    stdev_ms: float
    spread: float
    drift: float

    def to_json(self) -> dict[str, Any]:
        """For a measurement."""
        return asdict(self)


def nearest_rank(ordered: Sequence[int], percent: int) -> int:
    """The smallest sample that at least ``percent`` of all samples do not exceed: a value that was really measured.

    Args:
        ordered: ascending, not empty.
    """
    return ordered[max(math.ceil(percent * len(ordered) / 100), 1) - 1]


def summarise(samples_ns: Sequence[int]) -> Statistics:
    """Statistics of samples in ns.

    Raises:
        ValueError: no samples.
    """
    if not samples_ns:
        raise ValueError("no samples")
    ordered = sorted(samples_ns)
    count = len(ordered)
    mean = sum(ordered) / count
    stdev = math.sqrt(sum((s - mean) ** 2 for s in ordered) / (count - 1)) if count > 1 else 0.0
    quarter = max(count // 4, 1)
    first, last = sorted(samples_ns[:quarter]), sorted(samples_ns[-quarter:])
    drift = nearest_rank(last, 50) / max(nearest_rank(first, 50), 1) - 1

    def ms(ns: float) -> float:
        return round(ns / 1e6, 6)

    return Statistics(
        samples=count,
        min_ms=ms(ordered[0]),
        p50_ms=ms(nearest_rank(ordered, 50)),
        p90_ms=ms(nearest_rank(ordered, 90)),
        p95_ms=ms(nearest_rank(ordered, 95)),
        p99_ms=ms(nearest_rank(ordered, 99)) if count >= NEEDED[99] else None,
        max_ms=ms(ordered[-1]),
        mean_ms=ms(mean),
        stdev_ms=ms(stdev),
        spread=round(stdev / mean, 4) if mean else 0.0,
        drift=round(drift, 4),
    )
