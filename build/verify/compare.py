"""Differences between an artifact's outputs and PyTorch's, as numbers. numpy only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from targets.contract import Array


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far an element may be from PyTorch's value ``b``: ``atol + rtol*|b| + scale*max(|b|, extent)``.

    Attributes:
        atol: absolute part, in the output's unit.
        rtol: part relative to the element.
        scale: part relative to the output's :func:`extent` (rounding of a sum grows with its largest term).
    """

    atol: float
    rtol: float
    scale: float = 0.0


#: Defaults per precision. fp32: a few hundred ulp of float32 (1.2e-7), since runtimes order sums differently.
#: fp16: some ulp of float16 (9.8e-4) accumulated over layers, relative to the output's scale.
DEFAULT_TOLERANCES: dict[str, Tolerance] = {
    "fp32": Tolerance(atol=1e-5, rtol=1e-4, scale=2e-5),
    "fp16": Tolerance(atol=1e-3, rtol=1e-2, scale=1e-2),
}


#: values this many times the typical one are outliers: what they are says nothing of the others' rounding
_OUTLIER = 100.0


def extent(values: Array) -> float:
    """The largest magnitude of an output that is no outlier, finite values only; 0 for none.

    A mask's -1e9 or a lone huge element would lend every other element a tolerance beyond its own size. So the largest
    counts up to 100 times the typical magnitude (the lower quartile of the distinct ones that are not 0), or up to 1:
    of probabilities, most of which are next to nothing, the largest is no outlier.
    """
    sizes = np.abs(values[np.isfinite(values)].astype(np.float64))
    sizes = np.unique(sizes[sizes > 0])
    if sizes.size == 0:
        return 0.0
    typical = float(sizes[(sizes.size - 1) // 4])
    return min(float(sizes[-1]), max(_OUTLIER * typical, 1.0))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One output tensor of one call against PyTorch's.

    Attributes:
        max_abs: largest absolute difference over elements finite on both sides.
        max_rel: that difference over the largest finite reference magnitude.
        cosine: cosine similarity over elements finite on both sides (1 when both are zero).
        snr_db: signal to noise ratio, 10·log10(Σb² / Σ(a-b)²), inf when equal.
        nonfinite: elements whose NaN or infinity does not match the reference's.
        beyond: elements beyond the tolerance, non-finite mismatches excluded.
        problem: a difference of structure (shape, dtype), "" when there is none.
    """

    output: str
    max_abs: float = 0.0
    max_rel: float = 0.0
    cosine: float = 1.0
    snr_db: float = math.inf
    nonfinite: int = 0
    beyond: int = 0
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Within tolerance, with the right shape, dtype and non-finite values."""
        return not (self.problem or self.beyond or self.nonfinite)


def difference(name: str, got: Array, want: Array, tolerance: Tolerance) -> Difference:
    """Compare one output. Integers and booleans must be equal; floats within ``tolerance``."""
    if got.shape != want.shape:
        return Difference(output=name, problem=f"shape {list(got.shape)}, PyTorch gives {list(want.shape)}")
    if got.dtype != want.dtype:
        return Difference(output=name, problem=f"dtype {got.dtype}, PyTorch gives {want.dtype}")
    if want.size == 0:
        return Difference(output=name)
    if want.dtype.kind not in "fc":
        wrong = int(np.count_nonzero(got != want))
        gap = np.abs(got.astype(np.float64) - want.astype(np.float64))
        snr, cosine = _agreement(got, want)
        return Difference(output=name, max_abs=float(gap.max()), beyond=wrong, snr_db=snr, cosine=cosine)
    a, b = got.astype(np.float64), want.astype(np.float64)
    both = np.isfinite(a) & np.isfinite(b)
    same = (np.isnan(a) & np.isnan(b)) | (a == b)
    nonfinite = int(np.count_nonzero(~both & ~same))
    af, bf = a[both], b[both]
    if bf.size == 0:
        return Difference(output=name, nonfinite=nonfinite)
    gap = np.abs(af - bf)
    top = float(np.abs(bf).max())
    allowed = tolerance.atol + tolerance.rtol * np.abs(bf)
    if tolerance.scale:
        allowed += tolerance.scale * np.maximum(np.abs(bf), extent(bf))
    beyond = int(np.count_nonzero(gap > allowed))
    worst = float(gap.max())
    snr, cosine = _agreement(af, bf)
    return Difference(
        output=name,
        max_abs=worst,
        max_rel=worst / top if top else (0.0 if worst == 0 else math.inf),
        nonfinite=nonfinite,
        beyond=beyond,
        snr_db=snr,
        cosine=cosine,
    )


def _agreement(got: Array, want: Array) -> tuple[float, float]:
    """SNR in dB and cosine similarity."""
    a, b = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
    noise, signal, other = float(np.sum((a - b) ** 2)), float(np.sum(b * b)), float(np.sum(a * a))
    snr = math.inf if noise == 0 else -math.inf if signal == 0 else 10 * math.log10(signal / noise)
    norm = math.sqrt(signal) * math.sqrt(other)
    if norm == 0:
        return snr, 1.0 if signal == other else 0.0
    return snr, max(-1.0, min(1.0, float(a @ b) / norm))


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A changed decision: the class before and after, and how close the two were in PyTorch.

    Attributes:
        margin: reference score of the old class minus the new class's (0 = an exact tie), in the output's unit.
        margin_after: the artifact's score of the new class minus the old class's, likewise.
        tie: the margin is no larger than twice the largest difference seen: rounding alone decides it.
    """

    call: str
    row: int
    before: int
    after: int
    margin: float
    margin_after: float
    tie: bool


#: a changed decision is a near-tie when its margin is within twice the largest difference, which counts up to this
#: share of the scores' extent only: with garbage, everything would be near.
TIE_SHARE = 0.01


def changed_decisions(call: str, got: Array, want: Array, *, max_abs: float) -> list[Decision]:
    """Rows whose argmax over the last axis changed.

    Args:
        got, want: scores, shape (..., classes).
        max_abs: the largest absolute difference between them; with ``TIE_SHARE`` it says what is a near-tie.
    """
    if got.shape != want.shape or want.ndim == 0 or want.shape[-1] == 0:
        return []
    slack = min(max_abs, TIE_SHARE * extent(want))
    a, b = got.reshape(-1, got.shape[-1]), want.reshape(-1, want.shape[-1])
    before, after = b.argmax(-1), a.argmax(-1)
    found = []
    for row in np.flatnonzero(before != after):
        margin = float(b[row, before[row]]) - float(b[row, after[row]])
        found.append(
            Decision(
                call=call,
                row=int(row),
                before=int(before[row]),
                after=int(after[row]),
                margin=margin,
                margin_after=float(a[row, after[row]]) - float(a[row, before[row]]),
                tie=margin <= 2 * slack,
            )
        )
    return found
