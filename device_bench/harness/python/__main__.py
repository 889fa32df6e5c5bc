"""``python -m device_bench.harness.python ENGINE JOB.json``: run one job, and say so in the last line on stdout.

Exit codes: 0 measured; 2 the job cannot be used; 3 the engine failed (a complete result says how); 4 the result could
not be written. ``ENGINE devices`` in place of a job prints the devices that the engine finds, as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from device_bench.harness.python import measure, system
from device_bench.harness.python.engine import Engine, Failure
from device_bench.harness.python.job import Job, Tensors, read_job

SCHEMA_VERSION = 1
END_MARKER = "edgeport-end-of-run"
#: engine -> module and class.
ENGINES = {
    "openvino": ("openvino_engine", "OpenVinoEngine"),
    "coreml": ("coreml_engine", "CoreMlEngine"),
}


def _module(engine: str) -> Any:
    return importlib.import_module(f"device_bench.harness.python.{ENGINES[engine][0]}")


def run(job: Job, engine: Engine, version: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the result of one job."""
    result: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "job": job.id,
        "artifact_sha256": job.artifact_sha256,
        "harness": version,
        "status": "ok",
        "error": None,
        "settings": job.settings,
        "timed_call": job.timed,
        "clock": engine.clock,
        "timer_cost_ns": system.timer_cost_ns(),
        "cpu": system.cpu_facts(),
        "runtime": {"name": engine.runtime, "version": engine.version},
        "before": system.conditions(),
    }
    code = 0
    try:
        system.set_affinity(job.settings["affinity"])
        tensors = Tensors(job)
        result |= measure.measure(job, engine, tensors)
        result |= {"clock": engine.clock, "after": system.conditions()}
        if job.calls:
            result["outputs"] = measure.evaluate(job, engine, tensors)
    except Failure as failure:
        result |= {"status": "failed", "error": {"stage": failure.stage, "message": str(failure)}}
        print(f"error: {failure.stage}: {failure}", file=sys.stderr)
        code = 4 if failure.stage == "write" else 3
    return code, result


def write(path: Path, result: dict[str, Any]) -> None:
    """Write a result: whole or not at all; its end marker is its last field.

    Raises:
        Failure: it cannot be written.
    """
    part = path.with_suffix(".part")
    try:
        part.write_text(json.dumps({**result, "end": END_MARKER}, allow_nan=False) + "\n")
        part.replace(path)
    except OSError as error:
        raise Failure("write", f"cannot write the result: {error}") from error


def main(argv: Sequence[str]) -> int:
    """Run one job, or list devices."""
    if len(argv) != 2 or argv[0] not in ENGINES:
        print(f"usage: python -m device_bench.harness.python {'|'.join(ENGINES)} JOB.json|devices", file=sys.stderr)
        return 2
    name, what = argv
    if what == "devices":
        print(json.dumps(_module(name).devices()))
        return 0
    return carry_out(Path(what), getattr(_module(name), ENGINES[name][1]))


def carry_out(path: Path, make: Callable[[], Engine]) -> int:
    """Run the job in a file; returns the exit code."""
    try:
        job = read_job(path)
        engine = make()
        code, result = run(job, engine, str(job.options["harness"]))
        write(job.result_file, result)
    except Failure as failure:
        print(f"error: {failure.stage}: {failure}", file=sys.stderr)
        return 4 if failure.stage == "write" else 2
    print(f"{END_MARKER} {job.id}")
    return code


def leave(code: int) -> NoReturn:
    """At once: runtimes take their time to come down, and some crash; all that counts is on disk."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
