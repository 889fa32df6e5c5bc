"""Logical ops on numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from build.legalize.core import decomposition

_FAULT = "coremltools casts numbers to bool, and Core ML merges that with the cast before: 0.5 -> 0 -> False is True"


def _on_bools(name: str) -> Callable[..., Any]:
    def decompose(*values: Any) -> Any:
        import torch

        if all(v.dtype is torch.bool for v in values):
            return NotImplemented
        return getattr(torch, name)(*(v if v.dtype is torch.bool else torch.ne(v, 0) for v in values))

    return decompose


for _name in ("logical_and", "logical_or", "logical_xor", "logical_not"):
    decomposition(f"aten.{_name}.default", fault=_FAULT, name=f"{_name}_of_numbers")(_on_bools(_name))


def _on_bool(name: str) -> Callable[..., Any]:
    def decompose(x: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        return NotImplemented if x.dtype is torch.bool else getattr(torch, name)(torch.ne(x, 0), *args, **kwargs)

    return decompose


for _name in ("any", "all"):
    decomposition(
        *(f"aten.{_name}.{form}" for form in ("default", "dim", "dims")),
        fault="coremltools takes the largest (smallest) of the values as int32: any of 0.5, or of -1 and 0, is False",
        name=f"{_name}_of_numbers",
    )(_on_bool(_name))
