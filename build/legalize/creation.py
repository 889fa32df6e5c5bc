"""Tensors made from nothing: their dtype by a cast, because a converter may not read the keyword."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor

_DTYPE = "coremltools never reads dtype= of creation ops and makes them float32"


def _is_default(dtype: Any) -> bool:
    import torch

    return dtype is None or dtype == torch.get_default_dtype()


@decomposition("aten.zeros.default", fault=_DTYPE)
def zeros_dtype(size: Any, *, dtype: Any = None, **_: Any) -> Any:
    """Zeros of the default dtype, cast."""
    import torch

    return NotImplemented if _is_default(dtype) else torch.zeros(size).to(dtype)


@decomposition("aten.eye.default", fault=_DTYPE)
def eye_dtype(n: Any, *, dtype: Any = None, **_: Any) -> Any:
    """An identity matrix of the default dtype, cast."""
    import torch

    return NotImplemented if _is_default(dtype) else torch.eye(n).to(dtype)


@decomposition("aten.eye.m", fault=_DTYPE)
def eye_m_dtype(n: Any, m: Any, *, dtype: Any = None, **_: Any) -> Any:
    """A rectangular identity matrix of the default dtype, cast."""
    import torch

    return NotImplemented if _is_default(dtype) else torch.eye(n, m).to(dtype)


@decomposition("aten.zeros_like.default", fault=_DTYPE)
def zeros_like_dtype(x: Tensor, *, dtype: Any = None, **_: Any) -> Any:
    """Zeros like the cast tensor."""
    import torch

    return NotImplemented if dtype in (None, x.dtype) else torch.zeros_like(x.to(dtype))


@decomposition("aten.ones_like.default", fault=_DTYPE)
def ones_like_dtype(x: Tensor, *, dtype: Any = None, **_: Any) -> Any:
    """Ones like the cast tensor."""
    import torch

    return NotImplemented if dtype in (None, x.dtype) else torch.ones_like(x.to(dtype))


@decomposition("aten.full_like.default", fault=_DTYPE)
def full_like_dtype(x: Tensor, fill_value: Any, *, dtype: Any = None, **_: Any) -> Any:
    """A constant like the cast tensor."""
    import torch

    return NotImplemented if dtype in (None, x.dtype) else torch.full_like(x.to(dtype), fill_value)


@decomposition("aten.new_zeros.default", fault=_DTYPE)
def new_zeros_dtype(x: Tensor, size: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    """Zeros of the default dtype, cast to the asked one (or the tensor's)."""
    import torch

    return torch.zeros(size, dtype=dtype or x.dtype)


@decomposition("aten.new_full.default", fault=_DTYPE)
def new_full_dtype(x: Tensor, size: Any, fill_value: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    """A constant tensor of the asked dtype (or the tensor's)."""
    import torch

    return torch.full(size, fill_value, dtype=dtype or x.dtype)


@decomposition(
    "aten.arange.default",
    "aten.arange.start",
    "aten.arange.start_step",
    fault="coremltools never reads arange's dtype=",
)
def arange_dtype(*bounds: Any, dtype: Any = None, **_: Any) -> Any:
    """Whole bounds give an integer range; it is cast afterwards."""
    import torch

    whole = not any(isinstance(b, (float, torch.SymFloat)) for b in bounds)
    if dtype in (None, torch.int64) or not whole:
        return NotImplemented
    return torch.arange(*bounds).to(dtype)


@decomposition("aten.scalar_tensor.default", fault=_DTYPE)
def scalar_tensor_dtype(value: Any, *, dtype: Any = None, **_: Any) -> Any:
    """A scalar as a full tensor of no dimensions."""
    import torch

    return torch.full([], value, dtype=dtype or torch.get_default_dtype())
