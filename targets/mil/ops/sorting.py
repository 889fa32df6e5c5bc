"""Sorting, selection of the largest, and positions of non-zeros.

The order of equal values is open in the documentation: here the lower index comes first, ascending or descending.
"""

from __future__ import annotations

from typing import Any

from ..dtypes import torch_dtype
from ..registry import Args, axis_of, operation


def _order(args: Args, axis: int) -> Any:
    import torch

    return torch.argsort(args["x"], dim=axis, descending=not args.flag("ascending", False), stable=True)


@operation("argsort")
def _argsort(args: Args) -> Any:
    return _order(args, axis_of(args, "axis", args["x"].dim(), -1)).to(torch_dtype(args.dtypes[0]))


@operation("topk")
def _topk(args: Args) -> Any:
    x = args["x"]
    axis, k = axis_of(args, "axis", x.dim(), -1), args.integer("k", 1)
    k = x.shape[axis] if k == -1 else k
    if not 0 <= k <= x.shape[axis]:
        raise args.error(f"k {k} of an axis of size {x.shape[axis]}")
    order = _order(args, axis).narrow(axis, 0, k)
    values = x.gather(axis, order)
    if not args.flag("return_indices", True):
        return values
    return values, order.to(torch_dtype(args.dtypes[1]))


@operation("non_zero")
def _non_zero(args: Args) -> Any:
    return args["x"].nonzero().to(torch_dtype(args.dtypes[0]))
