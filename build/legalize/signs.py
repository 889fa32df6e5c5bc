"""The sign of a number, NaN included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


@decomposition("aten.sign.default", "aten.sgn.default", fault="ExecuTorch's sign of NaN is NaN; PyTorch's is 0")
def sign_of_nan(x: Tensor) -> Any:
    """``(x > 0) - (x < 0)``: both comparisons are false for NaN."""
    import torch

    if x.dtype is torch.bool or x.is_complex():
        return NotImplemented
    return torch.gt(x, 0).to(x.dtype) - torch.lt(x, 0).to(x.dtype)
