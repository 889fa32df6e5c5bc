"""What came back from a device against PyTorch, and against this host running the same artifact."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.errors import RejectedResultError
from build.record import REFERENCE, ProgramRecord
from build.verify.accuracy import Accuracy, Agreement
from build.verify.compare import DEFAULT_TOLERANCES, Decision, Tolerance, changed_decisions, difference
from device_bench.job import evaluation_calls

if TYPE_CHECKING:
    from targets.contract import Array

Outputs = Mapping[str, Mapping[str, "Array"]]

#: changed decisions and differing calls that are listed; the rest is counted.
_LISTED = 50
#: a quantised artifact's steps round differently on other processors; more noise than this is no rounding...
_MIN_SNR_DB = 30.0
#: ...but for an artifact that is noisier itself: over many layers roundings add up to a part of its own noise. With a
#: quarter of that (6 dB below it) a device costs the artifact 1 dB against PyTorch.
_BELOW_OWN_DB = 6.0
_ANYTHING = Tolerance(atol=math.inf, rtol=0.0)


def _reference(record: ProgramRecord, folder: Path) -> Iterator[tuple[str, int | None, dict[str, Array]]]:
    """Call id, label and PyTorch's outputs of the calls that run on devices, one at a time."""
    from safetensors import safe_open

    with safe_open(folder / REFERENCE, framework="numpy") as file:
        for call in evaluation_calls(record):
            yield (
                call.id,
                call.label,
                {s.name: file.get_tensor(f"{call.id}/out/{s.name}") for s in record.signature.outputs},
            )


def as_program(record: ProgramRecord, outputs: Outputs) -> dict[str, dict[str, Array]]:
    """The same values in the program's dtypes: an artifact may compute 64-bit integers in 32 bits.

    Raises:
        RejectedResultError: an output has another dtype than that explains.
    """
    wanted = {s.name: s.dtype for s in record.signature.outputs}
    found: dict[str, dict[str, Array]] = {}
    for call, values in outputs.items():
        found[call] = {}
        for name, value in values.items():
            if value.dtype.name != wanted[name] and (value.dtype.name, wanted[name]) != ("int32", "int64"):
                raise RejectedResultError(
                    f"output '{name}' came back as {value.dtype}, the program's is {wanted[name]}"
                )
            found[call][name] = value.astype(wanted[name], copy=False)
    return found


def against_pytorch(record: ProgramRecord, folder: Path, outputs: Outputs) -> dict[str, Any]:
    """The task metric, changed decisions and differences from PyTorch's outputs.

    Raises:
        RejectedResultError: an output has another shape than PyTorch's.
    """
    accuracy = Accuracy(metric=record.metric, output=record.metric_output, labels=record.labels)
    decisions: list[Decision] = []
    worst: dict[str, Any] = {"max_abs_diff": 0.0, "call": None, "output": None}
    decided = nonfinite = calls = 0
    for call, label, want in _reference(record, folder):
        got = dict(outputs[call])
        calls += 1
        for name, reference in want.items():
            found = difference(name, got[name], reference, _ANYTHING)
            if found.problem:
                raise RejectedResultError(f"call '{call}': output '{name}' has {found.problem}")
            nonfinite += found.nonfinite
            if found.max_abs > worst["max_abs_diff"]:
                worst = {"max_abs_diff": found.max_abs, "call": call, "output": name}
            if name == record.decision_output:
                decided += int(reference.size // max(reference.shape[-1], 1))
                decisions += changed_decisions(call, got[name], reference, max_abs=found.max_abs)
        accuracy.add(got, want, label)
    metric = accuracy.result()
    return {
        "calls": calls,
        "metric": None if metric is None else metric.to_json(),
        "max_abs_diff": worst["max_abs_diff"],
        "worst": {"call": worst["call"], "output": worst["output"]},
        "outputs": accuracy.to_json()["outputs"],
        "decisions": decided,
        "changed_decisions": sum(not d.tie for d in decisions),
        "near_ties": sum(d.tie for d in decisions),
        "changed": [asdict(d) for d in decisions[:_LISTED]],
        "nonfinite": nonfinite,
    }


def against_host(
    record: ProgramRecord,
    precision: str,
    device: Outputs,
    host: Outputs,
    own_snr_db: Mapping[str, float | None] | None = None,
) -> dict[str, Any]:
    """Whether a device computes what this host computes from the same bytes, and on which calls it does not.

    Args:
        own_snr_db: output -> signal to noise of this host's run against PyTorch, in dB.

    Returns:
        ``identical``: every byte equal. ``flagged``: the difference is more than rounding, ``why`` says how.
    """
    differing: list[str] = []
    decisions: list[Decision] = []
    why: list[str] = []
    agreement: dict[str, Agreement] = {}
    largest = 0.0
    tolerance = _tolerance(record, precision)
    for call, want in host.items():
        for name, reference in want.items():
            got = device[call][name]
            if got.dtype == reference.dtype and got.shape == reference.shape and got.tobytes() == reference.tobytes():
                agreement.setdefault(name, Agreement()).add(got, reference)
                continue
            differing += [call] if call not in differing[-1:] else []
            found = difference(name, got, reference, tolerance)
            if found.problem or found.nonfinite or (found.beyond and tolerance is not _ANYTHING):
                why.append(f"call '{call}': output '{name}' {found.problem or 'is beyond the tolerance'}")
            if found.problem:
                continue
            largest = max(largest, found.max_abs)
            agreement.setdefault(name, Agreement()).add(got, reference)
            if name == record.decision_output:
                decisions += changed_decisions(call, got, reference, max_abs=found.max_abs)
    changed = [d for d in decisions if not d.tie]
    if changed:
        why.append(f"{len(changed)} decisions differ, first in call '{changed[0].call}'")
    for name, found_agreement in agreement.items():
        own = (own_snr_db or {}).get(name)
        least = _MIN_SNR_DB if own is None else min(_MIN_SNR_DB, own + _BELOW_OWN_DB)
        if found_agreement.snr_db < least:
            why.append(
                f"output '{name}' has an SNR of {found_agreement.snr_db:.1f} dB against the host, the least is "
                f"{least:.1f} dB"
            )
    return {
        "identical": not differing,
        "calls": len(host),
        "differing": len(differing),
        "differing_calls": differing[:_LISTED],
        "max_abs_diff": largest,
        "changed_decisions": len(changed),
        "near_ties": len(decisions) - len(changed),
        "flagged": bool(why),
        "why": why[:5],
    }


def _tolerance(record: ProgramRecord, precision: str) -> Tolerance:
    """The precision's tolerance per element; none for a quantised precision, which SNR and decisions judge."""
    own = record.tolerances.get(precision, {})
    if "atol" in own:
        return Tolerance(**own)
    return DEFAULT_TOLERANCES.get(precision, _ANYTHING)
