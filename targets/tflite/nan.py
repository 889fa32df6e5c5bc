"""Ops through which NaN does not pass in LiteRT as it does in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from build.program import op_name, op_nodes, source_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: Measured on ai-edge-litert 2.3: comparisons inside these kernels let the other operand win over NaN.
_DROPS_NAN = frozenset(
    {
        "relu",
        "relu_",
        "relu6",
        "clamp",
        "clamp_",
        "clamp_min",
        "clamp_max",
        "hardtanh",
        "hardtanh_",
        "hardswish",
        "hardswish_",
        "hardsigmoid",
        "hardsigmoid_",
        "max",
        "min",
        "amax",
        "amin",
        "maximum",
        "minimum",
        "argmax",
        "argmin",
        "max_pool1d",
        "max_pool2d",
        "max_pool3d",
        "max_pool2d_with_indices",
        "adaptive_max_pool2d",
        "sort",
        "topk",
        "median",
        "cummax",
        "cummin",
        "elu",
        "threshold",
        "leaky_relu",
        "softplus",
        "gelu",
        "sign",
        "prelu",
    }
)


def nan_unsafe(program: ExportedProgram) -> tuple[str, ...]:
    """``aten.relu.default at file.py:12``, once for each op and line, in the program's order."""
    found: dict[str, None] = {}
    for node in op_nodes(program):
        name = op_name(node)
        parts = name.split(".")
        if len(parts) == 3 and parts[0] == "aten" and parts[1] in _DROPS_NAN:
            source = source_of(node)
            found.setdefault(f"{name} at {source.split(' in ')[0]}" if source else name)
    return tuple(found)
