"""Calibration data: whose it is, whether it fits the program, and whether it may be used at all."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.capture.checks import odd_value
from build.capture.examples import examples_of
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
#: Inputs of these hold names (token ids, classes) or flags: a quantizer measures no range of them.
_WHOLE = frozenset({"bool", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"})


def split(calls: Sequence[Call]) -> tuple[list[Call], list[Call]]:
    """``(calibration, evaluation)`` of the calls beside a program."""
    return [c for c in calls if c.id.startswith(PREFIX)], [c for c in calls if not c.id.startswith(PREFIX)]


def check(calibration: Sequence[Call], evaluation: Sequence[Call], signature: Signature, where: str) -> list[str]:
    """Whether calls that fit the program can calibrate.

    Returns:
        Warnings: too few different examples, an input of whole numbers that never varies, a range that differs from
            the evaluation set's.

    Raises:
        InputError: NaN or infinity, an input that never varies, or an example that is in the evaluation set too.
    """
    _check_finite(calibration, where)
    remarks = _constants(calibration, evaluation, signature, where)
    _check_apart(calibration, evaluation, signature, where)
    return [*_small(calibration, signature, where), *remarks, *_ranges(calibration, evaluation, signature, where)]


def record(calibration: Sequence[Call], source: str, warnings: Sequence[str] = ()) -> CalibrationRecord | None:
    """What ``program.json`` says of the calls; None when there are none."""
    if not calibration:
        return None
    digest = hashlib.sha256("\n".join(_bytes_hash(c) for c in calibration).encode())
    return CalibrationRecord(
        sha256=digest.hexdigest(),
        calls=tuple(c.id for c in calibration),
        source=source,
        warnings=tuple(warnings),
    )


def write(path: Path, calibration: Sequence[Call]) -> None:
    """One ``.safetensors``: ``CALL/INPUT``."""
    from safetensors.torch import save_file

    save_file({f"{c.id}/{n}": t.contiguous().clone() for c in calibration for n, t in c.inputs.items()}, path)


def _check_finite(calibration: Sequence[Call], where: str) -> None:
    for call in calibration:
        for name, value in call.inputs.items():
            what = odd_value(value)
            if what is not None:
                raise InputError(
                    f"{where}: call '{call.id}', input '{name}' holds {what}",
                    remedy="A range cannot be measured from it: remove the call, or mend the data.",
                )


def _constants(calibration: Sequence[Call], evaluation: Sequence[Call], signature: Signature, where: str) -> list[str]:
    """Inputs that never vary. Whole numbers may (a mask of ones), where the evaluation set's do not vary either.

    Raises:
        InputError: an input of floating numbers, or every input, never varies.
    """
    constant = {}
    for spec in signature.inputs:
        value = _constant([c.inputs[spec.name] for c in calibration])
        if value is not None:
            constant[spec.name] = value
    floating = [s.name for s in signature.inputs if s.name in constant and s.dtype not in _WHOLE]
    refused = floating[:1] or (list(constant)[:1] if len(constant) == len(signature.inputs) else [])
    for name in refused:
        raise InputError(
            f"{where}: input '{name}' is {constant[name]} everywhere, in all {len(calibration)} calls",
            remedy="A constant has no range to measure: give real data.",
        )
    return [
        f"{where}: input '{name}' is {value} everywhere, in all {len(calibration)} calls"
        for name, value in constant.items()
        if not evaluation or _constant([c.inputs[name] for c in evaluation]) != value
    ]


def _constant(values: Sequence[torch.Tensor]) -> str | None:
    """The one value that tensors hold, as a message shows it; None where they vary, or are single numbers."""
    filled = [_wide(v).reshape(-1) for v in values if v.numel()]
    if not filled or max(len(v) for v in filled) == 1 or not all(bool((v == filled[0][0]).all()) for v in filled):
        return None
    value = filled[0][0].item()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _wide(value: torch.Tensor) -> torch.Tensor:
    """Floats of eight bits as larger ones: torch neither compares nor orders them."""
    return value.float() if value.is_floating_point() and value.element_size() == 1 else value


def _check_apart(calibration: Sequence[Call], evaluation: Sequence[Call], signature: Signature, where: str) -> None:
    """Raises InputError where a call, or one example within it, calibrates and judges."""
    whole = {_bytes_hash(c): c.id for c in evaluation}
    judged = {e.sha256: e.place for c in evaluation for e in examples_of(c, signature) if e.varies}
    shared, parts = [], []
    for call in calibration:
        same = whole.get(_bytes_hash(call))
        if same is not None:
            shared.append(f"'{call.id}' is '{same}'")
            continue
        part = next((e for e in examples_of(call, signature) if e.varies and e.sha256 in judged), None)
        if part is not None:
            parts.append(f"{part.place} is {judged[part.sha256]}")
    if not shared and not parts:
        return
    what = "hold examples of the evaluation set" if parts else "are in the evaluation set too"
    raise InputError(
        f"{where}: {len(shared) + len(parts)} of {len(calibration)} calls {what} ({[*parts, *shared][0]})",
        remedy="An artifact must be judged on data that it was not calibrated with: use other calls.",
    )


def _bytes_hash(call: Call) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(call.inputs.items()):
        import torch

        digest.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
        digest.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _small(calibration: Sequence[Call], signature: Signature, where: str) -> list[str]:
    examples = [e.sha256 for c in calibration for e in examples_of(c, signature)]
    different = len(set(examples))
    if different >= _FEW:
        return []
    few = f"{different} calibration examples are few (100 or more show the ranges of rare channels)"
    repeated = f"; the others of {len(examples)} repeat them" if different < len(examples) else ""
    return [f"{where}: {few}{repeated}"]


def _ranges(calibration: Sequence[Call], evaluation: Sequence[Call], signature: Signature, where: str) -> list[str]:
    import torch

    found = []
    for spec in signature.inputs:
        known, wanted = (
            [_wide(c.inputs[spec.name]) for c in calls if c.inputs[spec.name].numel()]
            for calls in (calibration, evaluation)
        )
        if not wanted or not known or not known[0].is_floating_point():
            continue
        low, high = min(float(v.min()) for v in known), max(float(v.max()) for v in known)
        judged: Any = torch.cat([v.reshape(-1) for v in wanted])
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
