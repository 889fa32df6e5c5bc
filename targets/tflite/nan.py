"""Ops through which NaN or infinity does not pass in LiteRT as it does in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from build.program import op_name, op_nodes, source_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

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
        "aminmax",
    }
)

#: Measured on ai-edge-litert 2.3, one x86-64 CPU. Exponentials make NaN a number (exp(NaN) is 0), with them softmax;
#: the converter's own hyperbolic functions and logsumexp hold XNNPACK's logarithm, for which infinity is 88.4 and NaN
#: 88.8; average pools make NaN -inf; powers stop at the largest finite number; resizing multiplies infinity by 0.
#: Not measured, but made of the same kernels: the forms in place, softmin, avg_pool1d and upsample_linear1d.
_CHANGES = frozenset(
    {
        "exp",
        "exp_",
        "expm1",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
        "selu",
        "selu_",
        "celu",
        "celu_",
        "softshrink",
        "softmax",
        "_softmax",
        "softmin",
        "log_softmax",
        "_log_softmax",
        "logsumexp",
        "scaled_dot_product_attention",
        "avg_pool1d",
        "avg_pool2d",
        "pow",
        "pow_",
        "upsample_linear1d",
        "upsample_bilinear2d",
    }
)


def nan_unsafe(program: ExportedProgram) -> tuple[str, ...]:
    """``aten.relu.default at file.py:12``, once for each op and line, in the program's order."""
    found: dict[str, None] = {}
    for node in op_nodes(program):
        name = op_name(node)
        parts = name.split(".")
        listed = len(parts) == 3 and parts[0] == "aten" and parts[1] in _DROPS_NAN | _CHANGES
        if listed or _multiplies_by_zero(node, name):
            source = source_of(node)
            found.setdefault(f"{name} at {source.split(' in ')[0]}" if source else name)
    return tuple(found)


def _multiplies_by_zero(node: Node, name: str) -> bool:
    """Whether the converter computes the product beforehand: 0, where PyTorch has NaN for NaN and for infinity."""
    return name.startswith(("aten.mul.", "aten.mul_.")) and any(
        isinstance(factor, int | float) and factor == 0 for factor in node.args[1:]
    )
