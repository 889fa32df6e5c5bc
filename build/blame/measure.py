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
from build.blame.culprit import Measured
from build.blame.cut import CutPoint, cut, cut_points, names_in_cut
from build.errors import EdgeportError, MissingToolError, StorageError
from build.program import call, signature_of
from build.protocol import is_full_disk
from build.quantize.regions import check_names
from build.record import CallRecord, ProgramRecord
from build.verify.accuracy import Agreement
from build.verify.check import reference_calls
from targets.contract import LowerRequest, Target

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from targets.contract import Array

    Inputs = Mapping[str, Array]

#: Reference calls that a cut is run on.
_CALLS = 8


@dataclass(frozen=True, kw_only=True)
class Lab:
    """What cuts are lowered with.

    Attributes:
        keep_float: nodes of the program that stay in float.
    """

    target: Target
    program: Callable[[], ExportedProgram]
    record: ProgramRecord
    folder: Path
    precision: str
    keep_float: tuple[str, ...] = ()
    say: Callable[[str], None] = lambda text: None

    def measure(self) -> list[Measured]:
        """Every cut point, in the order of the program. A cut that can't be lowered is halved until it can.

        Raises:
            InputError: a name in ``keep_float`` is no node of the program.
        """
        program = self.program()
        check_names(program, self.keep_float)
        points = cut_points(program)
        if not points:
            return []
        calls = [inputs for _, inputs, _ in _some_calls(self.folder, self.record)]
        found = self._measure(points, calls)
        return [found[p.shown] for p in points]

    def _measure(self, points: Sequence[CutPoint], calls: Sequence[Inputs]) -> dict[str, Measured]:
        self.say(f"cut at {len(points)} nodes" if len(points) > 1 else f"cut at {points[0].shown}")
        try:
            return self._lower_and_run(points, calls)
        except Exception as error:  # a converter's or a runtime's: the halves say which cut it was
            if of_this_machine(error):
                raise
            if len(points) == 1:
                return {points[0].shown: Measured(point=points[0], error=in_words(error))}
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
                keep_float=names_in_cut(program, self.keep_float),
            )
            lowered = self.target.lower(program, request)
            runner = self.target.load(Path(folder), lowered.files, signature)
            got = [runner.run({s.name: c[s.name] for s in signature.inputs}) for c in calls]
        return {p.shown: _compare(p, [g[p.shown] for g in got], [w[p.shown] for w in wanted]) for p in points}


def of_this_machine(error: Exception) -> bool:
    """Whether an error says nothing of what was tried: the disk is full, a tool is missing."""
    return is_full_disk(error) or isinstance(error, (StorageError, MissingToolError))


def in_words(error: Exception) -> str:
    """An error of ours or of a converter on one short line."""
    words = error.message if isinstance(error, EdgeportError) else f"{type(error).__name__}: {error}"
    return " ".join(words.split())[:200]


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
    largest, compared = 0.0, False
    for a, b in zip(got, want, strict=True):
        whole.add(a, b)
        both = np.isfinite(a) & np.isfinite(b)
        compared = compared or bool(both.any())
        largest = max(largest, float(np.abs(a[both].astype(np.float64) - b[both]).max(initial=0.0)))
        left, right = _by_channel(point, a), _by_channel(point, b)
        if not channels:
            channels = [Agreement() for _ in range(len(right))]
        if len(channels) == len(right):  # a channel axis of changing size is no channel axis
            for seen, x, y in zip(channels, left, right, strict=True):
                seen.add(x, y)
            peak = np.abs(right).max(axis=1, initial=0.0, where=np.isfinite(right))
            ranges = peak if ranges is None else np.maximum(ranges, peak)
    each = sorted(c.snr_db for c in channels if c.signal > 0)
    alive = sorted(float(r) for r in (ranges if ranges is not None else ()) if r > 0)
    snr_db = -math.inf if whole.nonfinite and not compared else whole.snr_db
    return Measured(
        point=point,
        snr_db=snr_db,
        channel_snr_db=each[len(each) // 4] if each else snr_db,
        nonfinite=whole.nonfinite,
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
