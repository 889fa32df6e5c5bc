"""Layers that a converter lacks, by those that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.common import fixed
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor

_NONE, _MEAN = 0, 1  # ATen's Reduction


@decomposition("aten.cross_entropy_loss.default", fault="coremltools has no cross_entropy_loss")
def cross_entropy_of_classes(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """Minus the log-probability of each class, for targets that are classes, without weights and smoothing."""
    import torch

    if x.dim() < 1 or x.dim() == target.dim() or target.is_floating_point():
        return NotImplemented
    if weight is not None or label_smoothing or ignore_index >= 0:
        return NotImplemented
    dim = 0 if x.dim() == 1 else 1
    counted = torch.ne(target, ignore_index)
    place = torch.where(counted, target, torch.zeros_like(target)).unsqueeze(dim)
    picked = torch.gather(torch.log_softmax(x, dim), dim, place).squeeze(dim)
    loss = torch.where(counted, -picked, torch.zeros_like(picked))
    if reduction == _NONE:
        return loss
    total = torch.sum(loss)
    return total / torch.sum(counted.to(x.dtype)) if reduction == _MEAN else total


def _windows(size: int, out: int) -> list[tuple[int, int]]:
    return [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


@decomposition("aten.adaptive_avg_pool3d.default", fault="coremltools has no adaptive_avg_pool3d")
def adaptive_avg_pool3d_by_windows(x: Tensor, output_size: Any) -> Any:
    """The mean of each window, one axis after another. The last three sizes must be fixed."""
    import torch

    if not fixed(*x.shape[-3:], *output_size):
        return NotImplemented
    for axis, out in zip((-3, -2, -1), output_size, strict=True):
        size = x.shape[axis]
        if out == size:
            continue
        parts = [torch.mean(x.narrow(axis, a, b - a), axis, True) for a, b in _windows(size, out)]
        x = torch.cat(parts, axis) if len(parts) > 1 else parts[0]
    return x


@decomposition("aten.adaptive_max_pool1d.default", fault="coremltools writes its windows for fixed sizes only")
def adaptive_max_pool1d_by_windows(x: Tensor, output_size: Any) -> Any:
    """The largest of each window and its place. The last size must be fixed."""
    import torch

    [out] = output_size
    size = x.shape[-1]
    if not fixed(size, out) or x.dim() < 2 or fixed(*x.shape):
        return NotImplemented
    found = [torch.max(x.narrow(-1, a, b - a), -1, keepdim=True) for a, b in _windows(size, out)]
    places = [place + a for (_, place), (a, _) in zip(found, _windows(size, out), strict=True)]
    return torch.cat([value for value, _ in found], -1), torch.cat(places, -1)


@decomposition("aten.argsort.stable", fault="coremltools never reads stable=")
def stable_argsort_by_sort(x: Tensor, *, stable: bool, dim: int = -1, descending: bool = False) -> Any:
    """The places of a stable sort."""
    import torch

    return torch.sort(x, stable=stable, dim=dim, descending=descending)[1]


@decomposition("aten.quantile.scalar", fault="coremltools has no quantile")
def quantile_by_sort(
    x: Tensor, q: float, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    """A point between two of the sorted values, along a dimension of fixed size; NaN where one value is."""
    import math

    import torch

    if dim is None or x.dim() == 0 or not fixed(x.shape[dim]) or interpolation != "linear":
        return NotImplemented
    values = torch.sort(x, dim)[0]
    place = q * (x.shape[dim] - 1)
    below, above = (values.narrow(dim, int(f(place)), 1) for f in (math.floor, math.ceil))
    result = torch.lerp(below, above, place - math.floor(place)) if place % 1 else below
    bad = torch.gt(torch.sum(torch.ne(x, x).to(torch.int64), dim, True), 0)
    result = torch.where(bad, torch.full_like(result, float("nan")), result)
    return result if keepdim else result.squeeze(dim)
