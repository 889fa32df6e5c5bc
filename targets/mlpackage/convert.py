"""From a rewritten program to coremltools's model, and its failures as errors of ours."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings as python_warnings
from typing import TYPE_CHECKING, Any

from build.errors import LoweringError
from build.program import op_name, source_of
from targets.contract import LowerRequest
from targets.diagnosis import first_reason
from targets.mlpackage import converters, features, values

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def convert(
    program: ExportedProgram, interface: features.Interface, request: LowerRequest
) -> tuple[Any, str, list[str]]:
    """The converted model, the name of its deployment target, and the operations kept in fp32."""
    logger = logging.getLogger("coremltools")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    with contextlib.redirect_stderr(io.StringIO()):  # import messages and progress bars
        import coremltools as ct

    current: list[str] = []
    kept: set[str] = set()

    def narrow(operation: Any) -> bool:
        wide = values.keeps_fp32(operation)
        if wide:
            kept.add(str(operation.op_type))
        return not wide

    half = request.precision == "fp16"
    target = ct.target.iOS18 if request.precision == "int4-weight" else ct.target.iOS17
    try:
        with (
            python_warnings.catch_warnings(),
            contextlib.redirect_stderr(io.StringIO()),
            converters.installed(current.append),
        ):
            python_warnings.simplefilter("ignore")
            model = ct.convert(
                program,
                inputs=interface.inputs,
                outputs=interface.outputs,
                convert_to="mlprogram",
                minimum_deployment_target=target,
                compute_precision=ct.transform.FP16ComputePrecision(op_selector=narrow)
                if half
                else ct.precision.FLOAT32,
                skip_model_load=True,
            )
    except Exception as error:  # every failure of the converter becomes one error of ours
        raise _blame(program, current[-1] if current else "", error, request.model) from error
    finally:
        logger.setLevel(level)
    notes = [f"kept in fp32, because a constant exceeds 65504: {', '.join(sorted(kept))}"] if kept else []
    return model, target.name, notes


def _blame(program: ExportedProgram, name: str, error: Exception, model: str) -> LoweringError:
    """The converter's exception as one clear error about the node that it was at."""
    words = f"{type(error).__name__}: {error}" if str(error) else f"a check of its own failed ({type(error).__name__})"
    named = {n.name: n for n in program.graph.nodes}
    node = named.get(name) or next(
        (n for k, n in named.items() if f"node {k}," in words or f"node {k} " in words), None
    )
    remedy = "Replace the op in the model by others with the same result, or leave this target out (--targets)."
    if node is None or node.op != "call_function":
        return LoweringError(
            f"coremltools cannot convert '{model}': {first_reason(words)}", op="the program", remedy=remedy
        )
    shape = getattr(node.meta.get("val"), "shape", None)
    text = "" if shape is None else f" of shape [{', '.join(str(s) for s in shape)}]"
    return LoweringError(
        f"coremltools cannot convert {op_name(node)}{text} in '{model}': {first_reason(words)}",
        op=op_name(node),
        source=source_of(node),
        remedy=remedy,
    )
