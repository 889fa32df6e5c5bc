"""Rewrites of integer ops that litert-torch or LiteRT's kernels lack: small integers, identities, one-hot, low bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor

_SMALL = "LiteRT's kernels do not compare, and its converter does not widen, integers of 8 and 16 bits"
_SMALL_DTYPES = ("torch.int8", "torch.uint8", "torch.int16")


def _is_small(value: Any) -> bool:
    return str(getattr(value, "dtype", "")) in _SMALL_DTYPES


def _comparison(name: str) -> Any:
    def compare(left: Tensor, right: Any) -> Any:
        import torch

        if not _is_small(left):
            return NotImplemented
        other = right.to(torch.int32) if isinstance(right, torch.Tensor) and _is_small(right) else right
        return getattr(torch, name)(left.to(torch.int32), other)

    return compare


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    decomposition(f"aten.{_name}.Scalar", f"aten.{_name}.Tensor", fault=_SMALL, name=f"{_name}_of_small_integers")(
        _comparison(_name)
    )


@decomposition("aten.sum.default", fault=_SMALL)
def sum_of_small_integers(x: Tensor, *, dtype: Any = None) -> Any:
    """The sum of 8-bit and 16-bit integers, widened to 64 bits first, as PyTorch does inside the sum."""
    import torch

    return torch.sum(x.to(dtype or torch.int64)) if _is_small(x) else NotImplemented


@decomposition("aten.sum.dim_IntList", fault=_SMALL)
def sum_dim_of_small_integers(x: Tensor, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """As ``sum_of_small_integers``, over some dimensions."""
    import torch

    return torch.sum(x.to(dtype or torch.int64), dim, keepdim) if _is_small(x) else NotImplemented


_EYE = "litert-torch lowers eye to an iota that LiteRT has no kernel for"


@decomposition("aten.eye.default", fault=_EYE)
def eye_by_compare(n: int, *, dtype: Any = None, **_kwargs: Any) -> Tensor:
    """The identity matrix from a comparison of positions."""
    return eye_m_by_compare(n, n, dtype=dtype)


@decomposition("aten.eye.m", fault=_EYE)
def eye_m_by_compare(n: int, m: int, *, dtype: Any = None, **_kwargs: Any) -> Tensor:
    """A matrix with ones on the diagonal from a comparison of positions."""
    import torch

    return torch.eq(torch.arange(n).unsqueeze(1), torch.arange(m)).to(dtype or torch.get_default_dtype())


@decomposition("aten.one_hot.default", fault="litert-torch cannot read the check that one_hot decomposes to")
def one_hot_by_compare(x: Tensor, num_classes: int = -1) -> Any:
    """One-hot rows from a comparison with every class. The number of classes must be given."""
    import torch

    if num_classes < 0:
        return NotImplemented
    return torch.eq(x.unsqueeze(-1), torch.arange(num_classes)).to(torch.int64)


@decomposition("aten.bitwise_and.Scalar", "aten.__and__.Scalar", fault="LiteRT has no bitwise and of integers")
def low_bits_by_remainder(x: Tensor, mask: Any) -> Any:
    """The low bits of an integer (a mask of ones) as a remainder: the same in two's complement, negatives included."""
    import torch

    if isinstance(mask, bool) or x.dtype is torch.bool or mask <= 0 or (mask & (mask + 1)) != 0:
        return NotImplemented
    wide = x.to(torch.int32) if _is_small(x) else x
    return torch.remainder(wide, mask + 1).to(x.dtype)


@decomposition("aten.abs.default", fault="LiteRT's abs takes no 64-bit integers")
def abs_of_wide_integers(x: Tensor) -> Any:
    """The negative of what is negative."""
    import torch

    return torch.where(x < 0, torch.neg(x), x) if x.dtype is torch.int64 else NotImplemented


@decomposition("aten.bitwise_not.default", fault="LiteRT has no bitwise_not of 64-bit integers")
def not_of_wide_integers(x: Tensor) -> Any:
    """``~x`` is ``-x - 1`` in two's complement."""
    import torch

    return torch.sub(torch.neg(x), 1) if x.dtype is torch.int64 else NotImplemented


@decomposition(
    "aten.__xor__.Tensor",
    "aten.bitwise_xor.Tensor",
    "aten.logical_xor.default",
    fault="LiteRT has an exclusive or of integers, not of booleans",
)
def bool_xor_by_ne(x: Tensor, y: Any) -> Any:
    """Two booleans of which one is true are two that differ."""
    import torch

    both = isinstance(y, torch.Tensor) and x.dtype is torch.bool and y.dtype is torch.bool
    return torch.ne(x, y) if both else NotImplemented
