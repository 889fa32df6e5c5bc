"""Variance with its correction and its dimensions written out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from build.legalize.common import dims_of, fixed
from build.legalize.core import decomposition
from build.legalize.variance import std_any_correction, var_any_correction

if TYPE_CHECKING:
    from torch import Tensor

_FAULT = "coremltools divides by n where correction= is left out (it is 1 then), and by a negative n - correction"


def _given(function: Any, written_out: Any, x: Tensor, dim: Any, correction: Any, keepdim: bool) -> Any:
    dims = dims_of(x, dim)
    sizes = [x.shape[d] for d in dims]
    count = 1
    for size in sizes if fixed(*sizes) else []:
        count *= size
    if correction is not None and fixed(*sizes) and count < correction:
        return written_out(x, dims, correction=correction, keepdim=keepdim)
    if correction is not None and dim is not None and len(dim) > 0:
        return NotImplemented
    return function(x, dims, correction=1 if correction is None else correction, keepdim=keepdim)


@decomposition("aten.var.correction", fault=_FAULT)
def var_correction_given(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    """The default correction of 1 and the list of all dimensions, in so many words."""
    import torch

    return _given(torch.var, var_any_correction, x, dim, correction, keepdim) if x.dim() else NotImplemented


@decomposition("aten.std.correction", fault=_FAULT)
def std_correction_given(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    """As ``var_correction_given``."""
    import torch

    return _given(torch.std, std_any_correction, x, dim, correction, keepdim) if x.dim() else NotImplemented
