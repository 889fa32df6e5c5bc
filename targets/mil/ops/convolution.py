"""Convolution and its transpose.

The documentation describes ``same`` twice, differently: output sizes ``ceil(d / stride)``, and paddings that do not
depend on the stride. The sizes decide here: the total padding is what they need, and an odd element goes to the end
(``same``) or to the front (``same_lower``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..registry import Args, operation


def paddings(
    args: Args, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[tuple[int, int]]:
    """Padding before and after each spatial dimension, as ``pad_type`` and ``pad`` say."""
    kind = args.text("pad_type", "valid").lower()
    if kind == "valid":
        return [(0, 0)] * len(kernel)
    if kind == "custom":
        pad = args.integers("pad", [0] * (2 * len(kernel)))
        return list(zip(pad[::2], pad[1::2], strict=True))
    if kind not in ("same", "same_lower"):
        raise args.error(f"unknown pad_type {kind}")
    out: list[tuple[int, int]] = []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((math.ceil(size / stride) - 1) * stride + (k - 1) * dilation + 1 - size, 0)
        small, large = total // 2, total - total // 2
        out.append((small, large) if kind == "same" else (large, small))
    return out


def pad_spatial(x: Any, pads: Sequence[tuple[int, int]], value: float = 0.0) -> Any:
    """Pads (or crops, where negative) the trailing dimensions."""
    import torch.nn.functional as functional

    flat = [n for pair in reversed(pads) for n in pair]  # torch counts from the last dimension
    return functional.pad(x, flat, value=value) if any(flat) else x


@operation("conv")
def _conv(args: Args) -> Any:
    import torch.nn.functional as functional

    x, weight, bias = args["x"], args["weight"], args.get("bias")
    rank = x.dim() - 2
    strides, dilations = args.integers("strides", [1] * rank), args.integers("dilations", [1] * rank)
    pads = paddings(args, x.shape[2:], weight.shape[2:], strides, dilations)
    symmetric = all(a == b for a, b in pads)
    if not symmetric:
        x = pad_spatial(x, pads)
    compute = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
    padding = [a for a, _ in pads] if symmetric else 0
    return compute(x, weight, bias, strides, padding, dilations, args.integer("groups", 1))


def _transpose_crops(args: Args, full: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> list[Any]:
    """What to take off the full result at both ends, per spatial dimension.

    With ``output_shape`` and explicit padding, the end takes what the start leaves (the documentation gives only the
    size); with ``same``, an odd element goes to the end.
    """
    kind = args.text("pad_type", "valid").lower()
    pad = args.integers("pad", [0] * (2 * len(full))) if kind == "custom" else [0] * (2 * len(full))
    wanted = args.integers("output_shape")[2:] if args.has("output_shape") else None
    crops: list[tuple[int, int]] = []
    for i, size in enumerate(full):
        if kind in ("same", "same_lower"):
            total = size - (wanted[i] if wanted else sizes[i] * strides[i])
            small, large = total // 2, total - total // 2
            crops.append((small, large) if kind == "same" else (large, small))
        elif wanted:
            crops.append((pad[2 * i], size - wanted[i] - pad[2 * i]))
        else:
            crops.append((pad[2 * i], pad[2 * i + 1]))
    return crops


@operation("conv_transpose")
def _conv_transpose(args: Args) -> Any:
    import torch.nn.functional as functional

    x, weight, bias = args["x"], args["weight"], args.get("bias")
    rank = x.dim() - 2
    strides, dilations = args.integers("strides", [1] * rank), args.integers("dilations", [1] * rank)
    compute = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[rank - 1]
    y = compute(x, weight, None, strides, 0, 0, args.integer("groups", 1), dilations)
    crops = _transpose_crops(args, y.shape[2:], x.shape[2:], strides)
    y = pad_spatial(y, [(-a, -b) for a, b in crops])
    return y if bias is None else y + bias.reshape([1, -1] + [1] * rank)
