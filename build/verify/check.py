"""Run an artifact on the reference data and say how far it is from PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.archive import load_program
from build.errors import EdgeportError, InputError, UnverifiedError, VerificationError
from build.manifest import snr_to_json
from build.record import PROGRAM, REFERENCE, CallRecord, ProgramRecord
from build.verify.acceptance import Acceptance, acceptance_for, metric_problem, noise_problems
from build.verify.accuracy import Accuracy
from build.verify.compare import DEFAULT_TOLERANCES, Decision, Difference, Tolerance, changed_decisions, difference
from build.verify.nonfinite import Watch
from targets.contract import DynamicDim, Lowered, Runner, Signature
from targets.precisions import PRECISIONS

if TYPE_CHECKING:
    from targets.contract import Array

#: changed decisions that the manifest lists in full, near-ties last; the rest is counted.
_LISTED = 50


@dataclass(frozen=True, kw_only=True)
class Report:
    """The verification figures of one artifact.

    Attributes:
        calls: how many calls were compared, and at which root sizes.
        worst: per output, the difference with the largest ``max_abs`` over the calls that count, with its call's id.
        changed: changed decisions on evaluation calls that are not near-ties.
        ties: changed decisions that rounding alone explains.
        accuracy: the task's metric on the evaluation calls.
        problems: why the artifact is not right; empty when it is.
        losses: why it is not good enough (metric, noise of a quantised artifact); empty when it is.
        warnings: what a release engineer should know all the same.
    """

    runtime: str
    calls: int
    sizes: tuple[Mapping[str, int], ...]
    worst: Mapping[str, Mapping[str, Any]]
    decisions: tuple[Decision, ...]
    decided: int
    accuracy: Accuracy
    problems: tuple[str, ...]
    losses: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def max_abs_diff(self) -> float:
        """Largest absolute difference over all outputs and calls."""
        return max((w["max_abs"] for w in self.worst.values()), default=0.0)

    @property
    def changed(self) -> int:
        """Changed decisions, near-ties left out."""
        return sum(not d.tie for d in self.decisions)

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        listed = sorted(self.decisions, key=lambda d: d.tie)[:_LISTED]
        return {
            "runtime": self.runtime,
            "calls": self.calls,
            "sizes": [dict(s) for s in self.sizes],
            "max_abs_diff": self.max_abs_diff,
            "outputs": dict(self.worst),
            "decisions": self.decided,
            "changed_decisions": self.changed,
            "near_ties": sum(d.tie for d in self.decisions),
            "changed": [asdict(d) for d in listed],
            "changed_not_listed": len(self.decisions) - len(listed),
            "problems": [*self.problems, *self.losses],
        }


def reference_calls(
    folder: Path, record: ProgramRecord
) -> Iterator[tuple[CallRecord, dict[str, Array], dict[str, Array]]]:
    """``(call, inputs, outputs)`` as numpy arrays by name, read one call at a time."""
    from safetensors import safe_open

    with safe_open(folder / REFERENCE, framework="numpy") as file:
        for item in record.calls:
            inputs = {s.name: file.get_tensor(f"{item.id}/in/{s.name}") for s in record.signature.inputs}
            outputs = {s.name: file.get_tensor(f"{item.id}/out/{s.name}") for s in record.signature.outputs}
            yield item, inputs, outputs


def limits_for(record: ProgramRecord, precision: str, max_metric_drop: float | None) -> Limits:
    """The model's own limits for a precision, or the defaults; the user's gate on the metric goes first.

    Raises:
        InputError: the model's spec names a limit that does not exist.
    """
    if PRECISIONS[precision].quantized:
        return Limits(acceptance=acceptance_for(record, precision, max_metric_drop))
    return Limits(tolerance=_tolerance(record, precision), max_metric_drop=max_metric_drop)


def _tolerance(record: ProgramRecord, precision: str) -> Tolerance:
    own = record.tolerances.get(precision)
    if own is not None:
        return Tolerance(**own)
    if precision not in DEFAULT_TOLERANCES:
        raise InputError(f"precision '{precision}' has no default tolerance", remedy="State it in the model's spec.")
    return DEFAULT_TOLERANCES[precision]


def signature_problems(declared: Signature, wanted: Signature) -> list[str]:
    """Where an artifact's own signature differs from the program's: names, dtypes, ranks, ranges."""
    problems = []
    for side in ("inputs", "outputs"):
        have, want = getattr(declared, side), getattr(wanted, side)
        if [s.name for s in have] != [s.name for s in want]:
            problems.append(f"{side} are {[s.name for s in have]}, the program's are {[s.name for s in want]}")
            continue
        for h, w in zip(have, want, strict=True):
            if h.dtype != w.dtype:
                problems.append(f"{side[:-1]} '{h.name}' is {h.dtype}, the program's is {w.dtype}")
            if side == "inputs":
                problems += [f"input '{h.name}': {p}" for p in _range_problems(h.shape, w.shape)]
    return problems


def _range_problems(have: tuple[Any, ...], want: tuple[Any, ...]) -> list[str]:
    if len(have) != len(want):
        return [f"rank {len(have)}, the program's is {len(want)}"]
    found = []
    for axis, (h, w) in enumerate(zip(have, want, strict=True)):
        hlo, hhi = (h.lo, h.hi) if isinstance(h, DynamicDim) else (h, h)
        wlo, whi = (w.lo, w.hi) if isinstance(w, DynamicDim) else (w, w)
        if (hlo, hhi) != (wlo, whi):
            found.append(f"dimension {axis} takes {hlo}..{hhi}, the program takes {wlo}..{whi}")
    return found


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an artifact is held to.

    Attributes:
        tolerance: per element; None for a quantised precision, which is a new model.
        acceptance: metric and noise, for a quantised precision.
        max_metric_drop: the user's own gate on the metric, for any precision.
    """

    tolerance: Tolerance | None = None
    acceptance: Acceptance | None = None
    max_metric_drop: float | None = None


#: A quantised artifact's elements may be anywhere; shapes, dtypes, NaN and infinity are judged all the same.
_ANY = Tolerance(atol=float("inf"), rtol=0.0)


def verify(runner: Runner, lowered: Lowered, folder: Path, record: ProgramRecord, limits: Limits) -> Report:
    """Compare an artifact with PyTorch on every reference call.

    Returns:
        The report; ``problems`` and ``losses`` say why the artifact must not ship.
    """
    tolerance = limits.tolerance or _ANY
    accuracy = Accuracy(metric=record.metric, output=record.metric_output, labels=record.labels)
    general = Accuracy(metric=None, output=None)
    kinds = {c.kind for c in record.calls}
    # Made-up values lie outside the ranges that a quantised artifact was calibrated for: its figures are those of real
    # calls, where there are any. A floating one is held to its tolerance on every call.
    judged = {"evaluation"} if limits.tolerance is None and "evaluation" in kinds else kinds
    problems, warnings = signature_problems(runner.signature(), record.signature), []
    worst: dict[str, dict[str, Any]] = {}
    decisions: list[Decision] = []
    sizes: dict[tuple[tuple[str, int], ...], Mapping[str, int]] = {}
    count = decided = 0
    watch = Watch(lambda: load_program(folder / PROGRAM), record.signature, lowered.nan_unsafe)
    for item, inputs, outputs in reference_calls(folder, record):
        where = f"call '{item.id}'" + (f" at {_named(item.sizes, record)}" if item.sizes else "")
        try:
            got = runner.run(inputs)
        except UnverifiedError:
            raise
        except EdgeportError as error:
            problems.append(f"{where}: {error.message}")
            continue
        except Exception as error:
            problems.append(f"{where}: the runtime failed: {type(error).__name__}: {str(error)[:200]}")
            continue
        count += 1
        sizes.setdefault(tuple(sorted(item.sizes.items())), item.sizes)
        same_form = all(n in got and got[n].shape == w.shape for n, w in outputs.items())
        if same_form and item.kind == "evaluation":
            accuracy.add(got, outputs, item.label)
        elif same_form and item.kind != "edge":
            general.add(got, outputs, None)
        for name, want in outputs.items():
            if name not in got:
                problems.append(f"{where}: output '{name}' is missing")
                continue
            found = difference(name, got[name], want, tolerance)
            if item.kind in judged:
                _keep_worst(worst, found, item.id)
            only_nonfinite = found.nonfinite and not found.problem and not found.beyond
            if only_nonfinite and watch.excuses(inputs, name, got[name], want):
                pass  # said below
            elif found.problem or found.nonfinite or (found.beyond and limits.tolerance is not None):
                problems.append(f"{where}: output '{name}' {_describe(found)}")
            if name == record.decision_output and item.kind == "evaluation":
                decided += int(want.size // max(want.shape[-1], 1))
                decisions += changed_decisions(item.id, got[name], want, max_abs=found.max_abs)
    if watch.named:
        warnings.append(f"NaN or infinity does not pass as in PyTorch through {', '.join(watch.named)}")
    return Report(
        runtime=runner.runtime,
        calls=count,
        sizes=tuple(s for s in sizes.values() if s),
        worst=worst,
        decisions=tuple(decisions),
        decided=decided,
        problems=tuple(problems),
        accuracy=accuracy,
        losses=tuple(_losses(accuracy, general, limits)),
        warnings=tuple(warnings),
    )


def _losses(accuracy: Accuracy, general: Accuracy, limits: Limits) -> list[str]:
    drop = limits.acceptance.max_metric_drop if limits.acceptance else limits.max_metric_drop
    lost = None if drop is None else metric_problem(accuracy, drop)
    judged = accuracy if accuracy.agreement else general
    return [*([lost] if lost else []), *(noise_problems(judged, limits.acceptance) if limits.acceptance else [])]


def _named(sizes: Mapping[str, int], record: ProgramRecord) -> str:
    return ", ".join(f"{record.symbols.get(s, s)}={n}" for s, n in sizes.items())


def _describe(d: Difference) -> str:
    if d.problem:
        return f"has {d.problem}"
    parts = []
    if d.beyond:
        parts.append(f"{d.beyond} elements beyond tolerance (largest {d.max_abs:.3g}, SNR {d.snr_db:.1f} dB)")
    if d.nonfinite:
        parts.append(f"{d.nonfinite} elements whose NaN or infinity differs")
    return "has " + " and ".join(parts)


def _keep_worst(worst: dict[str, dict[str, Any]], found: Difference, call: str) -> None:
    old = worst.get(found.output)
    row = {
        "max_abs": found.max_abs,
        "max_rel": found.max_rel,
        "cosine": found.cosine,
        "snr_db": snr_to_json(found.snr_db),
        "nonfinite": found.nonfinite,
        "call": call,
    }
    if old is None:
        worst[found.output] = row
        return
    if found.max_abs > old["max_abs"]:
        old.update(max_abs=found.max_abs, call=call)
    old["max_rel"] = max(old["max_rel"], row["max_rel"])
    old["cosine"] = min(old["cosine"], row["cosine"])
    old["nonfinite"] += row["nonfinite"]
    if row["snr_db"] is not None:
        old["snr_db"] = row["snr_db"] if old["snr_db"] is None else min(old["snr_db"], row["snr_db"])


def raise_problems(report: Report) -> None:
    """Turn a report with problems into one error.

    Raises:
        VerificationError: the first problem, and how many more there are.
    """
    if report.problems:
        raise VerificationError(
            f"the artifact does not compute what the program computes: {_first(report.problems)}",
            remedy="Do not ship it. `preflight` names the ops at risk on this target.",
        )


def raise_losses(report: Report, target: str, precision: str, *, own_quantisation: bool = False) -> None:
    """Turn a report with losses into one error.

    Args:
        own_quantisation: the program is quantised already, so that nothing can be kept in float here.

    Raises:
        VerificationError: the first loss, and how many more there are.
    """
    if report.losses:
        more = "; --auto-mixed looks for nodes to keep in float that mend it"
        raise VerificationError(
            f"the artifact is not good enough: {_first(report.losses)}",
            remedy=f"`nox -s blame`, with this program and --target {target} --precision {precision}, says which layer "
            f"broke{more if PRECISIONS[precision].quantized and not own_quantisation else ''}.",
        )


def _first(lines: tuple[str, ...]) -> str:
    return lines[0] + (f" (and {len(lines) - 1} more in the manifest)" if len(lines) > 1 else "")
