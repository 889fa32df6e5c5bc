"""Scaling keywords, reciprocals, one-sided clamps, interpolation, rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.common import as_dtype, result_dtype
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor

_ALPHA = "coremltools never reads alpha=; litert-torch's add does not take it"


@decomposition("aten.add.Tensor", "aten.add.Scalar", fault=_ALPHA)
def add_alpha(x: Any, y: Any, *positional: Any, alpha: Any = 1) -> Any:
    """``x + alpha * y`` as a product and a sum."""
    factor = positional[0] if positional else alpha
    return NotImplemented if factor == 1 else x + as_dtype(y, result_dtype(x, y)) * factor


@decomposition("aten.sub.Tensor", "aten.sub.Scalar", fault=_ALPHA)
def sub_alpha(x: Any, y: Any, *positional: Any, alpha: Any = 1) -> Any:
    """``x - alpha * y`` as a product and a difference."""
    factor = positional[0] if positional else alpha
    return NotImplemented if factor == 1 else x - as_dtype(y, result_dtype(x, y)) * factor


@decomposition("aten.rsub.Tensor", "aten.rsub.Scalar", fault=_ALPHA)
def rsub_alpha(x: Any, y: Any, *positional: Any, alpha: Any = 1) -> Any:
    """``y - alpha * x`` as a product, a negation and a sum (``y - x`` of a number would be ``rsub`` again)."""
    factor = positional[0] if positional else alpha
    scaled = as_dtype(x, result_dtype(x, y))
    return -(scaled if factor == 1 else scaled * factor) + y


@decomposition("aten.reciprocal.default", fault="Core ML's inverse adds an epsilon of 1e-4 to its input")
def reciprocal_by_division(x: Tensor) -> Tensor:
    """``1 / x``, a true division."""
    import torch

    return torch.div(torch.ones_like(x), x)


@decomposition("aten.rsqrt.default", fault="Core ML's rsqrt adds an epsilon of 1e-12 to its input")
def rsqrt_by_division(x: Tensor) -> Tensor:
    """``1 / sqrt(x)``; integers are promoted to the default float type, as PyTorch does."""
    import torch

    root = torch.sqrt(x)
    return torch.div(torch.ones_like(root), root)


@decomposition("aten.clamp.default", fault="coremltools fails on a clamp with one bound, and drops NaN")
def clamp_one_sided(x: Tensor, min: Any = None, max: Any = None) -> Any:
    """A clamp with one bound as maximum or minimum with a constant; NaN stays NaN, as in PyTorch."""
    import torch

    if (min is None) == (max is None):
        return NotImplemented
    bound = max if min is None else min
    y = as_dtype(x, result_dtype(x, bound))
    limit = torch.full_like(y, bound)
    return torch.minimum(y, limit) if min is None else torch.maximum(y, limit)


@decomposition("aten.clamp.Tensor", fault="coremltools and litert-torch fail on a clamp with tensor bounds")
def clamp_tensor_bounds(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    """Maximum with the lower bound, then minimum with the upper one (PyTorch's order when they cross)."""
    import torch

    y = x
    for bound, function in ((min, torch.maximum), (max, torch.minimum)):
        if bound is not None:
            y = function(y, bound)
    return y


@decomposition("aten.lerp.Scalar", fault="coremltools has no lerp")
def lerp_scalar(start: Tensor, end: Tensor, weight: float) -> Tensor:
    """Linear interpolation, computed from the nearer end as PyTorch does (exact at weight 1)."""
    delta = end - start
    return start + delta * weight if abs(weight) < 0.5 else end - delta * (1 - weight)


@decomposition("aten.trunc.default", fault="coremltools and OpenVINO have no trunc")
def trunc_by_floor(x: Tensor) -> Any:
    """``sign(x) * floor(|x|)``; an integer tensor is returned as it is."""
    import torch

    return torch.sign(x) * torch.floor(torch.abs(x)) if x.is_floating_point() else x.clone()


@decomposition("aten.frac.default", fault="litert-torch and OpenVINO have no frac")
def frac_by_floor(x: Tensor) -> Tensor:
    """``x - trunc(x)``."""
    import torch

    return x - torch.sign(x) * torch.floor(torch.abs(x))


@decomposition("aten.round.decimals", fault="coremltools and OpenVINO ignore decimals= of round")
def round_decimals(x: Tensor, *, decimals: int) -> Any:
    """Scale, round half to even, scale back: PyTorch's own order of operations."""
    import torch

    if not x.is_floating_point():
        return NotImplemented
    if decimals == 0:
        return torch.round(x)
    ten_power = 10.0 ** abs(decimals)
    return torch.round(x * ten_power) / ten_power if decimals > 0 else torch.round(x / ten_power) * ten_power


@decomposition("aten.sgn.default", fault="coremltools has no sgn")
def sgn_by_sign(x: Tensor) -> Any:
    """Sign of a real tensor (a complex one is left alone)."""
    import torch

    return NotImplemented if x.is_complex() else torch.sign(x)


@decomposition("aten.addcmul.default", fault="coremltools has no addcmul")
def addcmul_by_product(x: Tensor, left: Tensor, right: Tensor, *, value: Any = 1) -> Tensor:
    """``x + value * left * right``."""
    return x + (left * right if value == 1 else value * left * right)


@decomposition("aten.addcdiv.default", fault="coremltools has no addcdiv")
def addcdiv_by_quotient(x: Tensor, left: Tensor, right: Tensor, *, value: Any = 1) -> Tensor:
    """``x + value * left / right``."""
    return x + (left if value == 1 else value * left) / right


_SCALED = "coremltools multiplies an integer alpha= or beta= with floats and fails; ExecuTorch's pass ignores them"


@decomposition("aten.addmm.default", fault=_SCALED)
def addmm_scaled(bias: Tensor, left: Tensor, right: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """``beta * bias + alpha * left @ right``; a beta of zero drops the bias, NaN and all, as PyTorch does."""
    import torch

    if beta == 1 and alpha == 1:
        return NotImplemented
    return _affine(bias, torch.mm(left, right), beta, alpha)


@decomposition("aten.baddbmm.default", fault=_SCALED)
def baddbmm_scaled(bias: Tensor, left: Tensor, right: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """``beta * bias + alpha * left @ right``, batched."""
    import torch

    return _affine(bias, torch.bmm(left, right), beta, alpha)


def _affine(bias: Tensor, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    if product.is_floating_point():
        beta, alpha = float(beta), float(alpha)
    scaled = product if alpha == 1 else product * alpha
    if beta == 0:
        return scaled
    return (bias if beta == 1 else bias * beta) + scaled
