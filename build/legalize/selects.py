"""Selects whose result is larger than what they select from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


def _broadcast(*shapes: Any) -> list[Any]:
    """The common shape; a size counts as 1 when it is the number 1, never when it is unknown."""
    rank = max(len(s) for s in shapes)
    padded = [[1] * (rank - len(s)) + list(s) for s in shapes]
    return [next((n for n in sizes if not (isinstance(n, int) and n == 1)), 1) for sizes in zip(*padded, strict=True)]


@decomposition(
    "aten.where.self", fault="Core ML's select is declared with the shape of its values, whatever the condition's is"
)
def where_of_full_size(condition: Tensor, x: Tensor, y: Tensor) -> Any:
    """The first value expanded to the result's shape, where neither has it and coremltools does not see to it."""
    import torch

    result = _broadcast(condition.shape, x.shape, y.shape)
    values = _broadcast(x.shape, y.shape)
    unknown = [isinstance(n, int) for n in values] != [isinstance(n, int) for n in result]
    if (
        len(values) == len(result)
        and not unknown
        and all(n == 1 or m != 1 for n, m in zip(result, values, strict=True))
    ):
        return NotImplemented
    if all(isinstance(n, int) for n in result):
        return NotImplemented  # coremltools broadcasts fixed sizes itself
    return torch.where(condition, x.expand(result), y)
