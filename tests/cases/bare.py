"""Run the public failing inputs through a bare converter: convert, save, load, run, as its documentation has it.

Each case ends as one of
    fine                  outputs equal PyTorch's at the example and at every further size
    silent-wrong          nothing complained, and an output differs
    silent-shrunk-range   a size inside the declared range is refused, or its output has another shape
    convert-error, load-error, run-error     refused at that step (run-error: at the example already)
    not-evaluated         Core ML off a Mac: the evaluator does not know an op of the package
    not-exportable        torch.export itself refuses the case
    CRASH                 the process died
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.program import call
from build.verify.compare import Tolerance, difference
from tests.bare_converters import CONVERTERS
from tests.cases.run import Loaded, Outcome, load_case

if TYPE_CHECKING:
    from torch.export import ExportedProgram

# litert-torch reads it when it is imported: no progress bars
os.environ.setdefault("LITERT_TORCH_SHOW_PROGRESS", "n")

OUTCOMES = frozenset(
    {"fine", "silent-wrong", "silent-shrunk-range", "convert-error", "load-error", "run-error"}
    | {"not-evaluated", "not-exportable", "CRASH"}
)

Arrays = list[Any]
Run = Callable[[Arrays], Arrays]


def run_bare(name: str, target: str) -> Outcome:
    """Export, save, reload, convert, load, compare: nothing of ours in between."""
    started = time.monotonic()

    def end(status: str, detail: object = "") -> Outcome:
        line = " ".join(str(detail).split())[:300]
        return Outcome(case=name, target=target, status=status, detail=line, seconds=time.monotonic() - started)

    import torch

    case = load_case(name)
    with tempfile.TemporaryDirectory(prefix="edgeport-bare-") as folder:
        path, out = Path(folder) / "program.pt2", Path(folder) / "out"
        out.mkdir()
        try:
            torch.export.save(torch.export.export(case.module, case.args, dynamic_shapes=case.dynamic_shapes), path)
            program = torch.export.load(path)
        except Exception as error:
            return end("not-exportable", _text(error))
        reference = call(torch.export.load(path))
        try:
            _convert(target, program, case, out)
        except Exception as error:
            return end("convert-error", _text(error))
        try:
            run = _RUNNERS[target](out)
        except _UnknownOperationError as error:
            return end("not-evaluated", error)
        except Exception as error:
            return end("load-error", _text(error))
        return end(*_compare(case, reference, run))


def _compare(case: Loaded, reference: Callable[[list[Any]], list[Any]], run: Run) -> tuple[str, str]:
    import torch
    from torch.utils import _pytree as pytree

    tolerance = Tolerance(atol=case.tolerance, rtol=case.tolerance)
    for number, args in enumerate((case.args, *case.extra)):
        leaves = [x if isinstance(x, torch.Tensor) else torch.tensor(x) for x in pytree.tree_leaves(args)]
        shapes = f"at input shapes {[tuple(t.shape) for t in leaves]}"
        try:
            want = [t.detach().clone().contiguous() for t in reference([t.clone() for t in leaves])]
        except Exception:  # outside the range that torch.export made of the declaration: no converter is to blame
            continue
        try:
            got = run([t.detach().clone().contiguous().numpy() for t in leaves])
        except Exception as error:
            return ("silent-shrunk-range" if number else "run-error"), f"{_text(error)} {shapes}"
        if len(got) != len(want):
            return "silent-wrong", f"{len(got)} outputs, {len(want)} wanted {shapes}"
        for index, (found, tensor) in enumerate(zip(got, want, strict=True)):
            expected = tensor.numpy()
            if found.shape != expected.shape and number and found.ndim == expected.ndim:
                return "silent-shrunk-range", f"output {index} has shape {found.shape}, not {expected.shape} {shapes}"
            if found.size == expected.size == 1:  # a scalar may come as one element
                found = found.reshape(expected.shape)
            # Types are the format's business here (32-bit integers, floats for booleans); values are compared.
            d = difference(f"output {index}", found.astype(expected.dtype), expected, tolerance)
            if not d.ok:
                return "silent-wrong", f"{d} {shapes}"
    return "fine", ""


def _text(error: BaseException) -> str:
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first.strip()}"


def _convert(target: str, program: ExportedProgram, case: Loaded, out: Path) -> None:
    """As ``tests.bare_converters``, but LiteRT is asked for the case's range and Core ML for float32."""
    if target == "litert":
        import litert_torch

        shapes = {} if case.dynamic_shapes is None else {"dynamic_shapes": case.dynamic_shapes}
        litert_torch.convert(case.module, case.args, **shapes).export(str(out / "m.tflite"))
    elif target == "coreml":
        import coremltools as ct

        kind = {"minimum_deployment_target": ct.target.iOS17, "compute_precision": ct.precision.FLOAT32}
        ct.convert(program.run_decompositions({}), skip_model_load=True, **kind).save(str(out / "m.mlpackage"))
    else:
        CONVERTERS[target](program, out)


class _UnknownOperationError(Exception):
    """Nothing on this host runs the package."""


def _executorch(out: Path) -> Run:
    import torch
    from executorch.runtime import Runtime

    program = Runtime.get().load_program((out / "model.pte").read_bytes())
    method = program.load_method("forward")

    def run(inputs: Arrays) -> Arrays:
        assert program is not None  # as long as the method is used
        values = method.execute([torch.from_numpy(x) for x in inputs])
        return [v.detach().clone().contiguous().numpy() for v in values if isinstance(v, torch.Tensor)]

    return run


def _litert(out: Path) -> Run:
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=str(out / "m.tflite")).get_signature_runner()
    details = runner.get_input_details()
    names = sorted(details, key=_numbers)

    def run(inputs: Arrays) -> Arrays:
        feed = {n: np.asarray(x).astype(details[n]["dtype"]) for n, x in zip(names, inputs, strict=True)}
        found = runner(**feed)
        return [np.array(found[n]) for n in sorted(found, key=_numbers)]

    return run


def _numbers(name: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", name)]


def _coreml(out: Path) -> Run:
    import numpy as np

    from targets.mil import evaluate, load
    from targets.mil.dtypes import element_type

    program = load(out / "m.mlpackage")
    if program.unsupported:
        raise _UnknownOperationError(", ".join(program.unsupported))

    def run(inputs: Arrays) -> Arrays:
        feed = {
            info.name: np.atleast_1d(x).astype(element_type(info.dtype).numpy)
            for info, x in zip(program.inputs, inputs, strict=True)
        }
        found = evaluate(program, feed)
        return [np.asarray(found[info.name]) for info in program.outputs]

    return run


def _openvino(out: Path) -> Run:
    import numpy as np
    import openvino as ov

    # without the hint this plugin computes in bfloat16 on a processor that has it
    model = ov.Core().compile_model(out / "model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    kinds = [i.get_element_type().to_dtype() for i in model.inputs]

    def run(inputs: Arrays) -> Arrays:
        found = model([np.asarray(x).astype(kind) for x, kind in zip(inputs, kinds, strict=True)])
        return [np.array(found[i]) for i in range(len(model.outputs))]

    return run


def _ort_web(out: Path) -> Run:
    import onnxruntime as ort

    session = ort.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]

    def run(inputs: Arrays) -> Arrays:
        found: Sequence[Any] = session.run(None, dict(zip(names, inputs, strict=True)))
        return list(found)

    return run


_RUNNERS: dict[str, Callable[[Path], Run]] = {
    "executorch": _executorch,
    "litert": _litert,
    "coreml": _coreml,
    "openvino": _openvino,
    "ort_web": _ort_web,
}
