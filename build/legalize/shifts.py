"""Shift operators under the names that runtimes know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.core import graph_pass, resolve_op

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_NAMES = {
    "aten.__lshift__.Scalar": "aten.bitwise_left_shift.Tensor_Scalar",
    "aten.__lshift__.Tensor": "aten.bitwise_left_shift.Tensor",
    "aten.__rshift__.Scalar": "aten.bitwise_right_shift.Tensor_Scalar",
    "aten.__rshift__.Tensor": "aten.bitwise_right_shift.Tensor",
}


@graph_pass(fault="ExecuTorch has bitwise_left_shift, not the operator <<", ops=tuple(_NAMES))
def shift_operators(program: ExportedProgram) -> ExportedProgram:
    """``x << n`` and ``x >> n`` as the functions that compute the same."""
    table: dict[Any, Any] = {resolve_op(old): resolve_op(new) for old, new in _NAMES.items()}
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target in table:
            node.target = table[node.target]
    return program
