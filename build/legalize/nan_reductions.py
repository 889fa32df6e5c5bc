"""Largest, smallest and their places, with NaN as PyTorch has it: NaN wins, and the first NaN is its place.

A runtime that compares in vectors returns the other operand, or whichever came last. The price is one comparison and
one reduction over the input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from build.legalize.common import dims_of
from build.legalize.core import decomposition, once

if TYPE_CHECKING:
    from torch import Tensor

_FAULT = "OpenVINO and ONNX Runtime lose NaN in reductions, and take another place for the largest"


#: The plain reduction that a rewrite below calls is left as it is.
_once = once()


def _any_nan(x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    """Where a reduction meets NaN, as a sum of zeros and ones: neither runtime reduces a bool by ``or`` alike."""
    import torch

    marks = torch.where(torch.eq(x, x), torch.zeros_like(x), torch.ones_like(x))
    return torch.gt(torch.sum(marks, dims, keepdim=keepdim), 0)


def _extreme(op: str) -> Callable[..., Any]:
    def reduce(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
        import torch

        if not x.is_floating_point() or x.dim() == 0:
            return NotImplemented
        dims = dims_of(x, dim)
        plain: Tensor = getattr(torch.ops.aten, op).default(x, dims, keepdim)
        return torch.where(_any_nan(x, dims, keepdim), torch.full_like(plain, float("nan")), plain)

    return reduce


def _unbounded(op: str) -> Callable[..., Any]:
    """As ``_extreme``, for a runtime that starts from the largest finite number and never leaves it for infinity.

    One sum tells all: what is not that infinity counts 1, and NaN without end.
    """
    worst = float("-inf" if op == "amax" else "inf")

    def reduce(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
        import torch

        if not x.is_floating_point() or x.dim() == 0:
            return NotImplemented
        dims = dims_of(x, dim)
        plain: Tensor = getattr(torch.ops.aten, op).default(x, dims, keepdim)
        nothing, one = torch.zeros_like(x), torch.ones_like(x)
        marks = torch.where(torch.eq(x, worst), nothing, one)
        marks = torch.where(torch.eq(x, x), marks, torch.full_like(x, float("inf")))
        seen = torch.sum(marks, dims, keepdim=keepdim)
        best = torch.where(torch.eq(seen, 0), torch.full_like(plain, worst), plain)
        return torch.where(torch.eq(seen, float("inf")), torch.full_like(plain, float("nan")), best)

    return reduce


def _place(op: str) -> Callable[..., Any]:
    def search(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        import torch

        if not x.is_floating_point() or x.dim() == 0:
            return NotImplemented
        if dim is None:
            place = search(x.reshape([-1]), 0)
            return place.reshape([1] * x.dim()) if keepdim else place
        find = getattr(torch.ops.aten, op).default
        marks = torch.where(torch.eq(x, x), torch.zeros_like(x), torch.ones_like(x))
        first_nan = torch.ops.aten.argmax.default(marks, dim, keepdim)
        return torch.where(_any_nan(x, [dim % x.dim()], keepdim), first_nan, find(x, dim, keepdim))

    return search


def _both(op: str, extreme: Callable[[str], Callable[..., Any]]) -> Callable[..., Any]:
    value, place = extreme(f"a{op}"), _place(f"arg{op}")

    def reduce(x: Tensor, dim: int, keepdim: bool = False) -> Any:
        if not x.is_floating_point() or x.dim() == 0:
            return NotImplemented
        return value(x, [dim], keepdim), place(x, dim, keepdim)

    return reduce


def _whole(op: str, extreme: Callable[[str], Callable[..., Any]]) -> Callable[..., Any]:
    value = extreme(f"a{op}")

    def reduce(x: Tensor) -> Any:
        return value(x, (), False)

    return reduce


for _suffix, _how, _why in (
    ("with_nan", _extreme, _FAULT),
    ("unbounded", _unbounded, "OpenVINO loses NaN in reductions, and makes ±3.4e38 of nothing but infinities"),
):
    for _op in ("max", "min"):
        decomposition(f"aten.{_op}.dim", fault=_why, name=f"{_op}_dim_{_suffix}")(_once(_both(_op, _how)))
        decomposition(f"aten.{_op}.default", fault=_why, name=f"{_op}_all_{_suffix}")(_once(_whole(_op, _how)))
        decomposition(f"aten.a{_op}.default", fault=_why, name=f"a{_op}_{_suffix}")(_once(_how(f"a{_op}")))
for _op in ("max", "min"):
    decomposition(f"aten.arg{_op}.default", fault=_FAULT, name=f"arg{_op}_with_nan")(_once(_place(f"arg{_op}")))


@decomposition("aten.aminmax.default", fault="OpenVINO's smallest and largest lose what its amin and amax lose")
def aminmax_by_parts(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    """The smallest and the largest, each by its own reduction."""
    import torch

    dims = [] if dim is None else [dim]
    return torch.amin(x, dims, keepdim), torch.amax(x, dims, keepdim)
