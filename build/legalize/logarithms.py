"""Logarithms of sums of exponentials, written so that neither end overflows and small results keep their digits.

NaN passes each of them, also where the runtime's own exponential or maximum loses it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from build.legalize.common import fixed, torch_decomposition
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor

#: below it the series are right to float32's last digits, above it the plain forms are right to five.
_NEAR_ZERO = 0.05


def _series(x: Tensor, coefficients: list[float]) -> Tensor:
    """``x * (c0 + x * (c1 + …))``."""
    result: Any = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        result = x * result + c
    return x * result  # type: ignore[no-any-return]


def _log1p(x: Tensor) -> Tensor:
    import torch

    small = _series(x, [(-1) ** n / (n + 1) for n in range(7)])
    return torch.where(torch.lt(torch.abs(x), _NEAR_ZERO), small, torch.log(x + 1))


@decomposition("aten.log1p.default", fault="OpenVINO and ONNX take log(1 + x), and 1 + 1e-9 is 1")
def log1p_near_zero(x: Tensor) -> Any:
    """The first terms of the series near zero."""
    return _log1p(x) if x.is_floating_point() else NotImplemented


@decomposition("aten.expm1.default", fault="OpenVINO and ONNX take exp(x) - 1, which is 0 for 1e-9")
def expm1_near_zero(x: Tensor) -> Any:
    """The first terms of the series near zero."""
    import torch

    if not x.is_floating_point():
        return NotImplemented
    small = _series(x, [1 / math.factorial(n) for n in range(1, 7)])
    return torch.where(torch.lt(torch.abs(x), _NEAR_ZERO), small, torch.exp(x) - 1)


def _with_nan(x: Tensor, value: Tensor) -> Tensor:
    import torch

    return torch.where(torch.eq(x, x), value, x)


def _log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    import torch

    decay = torch.exp(-torch.abs(x))
    negative = torch.where(torch.lt(x, 0), x, torch.zeros_like(x))
    return _with_nan(x, negative - _log1p(decay)), decay


_UNDERFLOW = "OpenVINO and ONNX take the logarithm of a sigmoid: -inf below -88"


@decomposition("aten.log_sigmoid.default", fault=_UNDERFLOW)
def log_sigmoid_with_nan(x: Tensor) -> Tensor:
    """``min(x, 0) - log(1 + exp(-|x|))``."""
    return _log_sigmoid(x)[0]


@decomposition("aten.log_sigmoid_forward.default", fault=_UNDERFLOW)
def log_sigmoid_forward_with_nan(x: Tensor) -> tuple[Tensor, Tensor]:
    """As ``log_sigmoid_with_nan``, with the exponential that PyTorch keeps for the gradient."""
    return _log_sigmoid(x)


@decomposition("aten.softplus.default", fault="OpenVINO's softplus gives -1.9e-6 at -20, and its logarithm NaN")
def softplus_by_log1p(x: Tensor, beta: Any = 1, threshold: Any = 20) -> Tensor:
    """``max(bx, 0) + log(1 + exp(-|bx|))``, divided by ``b``; ``x`` itself above the threshold."""
    import torch

    scaled = x * beta
    positive = torch.where(torch.gt(scaled, 0), scaled, torch.zeros_like(scaled))
    smooth = (positive + _log1p(torch.exp(-torch.abs(scaled)))) / beta
    return _with_nan(x, torch.where(torch.gt(scaled, threshold), x, smooth))


_BCE = "aten.binary_cross_entropy_with_logits.default"
decomposition(
    _BCE,
    fault="OpenVINO and ONNX lose its log_sigmoid below -88; coremltools has none",
    name="bce_with_logits_written_out",
)(torch_decomposition(_BCE))


def _log_add(a: Tensor, b: Tensor, base: float = math.e) -> Tensor:
    import torch

    unit = math.log(base)
    apart = _log1p(torch.exp(-torch.abs(a - b) * unit)) / unit
    # two equal infinities have no difference
    return torch.where(torch.eq(a, b), a + math.log(2) / unit, torch.maximum(a, b) + apart)


_OVERFLOW = "onnxscript sums the plain exponentials: inf above 88 and -inf below; coremltools has none"


@decomposition("aten.logaddexp.default", fault=_OVERFLOW)
def logaddexp_shifted(a: Tensor, b: Tensor) -> Any:
    """The larger, and the logarithm of 1 plus the smaller one's share."""
    return _log_add(a, b) if a.dtype == b.dtype and a.is_floating_point() else NotImplemented


@decomposition("aten.logaddexp2.default", fault=_OVERFLOW)
def logaddexp2_shifted(a: Tensor, b: Tensor) -> Any:
    """As ``logaddexp_shifted``, to base 2."""
    return _log_add(a, b, 2.0) if a.dtype == b.dtype and a.is_floating_point() else NotImplemented


@decomposition("aten.logcumsumexp.default", fault=_OVERFLOW)
def logcumsumexp_by_doubling(x: Tensor, dim: int) -> Any:
    """Running ``logaddexp`` in about log2(n) steps (Hillis and Steele 1986); the size of ``dim`` must be fixed."""
    import torch

    if x.dim() == 0 or not fixed(x.shape[dim]) or not x.is_floating_point():
        return NotImplemented
    size, step = x.shape[dim], 1
    while step < size:
        head = torch.full_like(x.narrow(dim, 0, step), float("-inf"))
        x = _log_add(x, torch.cat([head, x.narrow(dim, 0, size - step)], dim))
        step *= 2
    return x
