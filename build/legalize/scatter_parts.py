"""Scatter with a reduction, by plain sums and comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.common import fixed
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor

#: sources times places that are compared with each other.
_MOST_PAIRS = 2**16


@decomposition("aten.scatter_reduce.two", fault="OpenVINO's frontend has no rule for scatter_reduce")
def scatter_reduce_by_parts(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """Sums and means by ``scatter_add``; products and extremes over all pairs of a source and a place."""
    import torch

    if x.dim() == 0 or x.dtype is torch.bool:
        return NotImplemented
    src = src[tuple(slice(0, n) for n in index.shape)] if src.shape != index.shape else src
    if reduce not in ("sum", "mean"):
        return _over_pairs(x, dim % x.dim(), index, src, reduce, include_self)
    if reduce == "mean" and not x.is_floating_point():
        return NotImplemented
    count = torch.scatter_add(torch.zeros_like(x), dim, index, torch.ones_like(src))
    start = x if include_self else torch.where(torch.gt(count, 0), torch.zeros_like(x), x)
    total = torch.scatter_add(start, dim, index, src)
    if reduce == "sum":
        return total
    return total / (count + 1 if include_self else torch.where(torch.gt(count, 0), count, torch.ones_like(count)))


def _over_pairs(x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool) -> Any:
    import torch

    places, sources = x.shape[dim], index.shape[dim]
    others = [d for d in range(x.dim()) if d != dim]
    if not fixed(places, sources) or not 0 < places * sources <= _MOST_PAIRS:
        return NotImplemented
    if any(str(x.shape[d]) != str(index.shape[d]) for d in others):
        return NotImplemented
    index, src, start = (t.movedim(dim, -1) for t in (index, src, x))
    here = torch.eq(index.unsqueeze(-1), torch.arange(places))
    spread = src.unsqueeze(-1).expand(here.shape)
    found = torch.gt(torch.sum(here.to(torch.int64), -2), 0)
    if reduce == "prod":
        best = torch.prod(torch.where(here, spread, torch.ones_like(spread)), -2).to(x.dtype)
        return (start * best if include_self else torch.where(found, best, start)).movedim(-1, dim)
    if include_self:
        here = torch.cat([here, torch.ones_like(here.narrow(-2, 0, 1))], -2)
        spread = torch.cat([spread, start.unsqueeze(-2)], -2)
    best = getattr(torch, reduce)(torch.where(here, spread, _loser(spread, reduce == "amax")), -2)
    return (best if include_self else torch.where(found, best, start)).movedim(-1, dim)


def _loser(values: Tensor, maximum: bool) -> Any:
    """What wins against none of the values: an infinity, or, for integers of any width, their other extreme."""
    import torch

    if values.is_floating_point():
        return torch.full_like(values, float("-inf") if maximum else float("inf"))
    return torch.amin(values) if maximum else torch.amax(values)
