"""Sorting, for runtimes that have only top-k."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.common import fixed
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


def _sort(x: Tensor, dim: int, descending: bool) -> Any:
    """Values and indices by counting, per element, how many come before it: stable, NaN last (first if descending)."""
    import torch

    if x.dim() == 0 or not fixed(x.shape[dim]) or x.shape[dim] > 256:
        return NotImplemented
    size = x.shape[dim]
    y = x.movedim(dim, -1)
    mine, other = y.unsqueeze(-1), y.unsqueeze(-2)
    before = torch.gt(other, mine) if descending else torch.lt(other, mine)
    equal = torch.eq(other, mine)
    if y.is_floating_point():
        mine_nan, other_nan = torch.ne(mine, mine), torch.ne(other, other)
        ahead, behind = (other_nan, mine_nan) if descending else (mine_nan, other_nan)
        before = torch.logical_or(before, torch.logical_and(ahead, torch.logical_not(behind)))
        equal = torch.logical_or(equal, torch.logical_and(mine_nan, other_nan))
    places = torch.arange(size)
    earlier = torch.lt(places.unsqueeze(0), places.unsqueeze(1))
    before = torch.logical_or(before, torch.logical_and(equal, earlier))
    rank = torch.sum(before.to(torch.int64), -1)
    hits = torch.eq(rank.unsqueeze(-2), places.unsqueeze(1)).to(torch.int64)
    indices = torch.sum(hits * places, -1)
    return torch.gather(y, -1, indices).movedim(-1, dim), indices.movedim(-1, dim)


@decomposition("aten.sort.default", fault="ExecuTorch has no sort")
def sort_by_rank(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    """A stable sort of up to 256 elements by comparing all pairs."""
    return _sort(x, dim, descending)


@decomposition("aten.sort.stable", fault="ExecuTorch has no sort")
def stable_sort_by_rank(x: Tensor, *, stable: Any = None, dim: int = -1, descending: bool = False) -> Any:
    """As ``sort_by_rank``."""
    return _sort(x, dim, descending)


@decomposition("aten.argsort.default", fault="ExecuTorch has no sort")
def argsort_by_rank(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    """The indices of ``sort_by_rank``."""
    found = _sort(x, dim, descending)
    return found if found is NotImplemented else found[1]
