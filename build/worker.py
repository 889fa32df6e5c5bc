"""The lowering worker of one target: ``python -m build.worker TARGET``, one job per artifact."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from build import manifest
from build.archive import load_program
from build.attempt import Attempt, Maker, empty, peak_mb
from build.blame.mixed import auto_mixed
from build.errors import GateError, UnsupportedError, UnverifiedError
from build.protocol import Emit, error_to_json, serve
from build.record import PROGRAM, ProgramRecord, read_record, unchanged
from build.verify.check import raise_losses, raise_problems
from targets import registry
from targets.checks import counted
from targets.contract import Coverage, Lowered, Target
from targets.precisions import PRECISIONS


def build_artifact(target: Target, job: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    """Pre-flight, lower, load, verify one artifact in its staging folder, and write its manifest there.

    Whatever happens, the manifest is written: a failed artifact has a manifest with the error and no files.

    Raises:
        StorageError: the program was replaced by another: nothing that was read counts.
    """
    with unchanged(Path(job["program"]), job["record"]):
        return _build(target, job, emit)


def _build(target: Target, job: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    started = time.monotonic()
    folder, directory = Path(job["program"]), Path(job["directory"])
    record = read_record(folder)
    value = manifest.begin(record, job)
    said = record.warnings_at(job["precision"])
    stage = "preflight"

    def enter(name: str) -> None:
        nonlocal stage
        stage = name
        emit(name)

    try:
        enter("preflight")
        program = load_program(folder / PROGRAM)
        refuse(target, program, record, job["target"])
        maker = Maker(
            target=target,
            record=record,
            folder=folder,
            precision=job["precision"],
            enter=enter,
            lowered=lambda lowered, peak: value.update(_describe(said, lowered), lowering_peak_mb=peak),
        )
        made = maker.make(directory, tuple(job["keep_float"]), job["max_metric_drop"], program)
        if job["auto_mixed"] and PRECISIONS[job["precision"]].quantized and made.report.losses:
            enter("auto-mixed")
            made, value["auto_mixed"] = auto_mixed(maker, directory, made, job["max_metric_drop"])
        value |= _describe(said, made.lowered) | _judge(made)
        value["warnings"] += made.report.warnings
        raise_problems(made.report)
        enter("metric")
        raise_losses(made.report, job["target"], job["precision"], own_quantisation=record.quantized)
        _gates(job, made, value["warnings"])
        coverage = made.lowered.coverage
        value["status"] = "ok" if coverage.delegated or not coverage.fallback else "ok-undelegated"
        value["error"] = None
    except UnverifiedError as error:
        value["status"] = "unverified"
        value["error"] = manifest.failure(error_to_json(error))
    except (Exception, SystemExit) as error:  # some converters leave with sys.exit where they mean an error
        found = error_to_json(error)
        value["status"] = f"failed:{stage}"
        value["error"] = manifest.failure(found)
        print(found["trace"], flush=True)
        empty(directory)
        if found["code"] == "internal":
            # A toolchain's own exception is a failed lowering or a failed run, not a fault of ours.
            value["error"]["code"] = "verification-failed" if stage in ("load", "verify") else "lowering-failed"
            value["error"]["remedy"] = f"The worker's log has the traceback: {job['log']}"
    value["files"] = manifest.describe_files(directory)
    value["bytes"] = sum(f["bytes"] for f in value["files"])
    value["seconds"] = round(time.monotonic() - started, 3)
    value["peak_mb"] = peak_mb()
    manifest.write(directory, value)
    return value


def refuse(target: Target, program: Any, record: ProgramRecord, name: str) -> None:
    """Stop on the first thing that the target's pre-flight refuses.

    Raises:
        UnsupportedError: what, where, and what to do.
    """
    refused = [f for f in target.preflight(program, record.signature) if f.verdict == "refused"]
    if refused:
        first = refused[0]
        more = f" (and {len(refused) - 1} more: see preflight)" if len(refused) > 1 else ""
        raise UnsupportedError(
            f"{name} cannot take {first.subject}: {first.why}{more}",
            op=first.subject if first.kind == "op" else None,
            source=first.source,
            remedy=first.remedy,
        )


def _describe(said: Sequence[str], lowered: Lowered) -> dict[str, Any]:
    """What a manifest says of an artifact before it is run, after what it says of the program."""
    floats = dict(lowered.arithmetic.floats) if lowered.arithmetic else {}
    return {
        "main": lowered.files[0],
        "entry_points": [{"name": e.name, "sizes": dict(e.sizes)} for e in lowered.entry_points],
        "narrowed": list(lowered.narrowed),
        "nan_unsafe": list(lowered.nan_unsafe),
        "unquantized": dict(lowered.unquantized),
        "float_arithmetic": floats,
        "contract": dict(lowered.contract),
        "coverage": _coverage(lowered.coverage),
        "warnings": [
            *said,
            *lowered.warnings,
            *(f"narrower range than the program's: {n}" for n in lowered.narrowed),
            *([f"stayed in floating point: {counted(lowered.unquantized)}"] if lowered.unquantized else []),
            *([f"8-bit weights, arithmetic in float: {counted(floats)}"] if floats else []),
        ],
    }


def _judge(made: Attempt) -> dict[str, Any]:
    """What a manifest says of how an artifact compares with PyTorch."""
    metric = made.report.accuracy.result()
    return {
        "kept_float": list(made.keep_float),
        "verification": made.report.to_json(),
        "metric": None if metric is None else metric.to_json(),
        "accuracy": made.report.accuracy.to_json(),
    }


def _coverage(coverage: Coverage) -> dict[str, Any]:
    return {
        "delegated": coverage.delegated,
        "fallback": dict(coverage.fallback),
        "delegated_share": round(coverage.delegated_share, 4),
        "method": coverage.method,
    }


def _gates(job: Mapping[str, Any], made: Attempt, warnings: Sequence[str]) -> None:
    """The user's own gates.

    Args:
        warnings: all that the manifest holds.

    Raises:
        GateError: one is not met, or nothing can tell whether it is.
    """
    lowered = made.lowered
    if job["max_metric_drop"] is not None and made.report.accuracy.result() is None:
        raise GateError(
            f"--max-metric-drop {job['max_metric_drop']:g}: there is no metric, so nothing says what is lost",
            remedy="Give labelled calls (tensors CALL/INPUT and CALL/label, beside the program or with --data), or a "
            "ModelSpec with a metric and an evaluation set; or leave the option out.",
        )
    if job["strict"] and warnings:
        more = f" (and {len(warnings) - 1} more in the manifest)" if len(warnings) > 1 else ""
        raise GateError(f"--strict: {warnings[0]}{more}", remedy="Mend what it warns of, or leave --strict out.")
    minimum = job["min_delegated"]
    if minimum is not None and lowered.coverage.delegated_share * 100 < minimum:
        worst = ", ".join(f"{op} ({n})" for op, n in sorted(lowered.coverage.fallback.items(), key=lambda x: -x[1])[:5])
        raise GateError(
            f"{lowered.coverage.delegated_share:.0%} of the nodes are delegated, --min-delegated asks for {minimum:g}%",
            remedy=f"These run on fallback kernels: {worst}.",
        )


def main() -> None:
    """Serve jobs for the target named on the command line."""
    facts = registry.select([sys.argv[1]])[0]
    target = registry.load(facts)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    serve(lambda job, emit: build_artifact(target, job, emit), facts.imports)


if __name__ == "__main__":
    main()
