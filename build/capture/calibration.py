"""Calibration data: whose it is, whether it fits the program, and whether it may be used at all."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.capture.sizes import example_sizes
from build.errors import InputError
from build.record import CalibrationRecord
from models.spec import Call
from targets.contract import Signature

if TYPE_CHECKING:
    import torch

#: Calls beside a program whose ids begin so calibrate; the others judge.
PREFIX = "calibration/"
#: Fewer examples than this seldom show the range of every channel (vendors advise 100 to 500).
_FEW = 16
#: Share of evaluation values beyond the calibrated range that is worth a warning.
_OUTSIDE = 0.01


def split(calls: Sequence[Call]) -> tuple[list[Call], list[Call]]:
    """``(calibration, evaluation)`` of the calls beside a program."""
    return [c for c in calls if c.id.startswith(PREFIX)], [c for c in calls if not c.id.startswith(PREFIX)]


def check(calibration: Sequence[Call], evaluation: Sequence[Call], signature: Signature, where: str) -> list[str]:
    """Whether calls can calibrate.

    Returns:
        Warnings: too few examples, a range that differs from the evaluation set's.

    Raises:
        InputError: NaN or infinity, an input that never varies, a call of another shape or dtype than the program
            takes, or a call that is in the evaluation set too.
    """
    for call in calibration:
        _fits(call, signature, where)
    for spec in signature.inputs:
        values = [c.inputs[spec.name] for c in calibration]
        if values[0].is_floating_point():
            _check_values(where, spec.name, {c.id: c.inputs[spec.name] for c in calibration})
    judged = {_bytes_hash(c): c.id for c in evaluation}
    shared = [(c.id, judged[h]) for c in calibration if (h := _bytes_hash(c)) in judged]
    if shared:
        raise InputError(
            f"{where}: {len(shared)} of {len(calibration)} calls are in the evaluation set too "
            f"('{shared[0][0]}' is '{shared[0][1]}')",
            remedy="An artifact must be judged on data that it was not calibrated with: use other calls.",
        )
    return [*_small(calibration, signature, where), *_ranges(calibration, evaluation, signature, where)]


def record(calibration: Sequence[Call], source: str) -> CalibrationRecord | None:
    """What ``program.json`` says of the calls; None when there are none."""
    if not calibration:
        return None
    digest = hashlib.sha256("\n".join(_bytes_hash(c) for c in calibration).encode())
    return CalibrationRecord(sha256=digest.hexdigest(), calls=tuple(c.id for c in calibration), source=source)


def write(path: Path, calibration: Sequence[Call]) -> None:
    """One ``.safetensors``: ``CALL/INPUT``."""
    from safetensors.torch import save_file

    save_file({f"{c.id}/{n}": t.contiguous().clone() for c in calibration for n, t in c.inputs.items()}, path)


def _fits(call: Call, signature: Signature, where: str) -> None:
    """Raises InputError when a call (of a spec; a file's calls were checked on reading) is not one of the program's."""
    from build.calls import check_value
    from build.program import torch_dtype_name

    roots: dict[str, tuple[int, str]] = {}
    for spec in signature.inputs:
        value = call.inputs.get(spec.name)
        if value is None:
            raise InputError(f"{where}: call '{call.id}' has no value for input '{spec.name}'")
        text = f"{where}: call '{call.id}', input '{spec.name}'"
        check_value(text, torch_dtype_name(value.dtype), tuple(value.shape), spec, roots)


def _check_values(where: str, name: str, values: Mapping[str, torch.Tensor]) -> None:
    import torch

    for call_id, value in values.items():
        if not bool(torch.isfinite(value).all()):
            raise InputError(
                f"{where}: call '{call_id}', input '{name}' holds NaN or infinity",
                remedy="A range cannot be measured from it: remove the call, or mend the data.",
            )
    low = min(float(v.min()) for v in values.values() if v.numel())
    high = max(float(v.max()) for v in values.values() if v.numel())
    if low == high and max(v.numel() for v in values.values()) > 1:
        raise InputError(
            f"{where}: input '{name}' is {low:g} everywhere, in all {len(values)} calls",
            remedy="A constant has no range to measure: give real data.",
        )


def _bytes_hash(call: Call) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(call.inputs.items()):
        import torch

        digest.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
        digest.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _small(calibration: Sequence[Call], signature: Signature, where: str) -> list[str]:
    examples = sum(_batch(c, signature) for c in calibration)
    if examples >= _FEW:
        return []
    return [f"{where}: {examples} calibration examples are few (100 or more show the ranges of rare channels)"]


def _batch(call: Call, signature: Signature) -> int:
    """How many examples a call holds: its first dynamic size, or 1."""
    sizes = example_sizes(signature, {n: tuple(t.shape) for n, t in call.inputs.items()})
    return max(1, next(iter(sizes.values()), 1))


def _ranges(calibration: Sequence[Call], evaluation: Sequence[Call], signature: Signature, where: str) -> list[str]:
    import torch

    found = []
    for spec in signature.inputs:
        known = [c.inputs[spec.name] for c in calibration]
        if not evaluation or not known[0].is_floating_point():
            continue
        low, high = min(float(v.min()) for v in known), max(float(v.max()) for v in known)
        judged: Any = torch.cat([c.inputs[spec.name].reshape(-1) for c in evaluation])
        share = float(((judged < low) | (judged > high)).double().mean())
        spans = float(judged.max() - judged.min()), high - low
        if share > _OUTSIDE:
            found.append(
                f"{where}: {share:.1%} of the evaluation set's values of '{spec.name}' lie outside the calibrated "
                f"range {low:g}..{high:g}"
            )
        elif spans[0] > 0 and spans[1] > 4 * spans[0]:
            found.append(
                f"{where}: the calibrated range of '{spec.name}', {low:g}..{high:g}, is {spans[1] / spans[0]:.0f} "
                "times as wide as the evaluation set's: most 8-bit steps go unused"
            )
    return found
