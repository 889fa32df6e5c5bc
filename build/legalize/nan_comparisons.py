"""Comparisons with NaN, for a runtime that takes "greater" for "not less or equal"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.core import decomposition, graph_pass, once
from build.legalize.emit import Emitter
from build.program import op_name

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram
    from torch.fx import Node

_SWAPPED = {
    "aten.gt.Tensor": "aten.lt.Tensor",
    "aten.gt.Scalar": "aten.lt.Tensor",
    "aten.ge.Tensor": "aten.le.Tensor",
    "aten.ge.Scalar": "aten.le.Tensor",
}


@graph_pass(fault="OpenVINO's CPU plugin finds NaN greater than any number; its less and less-or-equal are right")
def less_for_greater(program: ExportedProgram) -> ExportedProgram:
    """``x > y`` of floats as ``y < x``, ``x >= y`` as ``y <= x``."""
    import torch

    for node in list(program.graph.nodes):
        op = _SWAPPED.get(op_name(node)) if node.op == "call_function" else None
        if op is None:
            continue
        left, right = node.args
        value = left.meta["val"]
        dtype = torch.result_type(value, right.meta["val"] if hasattr(right, "meta") else right)
        if not dtype.is_floating_point:
            continue
        emit = Emitter(program, node)
        emit.replace(emit(op, _operand(emit, right, dtype), left))
    program.graph_module.recompile()
    return program


def _operand(emit: Emitter, value: Any, dtype: Any) -> Node:
    """A tensor as it is, a number as a tensor."""
    return value if hasattr(value, "meta") else emit("aten.full.default", [], value, dtype=dtype)


@decomposition(
    "aten.bucketize.Tensor", fault="OpenVINO puts NaN before all boundaries; for PyTorch it is beyond the last one"
)
@once()
def bucketize_of_nan(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Any:
    """The number of boundaries where the value is NaN."""
    import torch

    if not x.is_floating_point():
        return NotImplemented
    places = torch.bucketize(x, boundaries, out_int32=out_int32, right=right)
    return torch.where(torch.eq(x, x), places, torch.full_like(places, boundaries.shape[0]))


def _above_all(x: Tensor) -> Tensor:
    """Infinity for NaN, which PyTorch orders after every number."""
    import torch

    return torch.where(torch.eq(x, x), x, torch.full_like(x, float("inf")))


_ORDER = "OpenVINO's sorts and top-k lose finite values where NaN is among them"
_sorting = once()


@decomposition("aten.sort.default", fault=_ORDER)
@_sorting
def sort_of_nan(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    """The order of what has infinity for NaN, and the values in that order."""
    import torch

    if not x.is_floating_point() or x.dim() == 0:
        return NotImplemented
    _, order = torch.sort(_above_all(x), dim, descending)
    return torch.gather(x, dim, order), order


@decomposition("aten.sort.stable", fault=_ORDER)
@_sorting
def stable_sort_of_nan(x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Any:
    """As ``sort_of_nan``."""
    import torch

    if not x.is_floating_point() or x.dim() == 0:
        return NotImplemented
    _, order = torch.sort(_above_all(x), stable=bool(stable), dim=dim, descending=descending)
    return torch.gather(x, dim, order), order


@decomposition("aten.topk.default", fault=_ORDER)
@_sorting
def topk_of_nan(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """As ``sort_of_nan``."""
    import torch

    if not x.is_floating_point() or x.dim() == 0:
        return NotImplemented
    _, places = torch.topk(_above_all(x), k, dim, largest, sorted)
    return torch.gather(x, dim, places), places
