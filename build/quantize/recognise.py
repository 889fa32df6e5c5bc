"""Whether a program is quantised already (PT2E or QAT: quantize and dequantize ops in its graph)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from build.program import op_name, op_nodes

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: namespaces of the ops that PT2E leaves in a graph (torch's own; torchao's newer spelling)
_SPACES = ("quantized_decomposed.", "torchao.")


def quantized_ops(program: ExportedProgram) -> dict[str, int]:
    """Op name -> count of the quantize and dequantize ops in a program; empty for a float program."""
    found: dict[str, int] = {}
    for node in op_nodes(program):
        name = op_name(node)
        if name.startswith(_SPACES):
            found[name] = found.get(name, 0) + 1
    return found


def is_quantized(program: ExportedProgram) -> bool:
    """Whether the program brings its own quantisation."""
    return any("dequantize" in name for name in quantized_ops(program))
