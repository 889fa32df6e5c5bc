"""Sums, differences and products of 8- and 16-bit integers, computed in 32 bits and wrapped by a remainder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from build.legalize.common import result_dtype
from build.legalize.core import decomposition


def _narrow(dtype: Any) -> bool:
    import torch

    return dtype in (torch.int8, torch.uint8, torch.int16)


def _wrapped(x: Any, dtype: Any) -> Any:
    """A 32-bit integer modulo the size of ``dtype``."""
    import torch

    info = torch.iinfo(dtype)
    rest = torch.remainder(x - info.min if info.min else x, info.max - info.min + 1)
    return (rest + info.min if info.min else rest).to(dtype)


def _in_32_bits(name: str) -> Callable[..., Any]:
    def compute(x: Any, y: Any, alpha: int = 1) -> Any:
        import torch

        if isinstance(y, float) or not _narrow(dtype := result_dtype(x, y)) or alpha != 1:
            return NotImplemented
        if isinstance(y, torch.Tensor):
            other = y.to(torch.int32)
        else:  # a number beyond the type is taken modulo its size
            info = torch.iinfo(dtype)
            other = (int(y) - info.min) % (info.max - info.min + 1) + info.min
        return _wrapped(getattr(torch, name)(x.to(torch.int32), other), dtype)

    return compute


_FAULT = "Core ML computes with 32-bit integers: coremltools refuses 8-bit ones, and never lets 16-bit ones wrap around"

for _name in ("add", "sub", "mul"):
    decomposition(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar", fault=_FAULT, name=f"{_name}_wrapped")(
        _in_32_bits(_name)
    )


@decomposition("aten.neg.default", fault=_FAULT)
def neg_wrapped(x: Any) -> Any:
    """Zero minus the integer: the smallest one stays."""
    import torch

    return _wrapped(torch.neg(x.to(torch.int32)), x.dtype) if _narrow(x.dtype) else NotImplemented
