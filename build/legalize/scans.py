"""Running products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.common import fixed
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


@decomposition("aten.cumprod.default", fault="OpenVINO and onnxscript have no cumprod")
def cumprod_by_doubling(x: Tensor, dim: int, *, dtype: Any = None) -> Any:
    """Running product in about log2(n) steps (Hillis and Steele 1986); the size of ``dim`` must be fixed.

    Factors are grouped differently than in PyTorch's loop: equal up to rounding.
    """
    import torch

    if x.dim() == 0 or not fixed(x.shape[dim]):
        return NotImplemented
    if dtype is None and not x.is_floating_point():
        dtype = torch.int64
    y = x if dtype is None or dtype == x.dtype else x.to(dtype)
    size, step = y.shape[dim], 1
    while step < size:
        head = torch.ones_like(y.narrow(dim, 0, step))
        y = y * torch.cat([head, y.narrow(dim, 0, size - step)], dim)
        step *= 2
    return y
