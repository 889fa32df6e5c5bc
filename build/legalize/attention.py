"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from build.legalize.core import decomposition, once

if TYPE_CHECKING:
    from torch import Tensor


def _repeat_heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values repeated so that each query head has its own."""

    def spread(x: Tensor) -> Tensor:
        times = query.shape[-3] // x.shape[-3]
        if times == 1:
            return x
        shape = list(x.shape)
        wide = x.unsqueeze(-3).expand([*shape[:-2], times, *shape[-2:]])
        return wide.reshape([*shape[:-3], shape[-3] * times, *shape[-2:]])

    return spread(key), spread(value)


@decomposition(
    "aten.scaled_dot_product_attention.default",
    fault="coremltools never reads enable_gqa=; OpenVINO and litert-torch fail on it",
)
def grouped_query_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Grouped-query attention as plain attention with repeated keys and values."""
    import torch.nn.functional as F

    if not enable_gqa:
        return NotImplemented
    key, value = _repeat_heads(query, key, value)
    return F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)


@decomposition("aten.scaled_dot_product_attention.default", fault="onnxscript takes four dimensions only")
def attention_of_three_dimensions(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention without heads as attention with one head."""
    import torch.nn.functional as F

    if query.dim() != 3:
        return NotImplemented
    mask = attn_mask.unsqueeze(1) if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
    query, key, value = (x.unsqueeze(1) for x in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, mask, dropout_p, is_causal, scale=scale).squeeze(1)


def _blind(mask: Tensor) -> Tensor:
    """Which queries may see nothing: ``[..., L, 1]``, from a bool mask or one that is added to the scores.

    By a maximum of zeros and ones: OpenVINO's maximum of infinities is finite.
    """
    import torch

    seen = mask if mask.dtype is torch.bool else torch.ne(mask, float("-inf"))
    return torch.eq(torch.amax(seen.to(torch.float32), -1, True), 0.0)


def _seeing(mask: Tensor, blind: Tensor) -> Tensor:
    """The mask, with blind queries let see everything: what they compute is thrown away, and is no NaN until then."""
    import torch

    if mask.dtype is torch.bool:
        return torch.logical_or(mask, blind)
    return torch.where(blind, torch.zeros_like(mask), mask)


@decomposition(
    "aten.scaled_dot_product_attention.default",
    fault="OpenVINO and ONNX Runtime give NaN or a mean for a row that is masked throughout; PyTorch gives zeros",
)
@once()
def attention_of_blind_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """The same attention, and zeros for queries that may see nothing."""
    import torch
    import torch.nn.functional as F

    if attn_mask is None:
        return NotImplemented
    if enable_gqa:
        key, value = _repeat_heads(query, key, value)
    blind = _blind(attn_mask)
    out = F.scaled_dot_product_attention(query, key, value, _seeing(attn_mask, blind), dropout_p, scale=scale)
    return torch.where(blind, torch.zeros_like(out), out)


@decomposition(
    "aten.scaled_dot_product_attention.default",
    fault="Core ML inverts bool masks; LiteRT and others give NaN for a row that is masked throughout",
)
def attention_by_matmul(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention as two products and a softmax; a query that may see nothing gets zeros, as in PyTorch."""
    import torch

    if dropout_p > 0.0:
        return NotImplemented
    if enable_gqa:
        key, value = _repeat_heads(query, key, value)
    # PyTorch scales both factors by the square root, which keeps the product in range (math kernel of SDPA).
    factor = math.sqrt(1 / math.sqrt(query.shape[-1]) if scale is None else abs(scale))
    left = query * (-factor if scale is not None and scale < 0 else factor)
    scores = torch.matmul(left, (key * factor).transpose(-2, -1))
    if is_causal:
        rows = torch.arange(query.shape[-2]).unsqueeze(-1)
        attn_mask = torch.ge(rows, torch.arange(key.shape[-2]).unsqueeze(0))
    if attn_mask is None:
        return torch.matmul(torch.softmax(scores, -1), value)
    blind = None if is_causal else _blind(attn_mask)  # a causal row always sees its first key
    mask = attn_mask if blind is None else _seeing(attn_mask, blind)
    if mask.dtype is torch.bool:
        scores = torch.where(mask, scores, torch.full_like(scores, float("-inf")))
    else:
        scores = scores + mask
    out = torch.matmul(torch.softmax(scores, -1), value)
    return out if blind is None else torch.where(blind, torch.zeros_like(out), out)
