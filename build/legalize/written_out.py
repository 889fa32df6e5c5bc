"""Elementwise ops that OpenVINO's frontend has no rule for, by ops that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.common import as_dtype, result_dtype
from build.legalize.core import Decomposition, decomposition, once

if TYPE_CHECKING:
    from torch import Tensor


def _floats(*values: Any) -> list[Any]:
    """Operands in the float type of the result: PyTorch's default one where all are whole numbers."""
    import torch

    dtype = result_dtype(values[0], values[-1])
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    return [as_dtype(v, dtype) for v in values]


@decomposition("aten.exp2.default", fault="OpenVINO has no exp2")
def exp2_by_power(x: Tensor) -> Tensor:
    """Two to the power of ``x``."""
    import torch

    (x,) = _floats(x)
    return torch.pow(torch.full_like(x, 2.0), x)


@decomposition("aten.ldexp.Tensor", fault="OpenVINO has no ldexp")
def ldexp_by_power(x: Tensor, exponent: Tensor) -> Tensor:
    """``x * 2 ** exponent``."""
    import torch

    (exponent,) = _floats(exponent)
    return x * torch.pow(torch.full_like(exponent, 2.0), exponent)


@decomposition("aten.hypot.default", fault="OpenVINO has no hypot, and its maximum loses NaN")
def hypot_with_nan(x: Tensor, y: Tensor) -> Any:
    """The larger magnitude times the root of 1 plus the squared ratio: nothing overflows; infinity beats NaN."""
    import torch

    a, b = (torch.abs(v) for v in _floats(x, y))
    less = torch.lt(a, b)
    large, small = torch.where(less, b, a), torch.where(less, a, b)
    ratio = small / torch.where(torch.eq(large, 0), torch.ones_like(large), large)
    length = large * torch.sqrt(ratio * ratio + 1)
    infinite = torch.logical_or(torch.eq(a, float("inf")), torch.eq(b, float("inf")))
    return torch.where(infinite, torch.full_like(length, float("inf")), length)


def _power_of_two(n: Tensor) -> Tensor:
    """``2 ** n`` for n from 0 to 31 modulo 32 bits: a factor for each bit of n."""
    import torch

    result = torch.ones_like(n)
    for bit in (1, 2, 4, 8, 16):
        held = torch.ne(torch.bitwise_and(n, torch.full_like(n, bit)), 0)
        result = result * (held.to(torch.int32) * (2**bit - 1) + 1)
    return result


def _shift(left: bool) -> Decomposition:
    def shift(x: Tensor, amount: Tensor) -> Any:
        import torch

        small = (torch.int8, torch.uint8, torch.int16, torch.int32)
        if x.dtype not in small or amount.dtype not in small or result_dtype(x, amount) != x.dtype:
            return NotImplemented
        wide, n = x.to(torch.int32), amount.to(torch.int32)
        longest = torch.iinfo(x.dtype).bits - (1 if left else 2)
        inside = torch.logical_and(torch.ge(n, 0), torch.le(n, longest))
        factor = _power_of_two(torch.clamp(n, 0, longest))
        if left:
            return torch.where(inside, wide * factor, torch.zeros_like(wide)).to(x.dtype)
        if x.dtype is torch.uint8:
            return NotImplemented
        sign = -torch.lt(wide, 0).to(torch.int32)
        return torch.where(inside, torch.div(wide, factor, rounding_mode="floor"), sign).to(x.dtype)

    return shift


for _name, _side in (("lshift", "left"), ("rshift", "right")):
    decomposition(
        f"aten.__{_name}__.Tensor",
        f"aten.bitwise_{_side}_shift.Tensor",
        fault="OpenVINO's frontend has no shifts",
        name=f"{_side}_shift_by_tensor",
    )(_shift(_side == "left"))


@decomposition(
    "aten.gcd.default",
    fault="OpenVINO's gcd takes rows of equal sizes, reads beyond a shorter one, and keeps the signs of numbers",
)
@once()
def gcd_of_rows(x: Tensor, y: Tensor) -> Any:
    """Both operands' magnitudes, expanded to the common shape and flattened."""
    import torch

    a, b = torch.broadcast_tensors(torch.abs(x), torch.abs(y))
    return torch.gcd(a.reshape(-1), b.reshape(-1)).reshape(a.shape)
