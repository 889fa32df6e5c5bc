"""Variance with any correction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from build.legalize.common import dims_of
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


@decomposition("aten.var.correction", fault="OpenVINO's var knows only the corrections 0 and 1")
def var_any_correction(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: Any = 1, keepdim: bool = False
) -> Any:
    """Two passes: the mean, then the mean square of the deviations, divided by ``n - correction`` (at least 0)."""
    import torch

    if correction is None or correction in (0, 1):
        return NotImplemented
    dims = dims_of(x, dim)
    count: Any = 1
    for d in dims:
        count = count * x.shape[d]
    deviation = x - torch.mean(x, dims, keepdim=True)
    mean_square = torch.mean(deviation * deviation, dims, keepdim=keepdim)
    if isinstance(count, int):
        rest = max(count - correction, 0)
        return mean_square * (count / rest) if rest else mean_square * float("inf")
    total = torch.scalar_tensor(count, dtype=x.dtype)
    return mean_square * total / torch.clamp(total - correction, min=0)


@decomposition("aten.std.correction", fault="OpenVINO's std knows only the corrections 0 and 1")
def std_any_correction(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: Any = 1, keepdim: bool = False
) -> Any:
    """The square root of the variance."""
    import torch

    variance = var_any_correction(x, dim, correction=correction, keepdim=keepdim)
    return NotImplemented if variance is NotImplemented else torch.sqrt(variance)
