"""Which node is to blame, from what was measured. Standard library only: the session prints it in nox's own Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from build.blame.cut import CutPoint
from targets.precisions import PRECISIONS

#: A value this far from PyTorch's carries little of the signal: one step in five of an 8-bit range is noise.
DIVERGED_DB = 14.0
#: Ranges of channels this many times apart: one 8-bit scale leaves the smaller ones a step or two.
UNEVEN = 100.0
#: What a value can be worth at most at a precision, in dB: nothing below it says that a node broke.
_CEILING = {"fp32": 120.0, "fp16": 60.0}
#: What a value without any of its signal counts for, so that differences of such values are numbers.
_NOTHING_DB = -100.0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One cut point in a lowered program.

    Attributes:
        snr_db: of the whole value, over all calls; inf when equal, -inf when PyTorch's is all zero and this is not,
            or nothing is left to compare.
        channel_snr_db: of a channel in the worst quarter (25th percentile over channels): one scale for all channels
            drowns the small ones while the whole value still looks fine.
        nonfinite: elements whose NaN or infinity differs from PyTorch's, over all calls; the other figures leave them
            out.
        max_abs: largest absolute difference.
        spread: largest channel's range over the 25th percentile of the channels' ranges, in PyTorch.
        error: why it could not be measured; "" when it was.
    """

    point: CutPoint
    snr_db: float = math.nan
    channel_snr_db: float = math.nan
    nonfinite: int = 0
    max_abs: float = math.nan
    spread: float = 1.0
    error: str = ""

    @property
    def worth_db(self) -> float:
        """What the value is worth to those that read it: nothing where a NaN or an infinity differs from PyTorch's."""
        return -math.inf if self.nonfinite else self.channel_snr_db


def ceiling(precision: str) -> float:
    """The SNR beyond which nothing is wrong at a precision, in dB (8 bits carry at most about 50)."""
    return _CEILING.get(precision, 50.0)


def divergence_limit(precision: str) -> float:
    """The SNR below which a value has diverged at a precision, in dB."""
    return ceiling(precision) / 2 if precision in _CEILING else DIVERGED_DB


def drops(measured: Sequence[Measured], precision: str) -> dict[str, float]:
    """Cut point name -> what is lost in it, in dB: the least SNR that goes in minus its own.

    Both are the channel's figures, capped at what the precision can carry.
    """
    top = ceiling(precision)
    known = _by_name(measured)
    own = {name: max(_NOTHING_DB, min(top, m.worth_db)) for name, m in known.items()}
    return {
        name: min([own[i] for i in m.point.inputs if i in own], default=top) - own[name] for name, m in known.items()
    }


def _by_name(measured: Sequence[Measured]) -> dict[str, Measured]:
    """Those that could be measured; where a node is shown twice (before and behind its activation), the worse."""
    found: dict[str, Measured] = {}
    for m in measured:
        if not m.error and (m.point.name not in found or m.worth_db < found[m.point.name].worth_db):
            found[m.point.name] = m
    return found


def culprit(measured: Sequence[Measured], precision: str) -> Measured | None:
    """The first value that diverges while what it is computed from does not; else the one that loses most.

    A value that no reader suffers from (a mask's infinity that is a large number here) comes after those that spread.
    Where that node reads a value whose channels no 8-bit scale can hold, the layer that makes the value is to blame:
    some runtimes round a value where it is made, others where it is read.

    None when nothing loses more than 6 dB (one bit).
    """
    limit = divergence_limit(precision)
    lost = drops(measured, precision)
    known = _by_name(measured)
    broken = [
        m
        for m in known.values()
        if m.worth_db < limit and all(known[i].worth_db >= limit for i in m.point.inputs if i in known)
    ]

    def is_harmless(m: Measured) -> bool:
        readers = [other for other in known.values() if m.point.name in other.point.inputs]
        return bool(readers) and all(other.worth_db >= limit for other in readers)

    first = min(broken, key=is_harmless, default=None)
    if first is None:
        worst = max(known.values(), key=lambda m: lost[m.point.name], default=None)
        first = worst if worst is not None and lost[worst.point.name] > 6 else None
    while first is not None and PRECISIONS[precision].quantized:
        above = [known[i] for i in first.point.inputs if i in known and known[i].spread > UNEVEN]
        if not above:
            break
        first = above[0]
    return first
