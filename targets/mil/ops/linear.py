"""Matrix products and attention. Sums run in float32 for fp16 too; their order is torch's."""

from __future__ import annotations

import math
from typing import Any

from ..registry import Args, operation


def _promoted(x: Any, y: Any) -> tuple[Any, Any]:
    """From iOS 17 on one side may be integer: the product is then in floats."""
    if x.is_floating_point() == y.is_floating_point():
        return x, y
    return x.float(), y.float()


@operation("matmul")
def _matmul(args: Args) -> Any:
    x, y = _promoted(args["x"], args["y"])
    if args.flag("transpose_x", False) and x.dim() > 1:
        x = x.transpose(-1, -2)
    if args.flag("transpose_y", False) and y.dim() > 1:
        y = y.transpose(-1, -2)
    return x @ y


@operation("linear")
def _linear(args: Args) -> Any:
    import torch.nn.functional as functional

    (x, weight), bias = _promoted(args["x"], args["weight"]), args.get("bias")
    if x.is_floating_point():
        return functional.linear(x, weight, None if bias is None else bias.to(x.dtype))
    product = x @ weight.t()
    return product if bias is None else product + bias


@operation("einsum")
def _einsum(args: Args) -> Any:
    """``nchw,nwhu->nchu`` and ``chw,whr->chr``; dimensions of size 1 broadcast, which torch's einsum does as well."""
    import torch

    return torch.einsum(args.text("equation"), *args.many("values"))


@operation("scaled_dot_product_attention")
def _attention(args: Args) -> Any:
    """softmax(q kᵀ / √E + mask) v; False in a boolean mask means minus infinity, so a fully masked row is NaN."""
    import torch

    query, key, value, mask = args["query"], args["key"], args["value"], args.get("attn_mask")
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return torch.softmax(scores, -1) @ value
