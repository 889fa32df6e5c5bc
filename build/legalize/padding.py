"""Padding modes and amounts that converters lack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from build.legalize.common import fixed
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


def _crop(x: Tensor, pad: Sequence[int]) -> Tensor:
    """Remove what negative amounts ask for."""
    for i in range(len(pad) // 2):
        dim = x.dim() - 1 - i
        before, after = max(-pad[2 * i], 0), max(-pad[2 * i + 1], 0)
        if before or after:
            x = x.narrow(dim, before, x.shape[dim] - before - after)
    return x


def _constant(x: Tensor, pad: Sequence[Any], value: Any) -> Any:
    import torch

    if not fixed(*pad) or not any(p < 0 for p in pad):
        return NotImplemented
    y = _crop(x, pad)
    amounts = [max(p, 0) for p in pad]
    return torch.ops.aten.constant_pad_nd.default(y, amounts, value) if any(amounts) else y.clone()


@decomposition("aten.constant_pad_nd.default", fault="coremltools and ExecuTorch fail on negative padding (cropping)")
def constant_pad_negative(x: Tensor, pad: Sequence[Any], value: Any = 0) -> Any:
    """Crop where the amount is negative, pad where it is positive."""
    return _constant(x, pad, value)


@decomposition(
    "aten.constant_pad_nd.default", "aten.pad.default", fault="coremltools pads by symbolic amounts in 1-D only"
)
def constant_pad_symbolic(x: Tensor, pad: Sequence[Any], *options: Any, **keywords: Any) -> Any:
    """Padding by amounts known only at run time, as concatenation with constant tensors."""
    import torch

    settings = [o for o in options if not isinstance(o, str)]
    mode = next((o for o in options if isinstance(o, str)), keywords.get("mode", "constant"))
    if fixed(*pad) or mode != "constant":
        return NotImplemented
    value = keywords.get("value", settings[0] if settings else 0)
    y = x
    for i in range(len(pad) // 2):
        dim = x.dim() - 1 - i
        parts = [y]
        for amount, place in ((pad[2 * i], 0), (pad[2 * i + 1], len(parts))):
            if isinstance(amount, int) and amount == 0:
                continue
            shape = [amount if d == dim else n for d, n in enumerate(y.shape)]
            parts.insert(place if place == 0 else len(parts), torch.full(shape, value or 0, dtype=x.dtype))
        y = torch.cat(parts, dim) if len(parts) > 1 else y
    return y


@decomposition("aten.pad.default", fault="coremltools has no circular padding, and fails on negative amounts")
def pad_circular(x: Tensor, pad: Sequence[Any], mode: str = "constant", value: float | None = None) -> Any:
    """Circular padding as concatenation of slices; constant padding with negative amounts as a crop."""
    import torch

    if mode == "constant":
        return _constant(x, pad, 0 if value is None else value)
    if mode != "circular" or not fixed(*pad):
        return NotImplemented
    y = _crop(x, pad)
    for i in range(len(pad) // 2):
        dim, before, after = x.dim() - 1 - i, max(pad[2 * i], 0), max(pad[2 * i + 1], 0)
        parts = [y]
        if before:
            parts.insert(0, y.narrow(dim, y.shape[dim] - before, before))
        if after:
            parts.append(y.narrow(dim, 0, after))
        y = torch.cat(parts, dim) if len(parts) > 1 else y
    return y
