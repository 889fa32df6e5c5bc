"""What several rewrites share: questions about sizes and dtypes. Registers nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def fixed(*sizes: Any) -> bool:
    """Whether every size is a plain integer (a symbolic one is chosen at run time)."""
    return all(isinstance(size, int) for size in sizes)


def pair(value: int | Sequence[int]) -> tuple[int, int]:
    """A per-axis option that ATen lets callers write once for both axes."""
    if isinstance(value, int):
        return value, value
    values = list(value)
    return values[0], values[-1]


def is_float(*values: Any) -> bool:
    """Whether the result of an arithmetic op on these tensors and numbers is floating point."""
    import torch

    return bool(result_dtype(*values).is_floating_point) if len(values) > 1 else torch.is_floating_point(values[0])


def result_dtype(left: Any, right: Any) -> Any:
    """The dtype that type promotion gives for two tensors or numbers, at least one of them a tensor."""
    import torch

    return torch.result_type(left, right)


def as_dtype(value: Any, dtype: Any) -> Any:
    """A tensor cast to ``dtype`` when it has another; a number is left alone."""
    import torch

    return value.to(dtype) if isinstance(value, torch.Tensor) and value.dtype != dtype else value


def dims_of(x: Tensor, dim: int | Sequence[int] | None) -> list[int]:
    """Non-negative dimensions that a reduction's ``dim`` means: None and the empty list mean all."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return list(range(x.dim()))
    return [d % x.dim() for d in ([dim] if isinstance(dim, int) else dim)]


def torch_decomposition(name: str) -> Callable[..., Any]:
    """PyTorch's own decomposition of the op ``name``, from ``torch._decomp.decomposition_table``.

    ``torch.export.default_decompositions()`` is no source here: for many ops it holds the op's own composite kernel,
    which a rewrite of that op replaces, so that the rewrite would call itself.
    """

    def decompose(*args: Any, **kwargs: Any) -> Any:
        from torch._decomp import decomposition_table

        from build.legalize.core import resolve_op

        return decomposition_table[resolve_op(name)](*args, **kwargs)

    decompose.__name__ = decompose.__qualname__ = name.split(".")[1]
    return decompose
