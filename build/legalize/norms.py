"""Normalisation layers in two passes: the mean first, then the mean square of the deviations from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor

_CANCELLATION = "ExecuTorch's kernels take E[x^2] - E[x]^2, wrong or NaN when the mean is large"


def _standardise(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """``(x - mean) / sqrt(var + eps)``, the mean, and ``1 / sqrt(var + eps)``."""
    import torch

    mean = torch.mean(x, dims, True)
    deviation = x - mean
    spread = torch.sqrt(torch.mean(deviation * deviation, dims, True) + eps)
    return deviation / spread, mean, torch.ones_like(spread) / spread


def _wide(x: Tensor) -> Tensor:
    """Half-precision inputs are normalised in float32, as PyTorch's kernels do."""
    import torch

    return x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


def _affine(y: Tensor, weight: Tensor | None, bias: Tensor | None, shape: list[int] | None) -> Tensor:
    if weight is not None:
        y = y * (weight if shape is None else weight.reshape(shape))
    if bias is not None:
        y = y + (bias if shape is None else bias.reshape(shape))
    return y


@decomposition("aten.layer_norm.default", fault=_CANCELLATION)
def layer_norm_two_pass(
    x: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, _cudnn: bool = True
) -> Tensor:
    """LayerNorm over the last dimensions."""
    y, _, _ = _standardise(_wide(x), list(range(-len(normalized_shape), 0)), eps)
    return _affine(y, weight, bias, None).to(x.dtype)


@decomposition("aten.native_layer_norm.default", fault=_CANCELLATION)
def native_layer_norm_two_pass(x: Tensor, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    """LayerNorm, its mean and its reciprocal deviation."""
    y, mean, inverse = _standardise(_wide(x), list(range(-len(normalized_shape), 0)), eps)
    return _affine(y, weight, bias, None).to(x.dtype), mean, inverse


@decomposition(
    "aten.group_norm.default",
    fault="coremltools cannot hold a symbolic size in group_norm's reshape; " + _CANCELLATION,
)
def group_norm_two_pass(
    x: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, _cudnn: bool = True
) -> Tensor:
    """GroupNorm: each group of channels standardised over its channels and positions."""
    batch, channels = x.shape[0], x.shape[1]
    y, _, _ = _standardise(_wide(x).reshape([batch, groups, -1]), [-1], eps)
    return _affine(y.reshape(x.shape), weight, bias, [1, channels] + [1] * (x.dim() - 2)).to(x.dtype)


@decomposition("aten.instance_norm.default", fault=_CANCELLATION)
def instance_norm_two_pass(
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
    """InstanceNorm with the input's own statistics (with running ones it is a batch norm: left alone)."""
    if not use_input_stats or running_mean is not None:
        return NotImplemented
    y, _, _ = _standardise(_wide(x), list(range(2, x.dim())), eps)
    return _affine(y, weight, bias, [1, x.shape[1]] + [1] * (x.dim() - 2)).to(x.dtype)


@decomposition("aten.rms_norm.default", fault="coremltools's rms_norm ignores a small eps and scales by the maximum")
def rms_norm_written_out(x: Tensor, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Tensor:
    """``x / sqrt(mean(x^2) + eps)``; without eps, the smallest step of the type that PyTorch computes in."""
    import torch

    wide = _wide(x)
    dims = list(range(-len(normalized_shape), 0))
    margin = torch.finfo(wide.dtype).eps if eps is None else eps
    y = wide / torch.sqrt(torch.mean(wide * wide, dims, True) + margin)
    return _affine(y, weight, None, None).to(x.dtype)
