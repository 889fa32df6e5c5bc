"""Bitwise ops with a number, and shifts by a fixed amount."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.common import as_dtype, result_dtype
from build.legalize.core import Decomposition, decomposition

if TYPE_CHECKING:
    from torch import Tensor

#: a shift beyond this leaves no bit of an int64 but the sign.
_LONGEST_SHIFT = 62


def _with_tensor(name: str) -> Decomposition:
    def bitwise(x: Tensor, other: Any) -> Tensor:
        import torch

        # A number of a higher kind widens the result: a bool tensor and 6 give int64.
        wide = as_dtype(x, result_dtype(x, other))
        result: Tensor = getattr(torch, name)(wide, torch.full_like(wide, other))
        return result

    return bitwise


for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    decomposition(
        f"aten.{_name}.Scalar",
        f"aten.__{_name.removeprefix('bitwise_')}__.Scalar",
        fault="OpenVINO's frontend takes bitwise ops between tensors only",
        name=f"{_name}_tensors",
    )(_with_tensor(_name))


@decomposition(
    "aten.__lshift__.Scalar",
    "aten.bitwise_left_shift.Tensor_Scalar",
    fault="OpenVINO's frontend has no shifts",
)
def left_shift_by_product(x: Tensor, amount: Any) -> Any:
    """``x << n`` of integers as a product with ``2**n``: equal modulo the integer's size, as a shift is."""
    if x.is_floating_point() or not isinstance(amount, int) or not 0 <= amount <= _LONGEST_SHIFT:
        return NotImplemented
    return x * (1 << amount)


def _sign_bit(x: Tensor, amount: int) -> Tensor:
    """``x >> amount`` where ``2**amount`` is no number of x's type: what is left is the sign, or one bit of uint8."""
    import torch

    if x.dtype is torch.uint8:
        return torch.ge(x, 128).to(x.dtype) if amount == 7 else torch.zeros_like(x)
    return -torch.lt(x, 0).to(x.dtype)


@decomposition(
    "aten.__rshift__.Scalar",
    "aten.bitwise_right_shift.Tensor_Scalar",
    fault="OpenVINO's frontend has no shifts",
)
def right_shift_by_division(x: Tensor, amount: Any) -> Any:
    """``x >> n`` of integers as floor division by ``2**n``: PyTorch's shift keeps the sign."""
    import torch

    if x.is_floating_point() or not isinstance(amount, int) or not 0 <= amount <= _LONGEST_SHIFT:
        return NotImplemented
    if amount >= torch.iinfo(x.dtype).bits - 1:
        return _sign_bit(x, amount)
    by = 1 << amount
    quotient = torch.div(x, by, rounding_mode="trunc")
    rest = x - quotient * by
    return quotient - torch.lt(rest, 0).to(x.dtype)
