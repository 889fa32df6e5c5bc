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


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One cut point in a lowered program.

    Attributes:
        snr_db: of the whole value, over all calls; inf when equal.
        channel_snr_db: of a channel in the worst quarter (25th percentile over channels): one scale for all channels
            drowns the small ones while the whole value still looks fine.
        max_abs: largest absolute difference.
        spread: largest channel's range over the 25th percentile of the channels' ranges, in PyTorch.
        error: why it could not be measured; "" when it was.
    """

    point: CutPoint
    snr_db: float = math.nan
    channel_snr_db: float = math.nan
    max_abs: float = math.nan
    spread: float = 1.0
    error: str = ""


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
    own = {m.point.name: min(top, m.channel_snr_db) for m in measured if not m.error}
    return {
        m.point.name: min([own[i] for i in m.point.inputs if i in own], default=top) - own[m.point.name]
        for m in measured
        if not m.error
    }


def culprit(measured: Sequence[Measured], precision: str) -> Measured | None:
    """The first value that diverges while what it is computed from does not; else the one that loses most.

    Where that node reads a value whose channels no 8-bit scale can hold, the layer that makes the value is to blame:
    some runtimes round a value where it is made, others where it is read.

    None when nothing loses more than 6 dB (one bit).
    """
    limit = divergence_limit(precision)
    lost = drops(measured, precision)
    known = {m.point.name: m for m in measured if not m.error}
    first = next(
        (
            m
            for m in known.values()
            if m.channel_snr_db < limit and all(known[i].channel_snr_db >= limit for i in m.point.inputs if i in known)
        ),
        None,
    )
    if first is None:
        worst = max(known.values(), key=lambda m: lost[m.point.name], default=None)
        first = worst if worst is not None and lost[worst.point.name] > 6 else None
    while first is not None and PRECISIONS[precision].quantized:
        above = [known[i] for i in first.point.inputs if i in known and known[i].spread > UNEVEN]
        if not above:
            break
        first = above[0]
    return first
