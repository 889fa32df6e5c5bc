"""Variance with any correction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from build.legalize.common import dims_of
from build.legalize.core import Decomposition, decomposition

if TYPE_CHECKING:
    from torch import Tensor


@decomposition("aten.var.correction", fault="OpenVINO's var knows only the corrections 0 and 1")
def var_any_correction(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: Any = 1, keepdim: bool = False
) -> Any:
    """Two passes: the mean, then the mean square of the deviations, divided by ``n - correction`` (at least 0)."""
    import torch

    if correction is None or correction in (0, 1):
        return NotImplemented
    dims = dims_of(x, dim)
    count: Any = 1
    for d in dims:
        count = count * x.shape[d]
    deviation = x - torch.mean(x, dims, keepdim=True)
    mean_square = torch.mean(deviation * deviation, dims, keepdim=keepdim)
    if isinstance(count, int):
        rest = max(count - correction, 0)
        return mean_square * (count / rest) if rest else mean_square * float("inf")
    total = torch.scalar_tensor(count, dtype=x.dtype)
    return mean_square * total / torch.clamp(total - correction, min=0)


@decomposition("aten.std.correction", fault="OpenVINO's std knows only the corrections 0 and 1")
def std_any_correction(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: Any = 1, keepdim: bool = False
) -> Any:
    """The square root of the variance."""
    import torch

    variance = var_any_correction(x, dim, correction=correction, keepdim=keepdim)
    return NotImplemented if variance is NotImplemented else torch.sqrt(variance)


def _of_all(name: str) -> Decomposition:
    """``name`` over all dimensions, each kept at size 1, and then reshaped to a scalar."""

    def spread(x: Tensor, *options: Any, correction: Any = None, keepdim: bool = False) -> Any:
        import torch

        # the overloads: (x, unbiased), (x, dim, unbiased, keepdim), (x, dim, *, correction, keepdim)
        given: list[Any] = [None, *options] if options and isinstance(options[0], bool) else list(options)
        given += [None, True, keepdim][len(given) :]
        dim, unbiased, keep = given
        if keep or x.dim() == 0 or len(dims_of(x, dim)) < x.dim():
            return NotImplemented
        correction = int(unbiased) if correction is None else correction
        found = getattr(torch, name)(x, list(range(x.dim())), correction=correction, keepdim=True)
        return tuple(t.reshape([]) for t in found) if isinstance(found, tuple) else found.reshape([])

    return spread


for _name in ("var", "std", "var_mean", "std_mean"):
    decomposition(
        *(f"aten.{_name}{overload}" for overload in (".default", ".dim", ".correction")),
        fault="LiteRT's variance of everything has a dimension of size 1 too many",
        name=f"{_name}_of_all",
    )(_of_all(_name))
