"""Infinity and NaN through logarithms, roots, bounds and norms, for runtimes whose kernels change them quietly."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from build.legalize.common import is_float
from build.legalize.constants import constant_value, drop_unused_constants
from build.legalize.core import decomposition, graph_pass, once

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram
    from torch.fx import Node

#: The plain op that a rewrite below calls is left as it is.
_once = once()


def _logarithm(op: str) -> Callable[[Tensor], Any]:
    """The logarithm plus ``x * 1e-60``: nothing for a number, infinity and NaN for themselves.

    Two products, because 1e-60 is zero in float32. XNNPACK takes all three ops; a select it would not take.
    """

    @_once
    def compute(x: Tensor) -> Any:
        import torch

        if x.dtype is not torch.float32:
            return NotImplemented
        return torch.add(getattr(torch, op)(x), torch.mul(torch.mul(x, 1e-30), 1e-30))

    return compute


for _op in ("log", "log2", "log10", "log1p"):
    decomposition(
        f"aten.{_op}.default",
        fault="XNNPACK's logarithm of infinity is 88.4, and of NaN 88.8",
        name=f"{_op}_of_infinity",
    )(_logarithm(_op))


@decomposition("aten.rsqrt.default", fault="XNNPACK's reciprocal square root of zero is NaN")
def rsqrt_by_sqrt(x: Tensor) -> Any:
    """``1 / sqrt(x)``: infinity for zero."""
    import torch

    return torch.reciprocal(torch.sqrt(x)) if x.is_floating_point() else NotImplemented


@decomposition(
    "aten.floor_divide.default",
    "aten.div.Tensor_mode",
    fault="ExecuTorch's floor division makes infinity of 0 / 0 and NaN / 0, and disregards the sign of a zero",
)
@_once
def floor_division_by_zero(x: Tensor, y: Any, *, rounding_mode: str | None = "floor") -> Any:
    """Floor division of floats, with the plain quotient where the divisor is zero."""
    import torch

    if rounding_mode != "floor" or not isinstance(y, torch.Tensor) or not is_float(x, y):
        return NotImplemented
    return torch.where(torch.eq(y, 0), torch.div(x, y), torch.floor_divide(x, y))


@decomposition("aten.logit.default", fault="XNNPACK's logarithm of infinity is 88.4: so is the logit of 1")
def logit_of_one(x: Tensor, eps: float | None = None) -> Any:
    """``log(x / (1 - x))``, with the logarithm that keeps infinity."""
    import torch

    if eps is not None or x.dtype is not torch.float32:
        return NotImplemented
    return torch.log(x / (1 - x))


#: Powers up to here become products: three of them at most.
_HIGHEST_POWER = 8


@decomposition("aten.pow.Tensor_Scalar", fault="LiteRT's powers are never larger than the largest finite number")
def whole_power_by_products(x: Tensor, exponent: float) -> Any:
    """``x ** n`` for whole n from 3 to 8, as products."""
    if not x.is_floating_point() or exponent not in range(3, _HIGHEST_POWER + 1):
        return NotImplemented
    result, square, left = None, x, int(exponent)
    while left:
        if left % 2:
            result = square if result is None else result * square
        left //= 2
        square = square * square if left else square
    return result


@decomposition(
    "aten.linalg_vector_norm.default", fault="ONNX Runtime loses NaN in the largest of a vector's magnitudes"
)
def infinite_norm_by_extreme(
    x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """The norm of order infinity (or minus infinity) as the largest (smallest) magnitude."""
    import torch

    if not math.isinf(ord) or x.dim() == 0 or x.is_complex() or dtype not in (None, x.dtype):
        return NotImplemented
    reduce = torch.amax if ord > 0 else torch.amin
    return reduce(torch.abs(x), [] if dim is None else dim, keepdim)


@decomposition("aten.aminmax.default", fault="ONNX Runtime loses NaN in reductions")
def aminmax_by_both(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    """The smallest and the largest, each alone."""
    import torch

    if x.dim() == 0:
        return NotImplemented
    dims = [] if dim is None else [dim]
    return torch.amin(x, dims, keepdim), torch.amax(x, dims, keepdim)


@graph_pass(
    fault="XNNPACK's minimum (maximum) with a constant infinity bounds by the largest finite number",
    ops=("aten.minimum.default", "aten.maximum.default"),
)
def infinite_bounds_dropped(program: ExportedProgram) -> ExportedProgram:
    """``minimum(x, inf)`` and ``maximum(x, -inf)`` as ``x``."""
    import torch

    neutral = {torch.ops.aten.minimum.default: math.inf, torch.ops.aten.maximum.default: -math.inf}
    changed = False
    for node in list(program.graph.nodes):
        if node.op != "call_function" or node.target not in neutral:
            continue
        for value, bound in (node.args, reversed(node.args)):
            same = (
                value.meta["val"].shape == node.meta["val"].shape and value.meta["val"].dtype == node.meta["val"].dtype
            )
            if same and _is_all(program, bound, neutral[node.target]):
                # An output must stay a node of its own: the copy costs one op there, nothing inside the graph.
                with program.graph.inserting_before(node):
                    copy = program.graph.call_function(torch.ops.aten.alias.default, (value,))
                copy.meta = dict(node.meta)
                node.replace_all_uses_with(copy, propagate_meta=False)
                program.graph.erase_node(node)
                changed = True
                break
    if changed:
        program.graph.eliminate_dead_code()
        drop_unused_constants(program)
    return program


#: Ops that repeat their first operand's values.
_REPEATING = ("lift_fresh_copy", "clone", "detach", "detach_", "alias", "expand", "_to_copy", "to", "view", "reshape")


def _is_all(program: ExportedProgram, node: Node, number: float) -> bool:
    """Whether a tensor is a constant that holds one number alone."""
    while node.op == "call_function":
        name = getattr(node.target, "_name", "").removeprefix("aten::").split(".")[0]
        if name in ("full", "full_like"):
            return bool(node.args[1] == number)
        if name == "scalar_tensor":
            return bool(node.args[0] == number)
        if name not in _REPEATING:
            return False
        node = node.args[0]
    held = constant_value(program, node)
    return held is not None and held.numel() > 0 and bool((held == number).all())
