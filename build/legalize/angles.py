"""The angle of a point, signs of zero and infinities included."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


def _negative(x: Tensor) -> Tensor:
    """Whether the sign bit is set, that of -0.0 included (1 / -0.0 is -inf)."""
    import torch

    return torch.logical_or(torch.lt(x, 0), torch.lt(torch.ones_like(x) / x, 0))


@decomposition("aten.atan2.default", fault="torch.onnx writes atan2 as atan(y / x), which is off by pi at x = -0.0")
def atan2_by_quadrant(y: Tensor, x: Tensor) -> Any:
    """``atan(|y| / |x|)`` in the first quadrant, then mirrored by the signs."""
    import torch

    if not (y.is_floating_point() and x.is_floating_point()):
        return NotImplemented
    high, wide = torch.abs(y), torch.abs(x)
    first = torch.atan(high / wide)
    first = torch.where(torch.eq(high, 0), torch.where(torch.ne(wide, wide), wide, torch.zeros_like(high)), first)
    both_infinite = torch.logical_and(torch.eq(high, math.inf), torch.eq(wide, math.inf))
    first = torch.where(both_infinite, torch.full_like(first, math.pi / 4), first)
    upper = torch.where(_negative(x), math.pi - first, first)
    return torch.where(_negative(y), -upper, upper)
