"""Scatter with a reduction, in the one spelling that converters know."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
