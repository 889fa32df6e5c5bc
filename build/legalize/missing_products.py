"""Products of tensors that a converter lacks, by those that it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from build.legalize.common import fixed
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


@decomposition("aten.bilinear.default", fault="coremltools has no bilinear layer")
def bilinear_by_matmul(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """The first factor by all matrices at once, then products with the second, summed."""
    import torch

    if not fixed(*weight.shape):
        return NotImplemented
    out, left, right = weight.shape
    table = weight.permute(1, 0, 2).reshape(left, out * right)
    rows = torch.matmul(x, table).reshape([*x.shape[:-1], out, right])
    result = torch.matmul(rows, y.unsqueeze(-1)).squeeze(-1)
    return result if bias is None else result + bias


@decomposition("aten.tensordot.default", fault="coremltools has no tensordot")
def tensordot_by_matmul(x: Tensor, y: Tensor, dims_self: Sequence[int], dims_other: Sequence[int]) -> Any:
    """One product of matrices. The contracted sizes must be fixed."""
    import torch

    left, right = [d % x.dim() for d in dims_self], [d % y.dim() for d in dims_other]
    sizes = [x.shape[d] for d in left]
    if not fixed(*sizes) or sizes != [y.shape[d] for d in right]:
        return NotImplemented
    inner = 1
    for size in sizes:
        inner *= size
    rows = [d for d in range(x.dim()) if d not in left]
    columns = [d for d in range(y.dim()) if d not in right]
    outer = [x.shape[d] for d in rows], [y.shape[d] for d in columns]
    a = x.permute(rows + left)
    b = y.permute(right + columns)
    a = a.reshape(-1, inner) if len(rows) != 1 or len(left) != 1 else a
    b = b.reshape(inner, -1) if len(columns) != 1 or len(right) != 1 else b
    return torch.mm(a, b).reshape([*outer[0], *outer[1]])


def _without_repeats(term: str, x: Tensor) -> tuple[str, Tensor]:
    """Diagonals in place of subscripts that occur twice; a diagonal's own dimension comes last."""
    import torch

    for letter in dict.fromkeys(term.replace(".", "")):
        while term.count(letter) > 1:
            first, second = term.index(letter), term.rindex(letter)
            x = torch.diagonal(x, 0, first, second)
            term = "".join(c for i, c in enumerate(term) if i not in (first, second)) + letter
    return term, x


@decomposition("aten.einsum.default", fault="coremltools takes a repeated subscript for a new dimension")
def einsum_of_diagonals(equation: str, tensors: Any, *, path: Any = None) -> Any:
    """Where an operand's subscripts repeat: its diagonal, then the equation of single subscripts."""
    import torch

    source, arrow, result = equation.replace(" ", "").partition("->")
    terms = source.split(",")
    if not arrow or "." in equation or all(len(set(t)) == len(t) for t in terms):
        return NotImplemented
    parts = [_without_repeats(t, x) for t, x in zip(terms, tensors, strict=True)]
    if len(parts) > 1:
        return torch.einsum(",".join(t for t, _ in parts) + "->" + result, [x for _, x in parts])
    [(term, x)] = parts
    summed = [i for i, letter in enumerate(term) if letter not in result]
    kept = "".join(letter for letter in term if letter in result)
    x = torch.sum(x, summed) if summed else x
    return x if kept == result else x.permute([kept.index(letter) for letter in result])


@decomposition("aten.cross.default", fault="coremltools has no cross")
def cross_by_linalg_cross(x: Tensor, y: Tensor, dim: int | None = None) -> Any:
    """``linalg.cross`` of the first dimension of size 3, or of the one that is named."""
    import torch

    found = next((d for d, n in enumerate(x.shape) if isinstance(n, int) and n == 3), None) if dim is None else dim
    return NotImplemented if found is None else torch.linalg.cross(x, y, dim=found)


@decomposition("aten.hypot.default", fault="coremltools has no hypot")
def hypot_scaled(x: Tensor, y: Tensor) -> Any:
    """The larger magnitude times the root of 1 plus the squared ratio, which does not overflow."""
    import torch

    if not x.is_floating_point() or x.dtype != y.dtype:
        return NotImplemented
    a, b = torch.abs(x), torch.abs(y)
    large, small = torch.maximum(a, b), torch.minimum(a, b)
    ratio = small / torch.where(torch.eq(large, 0), torch.ones_like(large), large)
    length = large * torch.sqrt(1 + ratio * ratio)
    infinite = torch.logical_or(torch.eq(a, float("inf")), torch.eq(b, float("inf")))
    return torch.where(infinite, torch.full_like(length, float("inf")), length)
