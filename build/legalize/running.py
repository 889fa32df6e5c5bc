"""Running sums, products and extremes, order statistics and places in sorted rows that OpenVINO lacks or mistypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.common import dims_of, fixed
from build.legalize.core import Decomposition, decomposition

if TYPE_CHECKING:
    from torch import Tensor

_KIND = "OpenVINO keeps the dtype of integers and bools that it sums up or multiplies; PyTorch's result is int64"


def _small(x: Tensor, dtype: Any) -> bool:
    import torch

    return dtype is None and not x.is_floating_point() and not x.is_complex() and x.dtype is not torch.int64


@decomposition("aten.cumsum.default", fault=_KIND)
def cumsum_of_int64(x: Tensor, dim: int, *, dtype: Any = None) -> Any:
    """Cast first, then the running sum."""
    import torch

    return torch.cumsum(x.to(torch.int64), dim) if _small(x, dtype) else NotImplemented


@decomposition("aten.prod.default", fault=_KIND)
def prod_of_int64(x: Tensor, *, dtype: Any = None) -> Any:
    """Cast first, then the product of everything."""
    import torch

    return torch.prod(x.to(torch.int64)) if _small(x, dtype) else NotImplemented


@decomposition("aten.prod.dim_int", fault=_KIND)
def prod_dim_of_int64(x: Tensor, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Cast first, then the product."""
    import torch

    return torch.prod(x.to(torch.int64), dim, keepdim) if _small(x, dtype) else NotImplemented


def _running(compare: str) -> Decomposition:
    def extreme(x: Tensor, dim: int) -> Any:
        import torch

        if x.dim() == 0 or not fixed(x.shape[dim]) or x.dtype is torch.bool:
            return NotImplemented
        size, step = x.shape[dim], 1
        shape = [1] * x.dim()
        shape[dim] = size
        places = torch.arange(size).reshape(shape).expand(x.shape)
        while step < size:
            before, now = x.narrow(dim, 0, size - step), x.narrow(dim, step, size - step)
            newer = getattr(torch, compare)(now, before)
            if x.is_floating_point():
                newer = torch.logical_or(torch.logical_and(newer, torch.eq(before, before)), torch.ne(now, now))
            place = torch.where(newer, places.narrow(dim, step, size - step), places.narrow(dim, 0, size - step))
            x = torch.cat([x.narrow(dim, 0, step), torch.where(newer, now, before)], dim)
            places = torch.cat([places.narrow(dim, 0, step), place], dim)
            step *= 2
        return x.clone(), places.clone()

    return extreme


for _name, _compare in (("cummax", "ge"), ("cummin", "le")):
    decomposition(f"aten.{_name}.default", fault="OpenVINO has no cummax and cummin", name=f"{_name}_by_doubling")(
        _running(_compare)
    )


@decomposition("aten.nanmedian.dim", fault="OpenVINO has no nanmedian")
def nanmedian_by_sort(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    """The lower middle of what is a number; NaN sorts as infinity, and is not counted."""
    import torch

    if x.dim() == 0 or not x.is_floating_point():
        return NotImplemented
    good = torch.eq(x, x)
    count = torch.sum(good.to(torch.int64), dim, True)
    values, places = torch.sort(torch.where(good, x, torch.full_like(x, float("inf"))), dim)
    middle = torch.clamp(torch.div(count - 1, 2, rounding_mode="trunc"), min=0)
    value, place = torch.gather(values, dim, middle), torch.gather(places, dim, middle)
    value = torch.where(torch.gt(count, 0), value, torch.full_like(value, float("nan")))
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


@decomposition("aten.nanmedian.default", fault="OpenVINO has no nanmedian")
def nanmedian_of_row(x: Tensor) -> Any:
    """The nanmedian of the flattened tensor."""
    return nanmedian_by_sort(x.reshape(-1), 0)[0] if x.is_floating_point() else NotImplemented


@decomposition("aten.searchsorted.Tensor", fault="OpenVINO has no searchsorted")
def searchsorted_by_compare(
    row: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Any:
    """How many of the row's values come before; none comes after NaN."""
    import torch

    if sorter is not None or x.dim() == 0:
        return NotImplemented
    a, b = row.unsqueeze(-2), x.unsqueeze(-1)
    after = torch.lt(b, a) if right or side == "right" else torch.le(b, a)
    return torch.sum(torch.logical_not(after).to(torch.int64), -1).to(torch.int32 if out_int32 else torch.int64)


@decomposition("aten.linalg_vector_norm.default", fault="OpenVINO has no norm of everything")
def vector_norm_over_all_dims(
    x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """The norm of the flattened tensor."""
    import torch

    if dim or x.dim() == 0:
        return NotImplemented
    norm = torch.linalg.vector_norm(x.reshape(-1), ord, [0], dtype=dtype)
    return norm.reshape([1] * x.dim()) if keepdim else norm


@decomposition("aten.median.default", fault="OpenVINO has no median of everything")
def median_of_row(x: Tensor) -> Tensor:
    """The median of the flattened tensor, whatever its size."""
    import torch

    return torch.median(x.reshape(-1), 0)[0]


@decomposition("aten.linalg_vector_norm.default", fault="OpenVINO has no norm of order 0")
def vector_norm_of_order_zero(
    x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """How many are not zero."""
    import torch

    if ord != 0 or x.dim() == 0 or not x.is_floating_point():
        return NotImplemented
    counted = torch.ne(x, 0).to(x.dtype if dtype is None else dtype)
    return torch.sum(counted, dims_of(x, dim), keepdim)
