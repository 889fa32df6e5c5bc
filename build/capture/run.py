"""Capture one source into a folder: ``program.pt2``, ``reference.safetensors``, ``program.json``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from build.archive import load_program, save_program
from build.cache import sha256_file
from build.capture import calibration as calibrating
from build.capture.checks import constant_outputs, odd_calls, odd_weights, refuse_training_mode
from build.capture.cost import cost_of
from build.capture.export import example_shapes
from build.capture.load import Captured, open_source
from build.capture.reference import Recorder, edge_inputs, leaves_ties_open, resampled, write_reference
from build.capture.sizes import example_sizes, size_points
from build.capture.task import check_rows, task_of
from build.content_hash import content_hash
from build.errors import InputError
from build.program import call, plain_tensors, signature_of
from build.quantize.recognise import is_quantized
from build.record import CALIBRATION, PROGRAM, RECORD, REFERENCE, CallRecord, ProgramRecord
from models.spec import Call
from targets.contract import Signature

Emit = Callable[[str], None]


def capture(source: Mapping[str, Any], folder: Path, emit: Emit) -> ProgramRecord:
    """Capture one source.

    Args:
        source: ``{"kind": "model"|"program"|"module", "name", "key", "path"?, "data"?, "factory"?, "trust"?}``.
        folder: an empty folder; the three files are written here.

    Raises:
        InputError: the source can't be used; the message says what, where and what to do.
    """
    import torch

    emit("capture")
    found = open_source(source, emit)
    refuse_training_mode(found.program)
    signature = signature_of(found.program)
    if not signature.outputs:
        raise InputError(f"'{source['name']}' returns no tensor", remedy="A program needs at least one tensor output.")
    save_program(plain_tensors(found.program), folder / PROGRAM)
    # From here on, what was written is what counts: a fault of saving shows in the reference data at once.
    program = load_program(folder / PROGRAM)
    emit("reference")
    calls, origin, remarks = _calibration(source, found, signature)
    spec = found.spec
    task = task_of(spec, signature, found.evaluation)
    recorder = Recorder(signature, call(program), found.symbols)
    _record(recorder, signature, found)
    check_rows(task, recorder.calls)
    write_reference(folder / REFERENCE, recorder.calls)
    if calls:
        calibrating.write(folder / CALIBRATION, calls)
    written = (PROGRAM, REFERENCE, *([CALIBRATION] if calls else []))
    first = min(recorder.calls, key=lambda c: (sum(c.record.sizes.values()), c.record.kind != "example"))
    constants = constant_outputs(program)
    warnings = [*found.warnings, *odd_weights(program), *odd_calls(found.evaluation)]
    if constants:
        warnings.append(f"outputs {', '.join(constants)} are constants, not tensors: they are not part of the artifact")
    record = ProgramRecord(
        name=source["name"],
        key=source["key"],
        sha256=content_hash(program),
        signature=signature,
        calls=tuple(c.record for c in recorder.calls),
        files={f: sha256_file(folder / f) for f in written},
        source={k: v for k, v in source.items() if k in ("kind", "factory")},
        symbols=dict(found.symbols),
        decision_output=task.decision_output,
        metric=task.metric,
        metric_output=task.metric_output,
        quantized=is_quantized(program),
        calibration=calibrating.record(calls, origin, remarks),
        cost=cost_of(program, first.inputs, first.record.sizes),
        budgets=tuple(dataclasses.asdict(b) for b in spec.budgets) if spec else (),
        labels=task.labels,
        preprocessing=dataclasses.asdict(spec.preprocessing) if spec else None,
        tolerances=dict(spec.tolerances) if spec else {},
        constants={
            k: v if isinstance(v, (int, float, str, bool, type(None))) else repr(v) for k, v in constants.items()
        },
        licence=spec.licence if spec else "unknown",
        versions={"torch": torch.__version__.split("+")[0]},
        warnings=(*warnings, *task.warnings),
    )
    (folder / RECORD).write_text(json.dumps(record.to_json(), indent=1) + "\n")
    return record


def _record(recorder: Recorder, signature: Signature, found: Captured) -> None:
    """Example, size points, edge values, then the evaluation calls."""
    real = [*found.calibration, *found.evaluation]
    pools: dict[str, list[Any]] = {
        s.name: [*([found.example[s.name]] if found.example else []), *(c.inputs[s.name] for c in real)][:32]
        for s in signature.inputs
    }
    example = found.example
    if example is None and found.evaluation:
        example = found.evaluation[0].inputs
    if example is None:  # calibration calls lend their look, not themselves: what they calibrate they must not judge
        shapes = {n: tuple(t.shape) for n, t in real[0].inputs.items()} if real else example_shapes(found.program)
        example = {s.name: resampled(s, shapes[s.name], pools[s.name], seed=0) for s in signature.inputs}
    sizes = example_sizes(signature, {n: tuple(t.shape) for n, t in example.items()})
    recorder.add(CallRecord(id="example", kind="example", sizes=sizes), example)
    named = {s: found.spec.sizes[n] for s, n in found.symbols.items() if found.spec and n in found.spec.sizes}
    recorder.add_points(size_points(signature, sizes, named), pools)
    for name, inputs in edge_inputs(signature, example, ties=not leaves_ties_open(found.program)).items():
        recorder.add(CallRecord(id=f"edge-{name}", kind="edge", sizes=sizes), inputs, finite_only=True)
    for item in found.evaluation:
        here = example_sizes(signature, {n: tuple(t.shape) for n, t in item.inputs.items()})
        recorder.add(
            CallRecord(id=f"evaluation/{item.id}", kind="evaluation", sizes=here, label=item.label), item.inputs
        )


def _calibration(
    source: Mapping[str, Any], found: Captured, signature: Signature
) -> tuple[Sequence[Call], str, list[str]]:
    """The calls to calibrate with, where they come from, and what is to be said of them."""
    calls, origin, where = found.calibration, "model" if found.spec else "calls", f"calibration of '{source['name']}'"
    if source.get("calibration"):
        from build.calls import read_calls

        path = Path(source["calibration"])
        calls = [Call(id=c.id, inputs=c.inputs, label=c.label) for c in read_calls(path, signature)]
        origin, where = path.name, f"--calibration {path.name}"
    return calls, origin, calibrating.check(calls, found.evaluation, signature, where) if calls else []
