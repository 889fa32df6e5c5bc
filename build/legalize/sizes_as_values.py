"""Sizes that are chosen at run time, used as numbers."""

from __future__ import annotations

from typing import Any

from build.legalize.core import decomposition


@decomposition("aten.full.default", fault="coremltools makes a float tensor of a size that it does not know yet NaN")
def full_of_a_size(size: Any, fill_value: Any, *, dtype: Any = None, **_: Any) -> Any:
    """Ones, times the size."""
    import torch

    if isinstance(fill_value, (bool, int, float, complex)):
        return NotImplemented
    default = torch.int64 if isinstance(fill_value, torch.SymInt) else torch.get_default_dtype()
    return torch.full(size, 1, dtype=dtype or default) * fill_value
