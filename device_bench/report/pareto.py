"""The Pareto front of two figures. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other point beats, by ascending cost.

    Args:
        points: (cost, worth): less cost is better, more worth is better. A point is beaten by one that is no worse in
            both and better in one; equal points stand together.
    """
    best = float("-inf")
    found: list[int] = []
    last: tuple[float, float] | None = None
    for index in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        cost, worth = points[index]
        if worth > best or (cost, worth) == last:
            found.append(index)
            best, last = worth, (cost, worth)
    return found
