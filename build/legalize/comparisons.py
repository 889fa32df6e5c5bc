"""Tests of single values: infinite, NaN, close; casts to bool; mixed-type selects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


@decomposition("aten.isinf.default", fault="coremltools has no isinf")
def isinf_by_compare(x: Tensor) -> Any:
    """``|x| == inf`` (no integer is infinite)."""
    import torch

    return torch.eq(torch.abs(x), float("inf")) if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)


@decomposition("aten.isnan.default", fault="coremltools's isnan compares after a cast that may drop NaN")
def isnan_by_compare(x: Tensor) -> Tensor:
    """``x != x``."""
    import torch

    return torch.ne(x, x)


@decomposition("aten.isfinite.default", fault="coremltools has no isfinite")
def isfinite_by_compare(x: Tensor) -> Tensor:
    """``x - x == 0``: NaN for NaN and for infinity."""
    import torch

    return torch.eq(x - x, 0)


@decomposition("aten.isclose.default", fault="coremltools has no isclose")
def isclose_by_compare(x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    """PyTorch's definition: equal, or finitely near; NaN is near NaN when asked."""
    import torch

    same = torch.eq(x, y)
    if equal_nan and x.is_floating_point():
        same = torch.logical_or(same, torch.logical_and(torch.ne(x, x), torch.ne(y, y)))
    if rtol == 0 and atol == 0:
        return same
    left, right = (t if t.is_floating_point() else t.to(torch.get_default_dtype()) for t in (x, y))
    distance = torch.abs(left - right)
    near = torch.logical_and(torch.le(distance, atol + torch.abs(rtol * right)), torch.eq(distance - distance, 0))
    return torch.logical_or(same, near)


@decomposition("aten.to.dtype", "aten._to_copy.default", fault="Core ML merges float->int->bool casts into one")
def cast_to_bool(x: Tensor, dtype: Any = None, *_: Any, **__: Any) -> Any:
    """A cast to bool as ``x != 0``."""
    import torch

    if dtype is not torch.bool or x.dtype is torch.bool:
        return NotImplemented
    return torch.ne(x, 0)
