"""How far each value of a lowered program is from PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from build.attempt import calibration_calls
from build.blame.cut import CutPoint, cut, cut_points
from build.errors import EdgeportError
from build.program import call, signature_of
from build.record import CallRecord, ProgramRecord
from build.verify.accuracy import Agreement
from build.verify.check import reference_calls
from targets.contract import LowerRequest, Target
from targets.precisions import PRECISIONS

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from targets.contract import Array

    Inputs = Mapping[str, Array]

#: Reference calls that a cut is run on.
_CALLS = 8
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


@dataclass(frozen=True, kw_only=True)
class Lab:
    """What cuts are lowered with."""

    target: Target
    program: Callable[[], ExportedProgram]
    record: ProgramRecord
    folder: Path
    precision: str
    say: Callable[[str], None] = lambda text: None

    def measure(self) -> list[Measured]:
        """Every cut point, in the order of the program. A cut that can't be lowered is halved until it can."""
        points = cut_points(self.program())
        calls = [inputs for _, inputs, _ in _some_calls(self.folder, self.record)]
        found = self._measure(points, calls)
        return [found[p.shown] for p in points]

    def _measure(self, points: Sequence[CutPoint], calls: Sequence[Inputs]) -> dict[str, Measured]:
        self.say(f"cut at {len(points)} nodes" if len(points) > 1 else f"cut at {points[0].shown}")
        try:
            return self._lower_and_run(points, calls)
        except Exception as error:  # a converter's or a runtime's: the halves say which cut it was
            if len(points) == 1:
                words = error.message if isinstance(error, EdgeportError) else f"{type(error).__name__}: {error}"
                return {points[0].shown: Measured(point=points[0], error=" ".join(words.split())[:200])}
        half = len(points) // 2
        return self._measure(points[:half], calls) | self._measure(points[half:], calls)

    def _lower_and_run(self, points: Sequence[CutPoint], calls: Sequence[Inputs]) -> dict[str, Measured]:
        program = cut(self.program(), [p.shown for p in points])
        signature = signature_of(program)
        eager = call(program)
        names = [s.name for s in signature.outputs]
        wanted = [_eager(eager, [c[s.name] for s in signature.inputs], names) for c in calls]
        with TemporaryDirectory(prefix="edgeport-cut-") as folder:
            request = LowerRequest(
                model=self.record.name,
                signature=signature,
                precision=self.precision,
                directory=Path(folder),
                calibration=calibration_calls(self.folder, self.record, self.precision),
            )
            lowered = self.target.lower(program, request)
            runner = self.target.load(Path(folder), lowered.files, signature)
            got = [runner.run({s.name: c[s.name] for s in signature.inputs}) for c in calls]
        return {p.shown: _compare(p, [g[p.shown] for g in got], [w[p.shown] for w in wanted]) for p in points}


def _some_calls(folder: Path, record: ProgramRecord) -> Sequence[tuple[CallRecord, Inputs, Inputs]]:
    """The first evaluation calls; without any, the example and the size points."""
    found = list(reference_calls(folder, record))
    real = [c for c in found if c[0].kind == "evaluation"] or [c for c in found if c[0].kind != "edge"]
    step = max(1, len(real) // _CALLS)
    return real[::step][:_CALLS]


def _eager(run: Any, inputs: Sequence[Array], names: Sequence[str]) -> dict[str, Array]:
    import torch

    outputs = run([torch.from_numpy(x.copy()) for x in inputs])
    return {n: t.numpy() for n, t in zip(names, outputs, strict=True)}


def _compare(point: CutPoint, got: Sequence[Array], want: Sequence[Array]) -> Measured:
    whole = Agreement()
    channels: list[Agreement] = []
    ranges: Array | None = None
    largest = 0.0
    for a, b in zip(got, want, strict=True):
        whole.add(a, b)
        largest = max(largest, float(np.abs(a.astype(np.float64) - b).max(initial=0.0)))
        left, right = _by_channel(point, a), _by_channel(point, b)
        if not channels:
            channels = [Agreement() for _ in range(len(right))]
        if len(channels) == len(right):  # a channel axis of changing size is no channel axis
            for seen, x, y in zip(channels, left, right, strict=True):
                seen.add(x, y)
            peak = np.abs(right).max(axis=1, initial=0.0)
            ranges = peak if ranges is None else np.maximum(ranges, peak)
    each = sorted(c.snr_db for c in channels if c.signal > 0)
    alive = sorted(float(r) for r in (ranges if ranges is not None else ()) if r > 0)
    return Measured(
        point=point,
        snr_db=whole.snr_db,
        channel_snr_db=each[len(each) // 4] if each else whole.snr_db,
        max_abs=largest,
        spread=alive[-1] / alive[len(alive) // 4] if alive else 1.0,
    )


def _by_channel(point: CutPoint, value: Array) -> Array:
    """``[channels, elements]``: axis 1 after convolutions and in images, else the last."""
    axis = 1 if value.ndim in (4, 5) or (value.ndim == 3 and "conv" in point.op) else value.ndim - 1
    if value.ndim == 0:
        return value.reshape(1, 1)
    moved: Array = np.moveaxis(value, axis, 0)
    return moved.reshape(moved.shape[0], -1)


def ceiling(precision: str) -> float:
    """The SNR beyond which nothing is wrong at a precision, in dB (8 bits carry at most about 50)."""
    return _CEILING.get(precision, 50.0)


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
    limit = DIVERGED_DB if precision not in _CEILING else ceiling(precision) / 2
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
