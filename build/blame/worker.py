"""The blame worker of one target: ``python -m build.blame.worker TARGET``, one job per (program, precision)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build.archive import load_program
from build.blame.measure import Lab
from build.blame.report import to_json
from build.errors import InputError, LoweringError
from build.protocol import Emit, serve
from build.record import PROGRAM, read_record, unchanged
from build.worker import refuse
from targets import registry
from targets.contract import Target


def handle(target: Target, job: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    """Measure every node of a captured program at a precision.

    Raises:
        InputError: the program has nothing to measure; a kept node is none of its nodes.
        LoweringError: not one node could be measured.
    """
    with unchanged(Path(job["program"]), job["record"]):
        return _measure(target, job, emit)


def _measure(target: Target, job: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    folder = Path(job["program"])
    record = read_record(folder)
    refuse(target, load_program(folder / PROGRAM), record, job["target"])
    lab = Lab(
        target=target,
        program=lambda: load_program(folder / PROGRAM),
        record=record,
        folder=folder,
        precision=job["precision"],
        keep_float=tuple(job["keep_float"]),
        say=emit,
    )
    measured = lab.measure()
    if not measured:
        raise InputError(
            f"'{record.name}' computes no floating-point value: there is nothing that blame could measure",
            remedy="A build compares its outputs element by element.",
        )
    if all(m.error for m in measured):
        raise LoweringError(
            f"none of {len(measured)} nodes could be measured: {measured[0].error}",
            remedy=f"Does it build? `nox -s build` with --targets {job['target']} says more of such an error.",
        )
    row = {"model": record.name, "target": job["target"], "precision": job["precision"]}
    return to_json(measured, row, keep_float=lab.keep_float, own_quantisation=record.quantized)


if __name__ == "__main__":
    facts = registry.select([sys.argv[1]])[0]
    module = registry.load(facts)
    serve(lambda job, emit: handle(module, job, emit), facts.imports)
