"""Scatter with a reduction, in the one spelling that converters know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor

_FAULT = "OpenVINO and onnxscript know scatter_reduce, but not scatter with reduce="


@decomposition("aten.scatter.reduce", fault=_FAULT)
def scatter_as_reduce(x: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Tensor:
    """``scatter(reduce="add"|"multiply")`` as ``scatter_reduce(reduce="sum"|"prod")``."""
    import torch

    name = {"add": "sum", "multiply": "prod"}[reduce]
    return torch.scatter_reduce(x, dim, index, src, name, include_self=True)


@decomposition("aten.scatter.value_reduce", fault=_FAULT)
def scatter_value_as_reduce(x: Tensor, dim: int, index: Tensor, value: float, *, reduce: str) -> Tensor:
    """The same with one number in place of the source tensor."""
    import torch

    return scatter_as_reduce(x, dim, index, torch.full_like(index, value, dtype=x.dtype), reduce=reduce)


@decomposition("aten.scatter_reduce.two", fault="onnxscript writes a scatter that takes means as one that overwrites")
def scatter_mean_by_sum(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """The mean as a sum divided by how many there are; where nothing is scattered to, the value stays."""
    import torch

    if reduce != "mean":
        return NotImplemented
    zeros = torch.zeros_like(x)
    count = torch.scatter_reduce(zeros, dim, index, torch.ones_like(src), "sum")
    total = torch.scatter_reduce(zeros, dim, index, src, "sum")
    rounding = None if x.is_floating_point() else "floor"
    if include_self:
        return torch.div(x + total, count + 1, rounding_mode=rounding)
    mean = torch.div(total, torch.clamp(count, min=1), rounding_mode=rounding)
    return torch.where(count > 0, mean, x)
