"""Weights stored as small integers, turned back into floats inside the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


@decomposition(
    "torchao.dequantize_affine.default",
    fault="ExecuTorch's XNNPACK loses the scale of torchao's weight-only quantisation",
)
def dequantize_by_product(
    x: Tensor,
    block_size: Any,
    scale: Tensor,
    zero_point: Any,
    input_dtype: Any,
    quant_min: Any = None,
    quant_max: Any = None,
    output_dtype: Any = None,
) -> Any:
    """``(q - zero_point) * scale`` for scales per tensor or per row (blocks that fill every other dimension)."""
    import torch

    dtype = output_dtype or torch.float32
    grid = [n // b for n, b in zip(x.shape, block_size, strict=True)]
    whole = all(g == 1 or g == n for g, n in zip(grid, x.shape, strict=True))
    if not whole or x.dtype not in (torch.int8, torch.uint8, torch.int32):
        return NotImplemented
    value = x.to(dtype)
    if zero_point is not None:
        value = value - zero_point.to(dtype).reshape(grid)
    return value * scale.to(dtype).reshape(grid)
