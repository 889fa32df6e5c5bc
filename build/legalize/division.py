"""Division with rounding and remainders, exact: no float round trip for integers, no wrong side of a boundary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.common import as_dtype, result_dtype
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor

#: Splitting constants 2**ceil(p/2) + 1 for p significant bits (Veltkamp 1968, Dekker 1971).
_SPLIT = {"float16": 65.0, "float32": 4097.0, "float64": 134217729.0}


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` as a sum of two tensors whose products with another such half are exact."""
    scaled = x * _SPLIT[str(x.dtype).removeprefix("torch.")]
    high = scaled - (scaled - x)
    return high, x - high


def _product_error(left: Tensor, right: Tensor, product: Tensor) -> Tensor:
    """``left * right - product`` exactly (Dekker's two-product)."""
    (lh, ll), (rh, rl) = _halves(left), _halves(right)
    return ((lh * rh - product) + lh * rl + ll * rh) + ll * rl


def _floor_quotient(x: Tensor, y: Tensor) -> Tensor:
    """``floor(x / y)`` of the true quotient.

    The rounded quotient can reach an integer that the true one stays under (1 / 0.1 in float32). The sign of the
    exact remainder tells. Follows ``c10::div_floor_floating`` at zero and infinity.
    """
    import torch

    rounded = torch.div(x, y)
    quotient = torch.floor(rounded)
    product = quotient * y
    remainder = (x - product) - _product_error(quotient, y, product)
    overshoot = torch.logical_or(
        torch.logical_and(torch.lt(remainder, 0), torch.gt(y, 0)),
        torch.logical_and(torch.gt(remainder, 0), torch.lt(y, 0)),
    )
    quotient = torch.where(overshoot, quotient - 1, quotient)
    # x / inf is 0 or -0: the floor of a tiny negative quotient is -1; inf / y has no remainder: NaN (inf at y = 0).
    infinite = torch.logical_and(torch.eq(torch.abs(y), float("inf")), torch.lt(torch.abs(x), float("inf")))
    opposite = torch.lt(torch.sign(x) * torch.sign(y), 0)
    quotient = torch.where(torch.logical_and(infinite, opposite), torch.full_like(quotient, -1.0), quotient)
    lost = torch.logical_and(torch.eq(torch.abs(x), float("inf")), torch.ne(y, 0))
    return torch.where(lost, torch.full_like(quotient, float("nan")), quotient)


def _both(x: Any, y: Any) -> tuple[Any, Any, Any]:
    """Operands as tensors or numbers of the result's dtype, and that dtype."""
    dtype = result_dtype(x, y)
    return as_dtype(x, dtype), as_dtype(y, dtype), dtype


@decomposition(
    "aten.div.Tensor_mode",
    "aten.div.Scalar_mode",
    "aten.floor_divide.default",
    "aten.floor_divide.Scalar",
    fault="OpenVINO and onnxscript floor the rounded quotient of floats, one too high near a boundary",
)
def float_floor_division(x: Tensor, y: Any, *, rounding_mode: str | None = "floor") -> Any:
    """Floor division of floats, exact while the quotient is below 2**24 in float32 (all that float32 can tell)."""
    import torch

    a, b, dtype = _both(x, y)
    if rounding_mode != "floor" or str(dtype).removeprefix("torch.") not in _SPLIT:
        return NotImplemented
    return _floor_quotient(a, b if isinstance(b, torch.Tensor) else torch.full_like(a, b))


@decomposition(
    "aten.div.Tensor_mode",
    "aten.div.Scalar_mode",
    fault="onnxscript and coremltools divide integers as float32 when a rounding mode is given",
)
def int_division_by_floor(x: Tensor, y: Any, *, rounding_mode: str | None) -> Any:
    """Rounded division of integers in terms of ``floor_divide``, which those converters do in integers."""
    import torch

    a, b, dtype = _both(x, y)
    if rounding_mode is None or dtype.is_floating_point:
        return NotImplemented
    floor = torch.floor_divide(a, b)
    if rounding_mode == "floor":
        return floor
    short = torch.logical_and(torch.ne(a - floor * b, 0), torch.lt(floor, 0))
    return floor + short.to(dtype)


@decomposition(
    "aten.floor_divide.default",
    "aten.floor_divide.Scalar",
    "aten.div.Tensor_mode",
    "aten.div.Scalar_mode",
    fault="OpenVINO and ExecuTorch truncate integer floor division of negatives",
)
def int_floor_division_by_trunc(x: Tensor, y: Any, *, rounding_mode: str | None = "floor") -> Any:
    """Floor division of integers in terms of truncating division, in integers throughout."""
    import torch

    a, b, dtype = _both(x, y)
    if rounding_mode != "floor" or dtype.is_floating_point:
        return NotImplemented
    quotient = torch.div(a, b, rounding_mode="trunc")
    remainder = a - quotient * b
    negative = torch.ne(torch.lt(remainder, 0), torch.lt(b, 0) if isinstance(b, torch.Tensor) else b < 0)
    over = torch.logical_and(torch.ne(remainder, 0), negative)
    return quotient - over.to(dtype)


@decomposition(
    "aten.div.Tensor_mode",
    "aten.div.Scalar_mode",
    fault="litert-torch and coremltools round a truncating float division through ops they lack",
)
def float_trunc_division(x: Tensor, y: Any, *, rounding_mode: str | None) -> Any:
    """Truncating division of floats: the truncated rounded quotient, which is PyTorch's own definition."""
    import torch

    a, b, dtype = _both(x, y)
    if rounding_mode != "trunc" or not dtype.is_floating_point:
        return NotImplemented
    quotient = torch.div(a, b)
    return torch.sign(quotient) * torch.floor(torch.abs(quotient))


@decomposition("aten.fmod.Tensor", "aten.fmod.Scalar", fault="coremltools has no fmod")
def fmod_by_remainder(x: Tensor, y: Any) -> Tensor:
    """``fmod`` as the remainder of the magnitudes with the sign of ``x``: the two agree on non-negative operands."""
    import torch

    a, b, _ = _both(x, y)
    magnitude = torch.remainder(torch.abs(a), torch.abs(b) if isinstance(b, torch.Tensor) else abs(b))
    return torch.where(torch.lt(a, 0), -magnitude, magnitude)


@decomposition(
    "aten.remainder.Tensor",
    "aten.remainder.Scalar",
    fault="onnxscript computes the float remainder from a rounded quotient; its fmod is exact",
)
def float_remainder_by_fmod(x: Tensor, y: Any) -> Any:
    """The remainder with the sign of ``y``, from the exact ``fmod`` (``c10``'s own definition)."""
    import torch

    a, b, dtype = _both(x, y)
    if not dtype.is_floating_point:
        return NotImplemented
    rest = torch.fmod(a, b)
    other_sign = torch.ne(torch.lt(rest, 0), torch.lt(b, 0) if isinstance(b, torch.Tensor) else b < 0)
    return torch.where(torch.logical_and(torch.ne(rest, 0), other_sign), rest + b, rest)


@decomposition(
    "aten.remainder.Tensor",
    "aten.remainder.Scalar",
    fault="ExecuTorch and OpenVINO give integer % the sign of the dividend",
)
def int_remainder_by_trunc(x: Tensor, y: Any) -> Any:
    """The remainder with the sign of ``y``, in integers, from truncating division."""
    import torch

    a, b, dtype = _both(x, y)
    if dtype.is_floating_point:
        return NotImplemented
    rest = a - torch.div(a, b, rounding_mode="trunc") * b
    other_sign = torch.ne(torch.lt(rest, 0), torch.lt(b, 0) if isinstance(b, torch.Tensor) else b < 0)
    wrong = torch.logical_and(torch.ne(rest, 0), other_sign)
    return rest + wrong.to(dtype) * b
