"""Ops that a converter lacks and that others express exactly: PyTorch's own decompositions, and a few of ours."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from build.legalize.common import fixed, is_float, result_dtype, torch_decomposition
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor

#: in torch._decomp.decomposition_table
_TABLED = (
    *("channel_shuffle.default", "lerp.Tensor", "smooth_l1_loss.default", "huber_loss.default", "mse_loss.default"),
    *("binary_cross_entropy.default", "soft_margin_loss.default", "count_nonzero.dim_IntList"),
    *("count_nonzero.default", "nansum.default", "deg2rad.default", "rad2deg.default"),
    *("take.default", "diag_embed.default", "linalg_cross.default", "heaviside.default", "addr.default"),
    "sinc.default",
)


def _register(op: str, function: Callable[..., Any]) -> None:
    name = "_".join(op.lower().removesuffix(".default").split("."))
    decomposition(f"aten.{op}", fault=f"coremltools has no {op.split('.')[0]}", name=f"{name}_by_parts")(function)


for _op in _TABLED:
    _register(_op, torch_decomposition(f"aten.{_op}"))


@decomposition("aten.erfc.default", fault="coremltools has no erfc")
def erfc_by_erf(x: Tensor) -> Tensor:
    """``1 - erf(x)`` (absolutely exact; far above zero its last digits are lost)."""
    import torch

    return 1 - torch.erf(x)


def _copysign(x: Tensor, sign: Any) -> Any:
    import torch

    dtype = result_dtype(x, sign)
    if not dtype.is_floating_point or not is_float(x):
        return NotImplemented
    size = torch.abs(x).to(dtype)
    if not isinstance(sign, torch.Tensor):
        return size * math.copysign(1.0, sign)
    # one over a zero tells its sign
    sign = sign.to(dtype)
    negative = torch.lt(torch.where(torch.eq(sign, 0), 1 / sign, sign), 0)
    return torch.where(negative, -size, size)


@decomposition("aten.copysign.Tensor", "aten.copysign.Scalar", fault="coremltools has no copysign")
def copysign_by_compare(x: Tensor, sign: Any) -> Any:
    """The magnitude, negative where the sign is, that of -0.0 included."""
    return _copysign(x, sign)


def _without_nan(x: Tensor, y: Tensor, extreme: Any) -> Any:
    import torch

    dtype = result_dtype(x, y)
    x, y = x.to(dtype), y.to(dtype)
    if not dtype.is_floating_point:
        return extreme(x, y)
    return torch.where(torch.ne(x, x), y, torch.where(torch.ne(y, y), x, extreme(x, y)))


@decomposition("aten.fmax.default", fault="coremltools has no fmax")
def fmax_by_compare(x: Tensor, y: Tensor) -> Any:
    """The larger; the other where one is NaN."""
    import torch

    return _without_nan(x, y, torch.maximum)


@decomposition("aten.fmin.default", fault="coremltools has no fmin")
def fmin_by_compare(x: Tensor, y: Tensor) -> Any:
    """The smaller; the other where one is NaN."""
    import torch

    return _without_nan(x, y, torch.minimum)


@decomposition("aten.isin.Tensor_Tensor", fault="coremltools has no isin")
def isin_by_compare(x: Tensor, wanted: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """Each value compared with each of a fixed number of wanted ones."""
    import torch

    if not fixed(*wanted.shape) or x.dtype != wanted.dtype:
        return NotImplemented
    hits = torch.eq(x.unsqueeze(-1), wanted.reshape(-1)).to(torch.int32)
    count = torch.sum(hits, -1, dtype=torch.int32)
    return torch.eq(count, 0) if invert else torch.gt(count, 0)


@decomposition("aten.median.default", fault="coremltools has no median")
def median_of_everything(x: Tensor) -> Any:
    """The median of the flattened tensor."""
    import torch

    return torch.median(x.reshape(-1), 0).values if fixed(*x.shape) and x.dim() else NotImplemented


@decomposition("aten.sort.default", fault="Core ML sorts no bools")
def sort_of_bools(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    """Sorted as the integers 0 and 1."""
    import torch

    if x.dtype is not torch.bool:
        return NotImplemented
    values, places = torch.sort(x.to(torch.int32), dim, descending)
    return torch.gt(values, 0), places


@decomposition("aten.kthvalue.default", fault="coremltools has no kthvalue; OpenVINO makes floats of its places")
def kthvalue_by_sort(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """One slice of the sorted values and places."""
    import torch

    if x.dim() == 0:
        return NotImplemented
    parts = [part.narrow(dim, k - 1, 1) for part in torch.sort(x, dim)]
    return tuple(part if keepdim else part.squeeze(dim) for part in parts)
