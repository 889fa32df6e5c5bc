"""The lowering worker of one target: ``python -m build.worker TARGET``, one job per artifact."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build import manifest
from build.archive import load_program
from build.errors import GateError, UnsupportedError, UnverifiedError
from build.protocol import Emit, error_to_json, serve
from build.record import PROGRAM, ProgramRecord, read_record
from build.verify.check import Report, raise_problems, tolerance_for, verify
from targets import registry
from targets.contract import Coverage, Lowered, LowerRequest, Target


def build_artifact(target: Target, job: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    """Pre-flight, lower, load, verify one artifact in its staging folder, and write its manifest there.

    Whatever happens, the manifest is written: a failed artifact has a manifest with the error and no files.
    """
    started = time.monotonic()
    folder, directory = Path(job["program"]), Path(job["directory"])
    record = read_record(folder)
    value = manifest.begin(record, job)
    stage = "preflight"

    def enter(name: str) -> None:
        nonlocal stage
        stage = name
        emit(name)

    try:
        enter("preflight")
        program = load_program(folder / PROGRAM)
        refuse(target, program, record, job["target"])
        enter("lower")
        lowered = target.lower(
            program,
            LowerRequest(
                model=record.name, signature=record.signature, precision=job["precision"], directory=directory
            ),
        )
        value |= _describe(lowered)
        value["lowering_peak_mb"] = _peak_mb()
        value["warnings"] += [*lowered.warnings, *(f"narrower range than the program's: {n}" for n in lowered.narrowed)]
        enter("load")
        runner = target.load(directory, lowered.files, record.signature)
        enter("verify")
        report = verify(runner, lowered, folder, record, tolerance_for(record, job["precision"]))
        value["verification"] = report.to_json()
        value["warnings"] += list(report.warnings)
        raise_problems(report)
        _gates(job, lowered, report)
        value["status"] = "ok" if lowered.coverage.delegated or not lowered.coverage.fallback else "ok-undelegated"
        value["error"] = None
    except UnverifiedError as error:
        value["status"] = "unverified"
        value["error"] = manifest.failure(error_to_json(error))
    except Exception as error:
        found = error_to_json(error)
        value["status"] = f"failed:{stage}"
        value["error"] = manifest.failure(found)
        print(found["trace"], flush=True)
        _empty(directory)
        if found["code"] == "internal":
            # A toolchain's own exception is a failed lowering or a failed run, not a fault of ours.
            value["error"]["code"] = "verification-failed" if stage in ("load", "verify") else "lowering-failed"
            value["error"]["remedy"] = f"The worker's log has the traceback: {job['log']}"
    value["files"] = manifest.describe_files(directory)
    value["seconds"] = round(time.monotonic() - started, 3)
    value["peak_mb"] = _peak_mb()
    manifest.write(directory, value)
    return value


def _peak_mb() -> float:
    """Peak resident memory of this worker so far, in MiB (Linux counts ru_maxrss in KiB, macOS in bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


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


def _describe(lowered: Lowered) -> dict[str, Any]:
    return {
        "main": lowered.files[0],
        "entry_points": [{"name": e.name, "sizes": dict(e.sizes)} for e in lowered.entry_points],
        "narrowed": list(lowered.narrowed),
        "nan_unsafe": list(lowered.nan_unsafe),
        "contract": dict(lowered.contract),
        "coverage": _coverage(lowered.coverage),
    }


def _coverage(coverage: Coverage) -> dict[str, Any]:
    return {
        "delegated": coverage.delegated,
        "fallback": dict(coverage.fallback),
        "delegated_share": round(coverage.delegated_share, 4),
        "method": coverage.method,
    }


def _gates(job: Mapping[str, Any], lowered: Lowered, report: Report) -> None:
    if job["strict"] and lowered.narrowed:
        raise GateError(f"--strict: the range is narrower than the program's: {'; '.join(lowered.narrowed)}")
    if job["strict"] and report.warnings:
        raise GateError(f"--strict: {report.warnings[0]}")
    minimum = job["min_delegated"]
    if minimum is not None and lowered.coverage.delegated_share * 100 < minimum:
        worst = ", ".join(f"{op} ({n})" for op, n in sorted(lowered.coverage.fallback.items(), key=lambda x: -x[1])[:5])
        raise GateError(
            f"{lowered.coverage.delegated_share:.0%} of the nodes are delegated, --min-delegated asks for {minimum:g}%",
            remedy=f"These run on fallback kernels: {worst}.",
        )


def _empty(directory: Path) -> None:
    import shutil

    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def main() -> None:
    """Serve jobs for the target named on the command line."""
    facts = registry.select([sys.argv[1]])[0]
    target = registry.load(facts)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    serve(lambda job, emit: build_artifact(target, job, emit))


if __name__ == "__main__":
    main()
