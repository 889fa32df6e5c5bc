"""Automatic mixed precision: the fewest nodes to keep in float that bring an artifact back within its limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from build.archive import load_program
from build.attempt import Attempt, Maker, empty
from build.blame.culprit import culprit, drops
from build.blame.measure import Lab
from build.errors import EdgeportError
from build.record import PROGRAM

#: Nodes that are tried one by one after the first set that is enough; more would take a lowering each.
_PRUNED = 8


def fewest(ranked: Sequence[str], enough: Callable[[tuple[str, ...]], bool]) -> tuple[str, ...] | None:
    """A small set of nodes that is enough; None when all of them are not.

    Doubling finds a first prefix of the ranking that is enough, halving the shortest such prefix; then each node of it
    is left out in turn, the least suspicious first, and stays out where the rest is enough.

    Args:
        ranked: most suspicious first.
        enough: whether an artifact with these nodes in float is good; called as seldom as possible.
    """
    size = 1
    while not enough(tuple(ranked[:size])):
        if size >= len(ranked):
            return None
        size = min(2 * size, len(ranked))
    low, high = size // 2 + 1 if size > 1 else 1, size
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(tuple(ranked[:middle])) else (middle + 1, high)
    kept = list(ranked[:high])
    for name in reversed(kept[:_PRUNED] if len(kept) > 1 else []):
        rest = tuple(n for n in kept if n != name)
        if rest and enough(rest):
            kept.remove(name)
    return tuple(kept)


def auto_mixed(
    maker: Maker, directory: Path, first: Attempt, max_metric_drop: float | None
) -> tuple[Attempt, dict[str, Any]]:
    """Search from an attempt that lost too much.

    Args:
        directory: the staging folder; it holds the returned attempt's files afterwards.

    Returns:
        The attempt with the fewest nodes in float (the last one tried, when none is enough), and what was tried.
    """
    lab = Lab(
        target=maker.target,
        program=lambda: load_program(maker.folder / PROGRAM),
        record=maker.record,
        folder=maker.folder,
        precision=maker.precision,
        say=maker.enter,
    )
    measured = lab.measure()
    lost = drops(measured, maker.precision)
    worst = culprit(measured, maker.precision)
    ranked = sorted(lost, key=lambda n: (worst is None or n != worst.point.name, -lost[n]))
    trials: list[dict[str, Any]] = []
    known: dict[frozenset[str], bool] = {}
    current: list[tuple[tuple[str, ...], Attempt]] = []  # whose files the directory holds

    def with_float(keep: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*first.keep_float, *keep]))

    def make(keep: tuple[str, ...]) -> Attempt:
        current.clear()
        empty(directory)
        made = maker.make(directory, with_float(keep), max_metric_drop)
        current.append((keep, made))
        return made

    def enough(keep: tuple[str, ...]) -> bool:
        if frozenset(keep) in known:
            return known[frozenset(keep)]
        maker.enter(f"auto-mixed: {len(keep)} nodes in float")
        try:
            made = make(keep)
        except EdgeportError as error:  # this set can't be lowered: another one may
            trials.append({"keep_float": list(with_float(keep)), "error": error.message})
            known[frozenset(keep)] = False
            return False
        metric = made.report.accuracy.result()
        good = not made.report.losses and not made.report.problems
        trials.append(
            {"keep_float": list(with_float(keep)), "metric": metric.to_json() if metric else None, "enough": good}
        )
        known[frozenset(keep)] = good
        return good

    chosen = fewest(ranked, enough) if ranked else None
    keep = chosen if chosen is not None else ()
    made = current[0][1] if current and set(current[0][0]) == set(keep) else make(keep)
    return made, {"found": chosen is not None, "trials": trials}
