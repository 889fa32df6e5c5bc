"""Activation functions in terms of exponentials, comparisons and selects."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from build.legalize.common import as_dtype, torch_decomposition
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


@decomposition("aten.gelu.default", fault="coremltools never reads approximate='tanh'")
def gelu_tanh(x: Tensor, *, approximate: str = "none") -> Any:
    """The tanh approximation written out (Hendrycks and Gimpel 2016)."""
    import torch

    if approximate != "tanh":
        return NotImplemented
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


@decomposition("aten.celu.default", fault="coremltools has no celu")
def celu_by_exp(x: Tensor, alpha: float = 1.0) -> Tensor:
    """``max(0, x) + min(0, alpha * (exp(x / alpha) - 1))``."""
    import torch

    return torch.where(x > 0, x, alpha * torch.expm1(x / alpha))


@decomposition("aten.threshold.default", fault="coremltools's threshold is a maximum, right for equal numbers only")
def threshold_by_select(x: Tensor, threshold: Any, value: Any) -> Tensor:
    """``value`` where ``x`` is not above the threshold; NaN stays."""
    import torch

    return torch.where(torch.le(x, threshold), torch.full_like(x, value), x)


@decomposition("aten.softplus.default", fault="coremltools never reads softplus's threshold")
def softplus_threshold(x: Tensor, beta: Any = 1, threshold: Any = 20) -> Any:
    """``x`` above the threshold, ``log(1 + exp(beta * x)) / beta`` below; from 20 up float32 cannot tell them apart."""
    import torch

    if threshold >= 20:
        return NotImplemented
    scaled = x * beta
    smooth = (torch.relu(scaled) + torch.log1p(torch.exp(-torch.abs(scaled)))) / beta
    return torch.where(torch.gt(scaled, threshold), x, smooth)


@decomposition("aten.log_sigmoid.default", fault="coremltools and ExecuTorch have no log_sigmoid")
def log_sigmoid_by_log1p(x: Tensor) -> Tensor:
    """``min(x, 0) - log(1 + exp(-|x|))``: no overflow on either side."""
    import torch

    return torch.minimum(x, torch.zeros_like(x)) - torch.log1p(torch.exp(-torch.abs(x)))


_LOG_SOFTMAX = "coremltools takes the logarithm of a softmax, -inf at extreme values; litert loses the difference"


@decomposition("aten._log_softmax.default", fault=_LOG_SOFTMAX)
def log_softmax_shifted(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """``x - max - log(sum(exp(x - max)))``; an infinite maximum gives NaN, as in PyTorch."""
    import torch

    y = x.to(torch.float32) if half_to_float else x
    shifted = y - torch.amax(y, dim, True)
    return shifted - torch.log(torch.sum(torch.exp(shifted), dim, True))


@decomposition("aten.log_softmax.int", fault=_LOG_SOFTMAX)
def log_softmax_int_shifted(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """As ``log_softmax_shifted``, with the dtype that export keeps."""
    import torch

    return torch.log_softmax(as_dtype(x, dtype), dim) if dtype not in (None, x.dtype) else log_softmax_shifted(x, dim)


@decomposition("aten.softmax.int", fault="coremltools never reads dtype= of softmax; onnxscript fails on integers")
def softmax_dtype(x: Tensor, dim: int, dtype: Any = None) -> Any:
    """Cast first, then softmax."""
    import torch

    return NotImplemented if dtype in (None, x.dtype) else torch.softmax(x.to(dtype), dim)


for _op in (
    "selu.default",
    "mish.default",
    "hardshrink.default",
    "softshrink.default",
    "log_sigmoid_forward.default",
    "logit.default",
):
    _name = _op.split(".")[0] + "_written_out"
    decomposition(
        f"aten.{_op}", fault=f"coremltools has no {_op.split('.')[0]}, or reads its arguments wrongly", name=_name
    )(torch_decomposition(f"aten.{_op}"))
