"""Losses and distances that a converter lacks, written out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor

_NONE, _MEAN = 0, 1  # ATen's Reduction


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    import torch

    if reduction == _NONE:
        return loss
    return torch.mean(loss) if reduction == _MEAN else torch.sum(loss)


def _xlogx(x: Tensor) -> Tensor:
    """``x * log(x)``, and 0 for 0."""
    import torch

    return torch.where(torch.eq(x, 0), torch.zeros_like(x), x * torch.log(x))


@decomposition("aten.l1_loss.default", fault="coremltools has no l1_loss")
def l1_loss_written_out(x: Tensor, y: Tensor, reduction: int = _MEAN) -> Any:
    """The mean or sum of the distances."""
    import torch

    return _reduced(torch.abs(x - y), reduction)


@decomposition("aten.kl_div.default", fault="coremltools has no kl_div")
def kl_div_written_out(x: Tensor, target: Tensor, reduction: int = _MEAN, *, log_target: bool = False) -> Any:
    """The target times the difference of the logarithms."""
    import torch

    loss = torch.exp(target) * (target - x) if log_target else _xlogx(target) - target * x
    return _reduced(loss, reduction)


@decomposition("aten.dist.default", fault="coremltools has no dist")
def dist_by_norm(x: Tensor, y: Tensor, p: float = 2) -> Any:
    """The norm of the difference."""
    import torch

    return torch.linalg.vector_norm(x - y, p)


@decomposition("aten.trace.default", fault="coremltools has no trace")
def trace_by_diagonal(x: Tensor) -> Any:
    """The sum of the diagonal."""
    import torch

    return torch.sum(torch.diagonal(x))


@decomposition("aten.nanmean.default", fault="coremltools has no nanmean")
def nanmean_by_count(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The sum without NaN by the number of the other values."""
    import torch

    if dtype is not None or not x.is_floating_point():
        return NotImplemented
    known = torch.eq(x, x)
    dims = list(range(x.dim())) if dim is None else dim
    total = torch.sum(torch.where(known, x, torch.zeros_like(x)), dims, keepdim)
    return total / torch.sum(known.to(x.dtype), dims, keepdim)


@decomposition("aten.xlogy.Tensor", fault="coremltools has no xlogy")
def xlogy_written_out(x: Tensor, y: Tensor) -> Any:
    """``x * log(y)``: 0 where x is 0, NaN where y is."""
    import torch

    if not x.is_floating_point() or x.dtype != y.dtype:
        return NotImplemented
    product = x * torch.log(y)
    nothing = torch.logical_and(torch.eq(x, 0), torch.eq(y, y))
    return torch.where(nothing, torch.zeros_like(product), product)
