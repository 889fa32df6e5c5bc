"""Picks of elements whose places are known when the program is lowered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from build.legalize.common import fixed
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


@decomposition("aten.as_strided.default", fault="coremltools has no as_strided")
def as_strided_by_places(x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: Any = None) -> Any:
    """A selection from the flattened tensor, where all sizes are fixed and the tensor is laid out plainly."""
    import torch

    plain = [1]
    for n in reversed(x.shape[1:]):
        plain.insert(0, plain[0] * n)
    if not fixed(*x.shape, *size, *stride) or list(x.stride()) != plain[: x.dim()] or not size or x.dim() == 0:
        return NotImplemented
    places: Any = storage_offset or 0
    for d, (n, step) in enumerate(zip(size, stride, strict=True)):
        places = places + (torch.arange(n) * step).reshape([n] + [1] * (len(size) - d - 1))
    return torch.index_select(x.reshape(-1), 0, places.reshape(-1)).reshape(list(size))


def _hits(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """[place, k]: whether the k-th index means that place; negative ones count from the end."""
    import torch

    size = x.shape[dim]
    wanted = torch.where(torch.lt(index, 0), index + size, index)
    return torch.eq(torch.arange(size).unsqueeze(-1), wanted.reshape(1, -1))


def _along(mask: Tensor, x: Tensor, dim: int) -> Tensor:
    """A mask of one dimension, as one of ``x``'s rank."""
    return mask.reshape([1] * dim + [-1] + [1] * (x.dim() - dim - 1))


@decomposition("aten.index_fill.int_Scalar", fault="coremltools has no index_fill")
def index_fill_by_compare(x: Tensor, dim: int, index: Tensor, value: Any) -> Any:
    """A select by the places that any index means."""
    import torch

    if x.dim() == 0 or not fixed(x.shape[dim], *index.shape):
        return NotImplemented
    dim = dim % x.dim()
    here = torch.gt(torch.sum(_hits(x, dim, index).to(torch.int64), 1), 0)
    return torch.where(_along(here, x, dim), torch.full([], value, dtype=x.dtype), x)


@decomposition("aten.index_copy.default", fault="coremltools has no index_copy")
def index_copy_by_compare(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    """A select between the tensor and the source's slice that goes to each place, the last one where several do."""
    import torch

    if x.dim() == 0 or not fixed(x.shape[dim], *index.shape) or index.numel() == 0:
        return NotImplemented
    dim = dim % x.dim()
    count = index.numel()
    last = torch.amax(_hits(x, dim, index).to(torch.int64) * torch.arange(1, count + 1), 1)
    chosen = torch.index_select(source, dim, torch.clamp(last - 1, min=0))
    return torch.where(_along(torch.gt(last, 0), x, dim), chosen, x)
