"""What a program with quantize and dequantize ops computes in integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from build.legalize.marks import name_in
from build.program import op_name
from build.quantize.annotate import value_of
from build.quantize.weighted import weight_of
from targets.contract import Arithmetic

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def arithmetic(program: ExportedProgram, keep_float: Collection[str]) -> Arithmetic:
    """Of a program whose values were to be quantised but for the nodes in ``keep_float``.

    An op over a stored weight computes in integers where both its operands are dequantised; with a dequantised weight
    alone, it computes in floating point. A table is only looked up, and computes nothing.
    """
    integers = 0
    floats: Counter[str] = Counter()
    for node in program.graph.nodes:
        weight = weight_of(node)
        if weight is None or op_name(node).startswith("aten.embedding") or not _dequantized(weight):
            continue
        if _dequantized(value_of(node)):
            integers += 1
        elif not _kept(node, keep_float):
            floats[op_name(node)] += 1
    return Arithmetic(integers=integers, floats=dict(sorted(floats.items())))


def _dequantized(node: Any) -> bool:
    return node.op == "call_function" and "dequantize" in op_name(node)


def _kept(node: Any, names: Collection[str]) -> bool:
    return node.name in names or name_in(node.meta.get("stack_trace")) in names
