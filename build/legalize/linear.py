"""Products of vectors and matrices in forms that a converter lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


@decomposition("aten.matmul.default", fault="coremltools gives a product with a vector one dimension too many")
def matmul_vector(left: Tensor, right: Tensor) -> Any:
    """A product with a vector as a product with a one-column (one-row) matrix."""
    import torch

    if right.dim() == 1 and left.dim() > 1:
        return torch.matmul(left, right.unsqueeze(-1)).squeeze(-1)
    if left.dim() == 1 and right.dim() > 1:
        return torch.matmul(left.unsqueeze(0), right).squeeze(-2)
    return NotImplemented


@decomposition("aten.mv.default", fault="coremltools gives a product with a vector one dimension too many")
def mv_by_mm(left: Tensor, right: Tensor) -> Tensor:
    """Matrix by vector as matrix by matrix."""
    import torch

    return torch.mm(left, right.unsqueeze(-1)).squeeze(-1)


@decomposition("aten.outer.default", fault="coremltools has no outer for symbolic sizes")
def outer_by_product(left: Tensor, right: Tensor) -> Tensor:
    """A column times a row, by broadcasting."""
    return left.unsqueeze(-1) * right.unsqueeze(0)


@decomposition("aten.kron.default", fault="coremltools has no kron")
def kron_by_product(left: Tensor, right: Tensor) -> Any:
    """Each element of ``left`` times the whole of ``right``, by broadcasting and one reshape."""
    rank = max(left.dim(), right.dim())
    a = [1] * (rank - left.dim()) + list(left.shape)
    b = [1] * (rank - right.dim()) + list(right.shape)
    wide = left.reshape([n for size in a for n in (size, 1)]) * right.reshape([n for size in b for n in (1, size)])
    return wide.reshape([p * q for p, q in zip(a, b, strict=True)])


@decomposition("aten.cdist.default", fault="coremltools and onnxscript fail on cdist")
def cdist_by_difference(left: Tensor, right: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Any:
    """Distances from the differences themselves, without the cancellation of ``|a|^2 + |b|^2 - 2ab``."""
    import torch

    apart = torch.abs(left.unsqueeze(-2) - right.unsqueeze(-3))
    if p == 2.0:
        return torch.sqrt(torch.sum(apart * apart, -1))
    if p == 1.0:
        return torch.sum(apart, -1)
    if p == float("inf"):
        return torch.amax(apart, -1)
    if p == 0.0:
        return torch.sum(torch.ne(apart, 0).to(left.dtype), -1)
    return torch.pow(torch.sum(torch.pow(apart, p), -1), 1.0 / p)
