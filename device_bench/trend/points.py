"""Where a series changed its level.

E-divisive with means (Matteson and James, "A Nonparametric Approach for Multiple Change Point Analysis of Multivariate
Data", JASA 2014), as MongoDB uses it for benchmarks (Daly et al., "The Use of Change Point Detection to Identify
Software Performance Regressions in a Continuous Integration System", ICPE 2020; also in Hunter, Fleming et al., ICPE
2023): the split with the largest energy distance between its sides counts when few random orders of the same values
have one as large. Needs numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: points that a stretch needs before it can be split: with fewer, too few orders exist for a p-value of 0.05.
LEAST_POINTS = 8
#: points on each side of a split, at least.
LEAST_SIDE = 2
_ORDERS = 299
#: p-value up to which a split is looked at more closely.
_WEAK = 0.3
_LONGEST = 400


def change_points(values: Sequence[float], *, significance: float, seed: int) -> list[tuple[int, float]]:
    """``(index, p-value)`` of the first point of each new level, ascending.

    A level that comes and goes hardly shows in a split of the whole. So, as in Hunter, splits are taken on weak
    evidence first, then each is tested between its neighbours, and the weakest dropped until all are significant.

    Args:
        values: positive, in their order; the last 400 are looked at. They are compared by ratio.
        significance: the largest p-value that counts.
        seed: of the random orders.
    """
    skipped = max(len(values) - _LONGEST, 0)
    logs = np.log(np.maximum(np.asarray(values[skipped:], dtype=np.float64), 1e-12))
    rng = np.random.default_rng(seed)
    places = _candidates(logs, rng)
    while places:
        edges = [0, *places, len(logs)]
        tested = [_p_value(logs[a:b], at - a, rng) for a, at, b in zip(edges, places, edges[2:], strict=False)]
        worst = int(np.argmax(tested))
        if tested[worst] <= significance:
            return [(skipped + at, p) for at, p in zip(places, tested, strict=True)]
        del places[worst]
    return []


def _candidates(logs: NDArray[Any], rng: np.random.Generator) -> list[int]:
    found: list[int] = []
    stretches = [(0, len(logs))]
    while stretches:
        begin, end = stretches.pop()
        if end - begin >= LEAST_POINTS:
            at, _ = _best_split(logs[begin:end])
            if _p_value(logs[begin:end], at, rng) <= _WEAK:
                found.append(begin + at)
                stretches += [(begin, begin + at), (begin + at, end)]
    return sorted(found)


def _p_value(part: NDArray[Any], at: int, rng: np.random.Generator) -> float:
    """How often the best split of the same values in a random order is as good as the split at this place."""
    if len(part) < LEAST_POINTS:
        return 1.0
    distance = _energies(part)[at - LEAST_SIDE]
    if distance <= 0:
        return 1.0
    larger = sum(_best_split(rng.permutation(part))[1] >= distance for _ in range(_ORDERS))
    return float((larger + 1) / (_ORDERS + 1))


def _best_split(values: NDArray[Any]) -> tuple[int, float]:
    """The first index of the right side of the best split, and its energy distance."""
    energies = _energies(values)
    best = int(energies.argmax())
    return best + LEAST_SIDE, float(energies[best])


def _energies(values: NDArray[Any]) -> NDArray[Any]:
    """For each split, the first after LEAST_SIDE points: the energy distance of its sides, weighted by their sizes."""
    count = len(values)
    sums = np.zeros((count + 1, count + 1))
    sums[1:, 1:] = np.abs(values[:, None] - values).cumsum(axis=0).cumsum(axis=1)
    m = np.arange(LEAST_SIDE, count - LEAST_SIDE + 1)
    n = count - m
    left, total = sums[m, m], sums[count, count]
    across = sums[m, count] - left
    right = total - left - 2 * across
    # Pairs of a point with itself have no distance and are not counted.
    within = left / np.maximum(m * (m - 1), 1) + right / np.maximum(n * (n - 1), 1)
    found: NDArray[Any] = m * n / (m + n) * (2 * across / (m * n) - within)
    return found
