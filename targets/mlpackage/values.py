"""Numbers that Core ML cannot hold: beyond 32 bits for integers, beyond 65504 in fp16."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from build.errors import LoweringError
from build.program import op_name, source_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

INT32_MAX = 2**31 - 1
#: the largest finite fp16 number (IEEE 754 binary16).
FP16_MAX = 65504.0


def _constants(program: ExportedProgram) -> Iterator[tuple[str, Any]]:
    """Name in the model and tensor of every weight, buffer and constant."""
    for spec in program.graph_signature.input_specs:
        if spec.target is None:
            continue
        tensor = program.state_dict.get(spec.target, program.constants.get(spec.target))
        if hasattr(tensor, "dtype"):
            yield spec.target, tensor


def _user_of(program: ExportedProgram, target: str) -> Node | None:
    placeholders = {s.arg.name for s in program.graph_signature.input_specs if s.target == target}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in placeholders:
            return next(iter(node.users), None)
    return None


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, bool):
        return
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _numbers(v)


def refuse_wide_integers(program: ExportedProgram) -> None:
    """Stop at an integer constant that does not fit in 32 bits.

    Raises:
        LoweringError: names the buffer, or the op, its source line and the value.
    """
    import torch

    remedy = "Core ML computes with int32: keep integers below 2**31."
    for name, tensor in _constants(program):
        if tensor.dtype is not torch.int64 or tensor.numel() == 0:
            continue
        worst = max(int(tensor.max()), -int(tensor.min()) - 1)
        if worst > INT32_MAX:
            user = _user_of(program, name)
            raise LoweringError(
                f"constant '{name}' holds an integer of magnitude {worst}, beyond Core ML's int32",
                op=op_name(user) if user is not None else name,
                source=source_of(user) if user is not None else None,
                remedy=remedy,
            )
    for node in program.graph.nodes:
        result = node.meta.get("val")
        if node.op != "call_function" or getattr(result, "dtype", None) is not torch.int64:
            continue
        if op_name(node).startswith("aten.slice"):
            continue  # its "to the end" is 2**63 - 1
        for number in _numbers([*node.args, *node.kwargs.values()]):
            if isinstance(number, int) and not -INT32_MAX - 1 <= number <= INT32_MAX:
                raise LoweringError(
                    f"{op_name(node)} takes the integer {number}, beyond Core ML's int32",
                    op=op_name(node),
                    source=source_of(node),
                    remedy=remedy,
                )


def refuse_fp16_overflow(program: ExportedProgram) -> None:
    """Stop at a weight or buffer that becomes infinite in fp16.

    Raises:
        LoweringError: names it and the op that uses it.
    """
    import torch

    for name, tensor in _constants(program):
        if not tensor.is_floating_point() or tensor.numel() == 0:
            continue
        finite = torch.where(torch.isfinite(tensor), tensor.detach().abs(), torch.zeros((), dtype=tensor.dtype))
        worst = float(finite.max())
        if worst > FP16_MAX:
            user = _user_of(program, name)
            raise LoweringError(
                f"'{name}' holds {worst:g}, and fp16 ends at {FP16_MAX:g}",
                op=op_name(user) if user is not None else name,
                source=source_of(user) if user is not None else None,
                remedy="Scale the weights, or choose the precision fp32.",
            )


def keeps_fp32(operation: Any) -> bool:
    """Whether a MIL operation has a constant operand that fp16 would make infinite, and so stays in fp32."""
    import numpy as np

    for operand in operation.inputs.values():
        values = operand if isinstance(operand, (list, tuple)) else [operand]
        for var in values:
            constant = getattr(var, "val", None)
            if constant is None or isinstance(constant, (str, bytes)):
                continue
            array = np.asarray(constant)
            if array.dtype.kind != "f" or array.size == 0:
                continue
            finite = np.abs(array[np.isfinite(array)])
            if finite.size and (float(finite.max()) > FP16_MAX or math.isnan(float(finite.max()))):
                return True
    return False
