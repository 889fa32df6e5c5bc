"""Normalisation layers fed with deviations from the mean, so that a one-pass kernel does not cancel.

``LayerNorm(x)`` equals ``LayerNorm(x - m)`` for any ``m`` shared by the normalised group. With ``m`` near the mean,
``E[x^2] - E[x]^2`` loses nothing, the runtime's own fused kernel stays in use, and what the rounding of ``m`` leaves of
the mean is removed by that kernel: more exact than a mean taken once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor

_FAULT = "kernels take E[x^2] - E[x]^2 (ExecuTorch) or round the mean once (LiteRT): wrong when the mean is large"


@decomposition("aten.layer_norm.default", fault=_FAULT)
def layer_norm_centred(
    x: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, _cudnn: bool = True
) -> Any:
    """LayerNorm of the deviations."""
    import torch

    centred = x - torch.mean(x, list(range(-len(normalized_shape), 0)), True)
    return torch.ops.aten.native_layer_norm.default(centred, normalized_shape, weight, bias, eps)[0]


@decomposition("aten.group_norm.default", fault=_FAULT)
def group_norm_centred(
    x: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, _cudnn: bool = True
) -> Any:
    """GroupNorm of the deviations, each group of channels as one row of a LayerNorm without weights."""
    import torch

    return _by_rows(torch, x, groups, weight, bias, eps)


@decomposition("aten.instance_norm.default", fault=_FAULT)
def instance_norm_centred(
    x: Tensor,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    _cudnn: bool,
) -> Any:
    """InstanceNorm by the input's own statistics: a GroupNorm with one channel per group."""
    import torch

    if not use_input_stats or running_mean is not None:
        return NotImplemented
    return _by_rows(torch, x, x.shape[1], weight, bias, eps)


def _by_rows(torch: Any, x: Any, groups: int, weight: Any, bias: Any, eps: float) -> Any:
    # Written out, not native_layer_norm: its row length must be a constant, and height and width may be dynamic.
    rows = x.reshape([x.shape[0], groups, -1])
    centred = rows - torch.mean(rows, [-1], True)
    centred = centred - torch.mean(centred, [-1], True)
    spread = torch.sqrt(torch.mean(centred * centred, [-1], True) + eps)
    y = (centred / spread).reshape(x.shape)
    shape = [1, x.shape[1]] + [1] * (x.dim() - 2)
    if weight is not None:
        y = y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)
