"""Automatic mixed precision: a small set of nodes to keep in float that brings an artifact back within its limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.archive import load_program
from build.attempt import Attempt, Maker, empty
from build.blame.culprit import culprit, drops
from build.blame.measure import Lab, in_words, of_this_machine
from build.record import PROGRAM

#: Trials at most that make the first set of a search smaller; each is a lowering with its verification.
_TRIALS = 40
#: Sets larger than this are cut down by quarters before single nodes are left out.
_FEW = 8


@dataclass(frozen=True, kw_only=True)
class Found:
    """A set of nodes that is enough.

    Attributes:
        minimal: without any single one of them it was tried and is not enough. False when the trials ran out.
    """

    nodes: tuple[str, ...]
    minimal: bool


def smallest(ranked: Sequence[str], enough: Callable[[tuple[str, ...]], bool], most: int = _TRIALS) -> Found | None:
    """A small set of nodes that is enough, and of which no single node can be left out; None when all are not enough.

    Doubling finds a first prefix of the ranking that is enough, halving a shorter one. Then parts of it are left out,
    the least suspicious first, and stay out where the rest is enough: quarters while it is large, single nodes until
    none can go. A set of other nodes may be smaller: only trying every set would tell.

    Args:
        ranked: most suspicious first.
        enough: whether an artifact with these nodes in float is good; never asked twice for the same set, and never
            for no node at all, which is known not to be enough.
        most: how often it may be asked after the first prefix was found.
    """
    known: dict[tuple[str, ...], bool] = {(): False}
    left: int | None = None

    def ask(keep: tuple[str, ...]) -> bool:
        nonlocal left
        if keep in known:
            return known[keep]
        if left is not None:
            left -= 1
            if left < 0:
                return False
        known[keep] = enough(keep)
        return known[keep]

    kept = _prefix(ranked, ask)
    if kept is None:
        return None
    left = most
    while len(kept) > _FEW:
        fewer = _without_parts(kept, len(kept) // 4, ask)
        if fewer == kept:
            break
        kept = fewer
    while (fewer := _without_parts(kept, 1, ask)) != kept:
        kept = fewer
    return Found(nodes=kept, minimal=left >= 0)


def _prefix(ranked: Sequence[str], enough: Callable[[tuple[str, ...]], bool]) -> tuple[str, ...] | None:
    """A short prefix that is enough."""
    size = 1
    while not enough(tuple(ranked[:size])):
        if size >= len(ranked):
            return None
        size = min(2 * size, len(ranked))
    low, high = size // 2 + 1 if size > 1 else 1, size
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(tuple(ranked[:middle])) else (middle + 1, high)
    return tuple(ranked[:high])


def _without_parts(kept: tuple[str, ...], size: int, enough: Callable[[tuple[str, ...]], bool]) -> tuple[str, ...]:
    """What is left when every part of ``size`` nodes, from the last on, was left out where the rest is enough."""
    for end in range(len(kept), 0, -size):
        rest = kept[: max(0, end - size)] + kept[end:]
        if enough(rest):
            kept = rest
    return kept


def auto_mixed(
    maker: Maker, directory: Path, first: Attempt, max_metric_drop: float | None
) -> tuple[Attempt, dict[str, Any]]:
    """Search from an attempt that lost too much.

    Args:
        directory: the staging folder; it holds the returned attempt's files afterwards.

    Returns:
        The attempt with the set of nodes that :func:`smallest` finds in float (none of them, when no set is enough),
        and what was tried.
    """
    lab = Lab(
        target=maker.target,
        program=lambda: load_program(maker.folder / PROGRAM),
        record=maker.record,
        folder=maker.folder,
        precision=maker.precision,
        keep_float=first.keep_float,
        say=maker.enter,
    )
    measured = lab.measure()
    lost = drops(measured, maker.precision)
    worst = culprit(measured, maker.precision)
    ranked = sorted(lost, key=lambda n: (worst is None or n != worst.point.name, -lost[n]))
    ranked += [m.point.name for m in measured if m.error]  # nothing is known of them
    ranked = [n for n in dict.fromkeys(ranked) if n not in first.keep_float]
    trials: list[dict[str, Any]] = []
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
        maker.enter(f"auto-mixed: {len(keep)} nodes in float")
        try:
            made = make(keep)
        except Exception as error:  # this set can't be lowered or run: another one may
            if of_this_machine(error):
                raise
            trials.append({"keep_float": list(with_float(keep)), "error": in_words(error)})
            return False
        metric = made.report.accuracy.result()
        good = not made.report.losses and not made.report.problems
        trials.append(
            {"keep_float": list(with_float(keep)), "metric": metric.to_json() if metric else None, "enough": good}
        )
        return good

    chosen = smallest(ranked, enough) if ranked else None
    keep = chosen.nodes if chosen is not None else ()
    made = current[0][1] if current and set(current[0][0]) == set(keep) else make(keep)
    computed = made.lowered.arithmetic
    if chosen is not None and computed is not None and not computed.integers:
        chosen, made = None, make(())  # with everything in float it is good, and of this precision in name alone
    return made, {"found": chosen is not None, "minimal": chosen is not None and chosen.minimal, "trials": trials}
