"""Pooling.

Left open by the documentation: what average pooling divides by where ``ceil_mode`` lets a window reach beyond the
padding. Core ML divides by the whole kernel there too (apple/coremltools#2772), unlike PyTorch; so does this, unless
``exclude_padding_from_average`` asks for the count of real elements.
"""

from __future__ import annotations

import math
from typing import Any

from ..registry import Args, operation
from .convolution import pad_spatial, paddings


def _overhang(size: int, kernel: int, stride: int, pad: tuple[int, int]) -> int:
    """How far beyond the padding the last window reaches with ``ceil_mode``."""
    padded = size + pad[0] + pad[1]
    count = -(-(padded - kernel) // stride) + 1
    if sum(pad) > 0 and (count - 1) * stride >= size + pad[0]:
        count -= 1
    return max((count - 1) * stride + kernel - padded, 0)


def _windows(args: Args) -> tuple[Any, list[int], list[int], list[tuple[int, int]]]:
    x = args["x"]
    kernel = args.integers("kernel_sizes")
    strides = args.integers("strides", [1] * len(kernel))
    pads = paddings(args, x.shape[2:], kernel, strides, [1] * len(kernel))
    if args.flag("ceil_mode", False):
        extra = [_overhang(n, k, s, p) for n, k, s, p in zip(x.shape[2:], kernel, strides, pads, strict=True)]
        pads = [(a, b + e) for (a, b), e in zip(pads, extra, strict=True)]
    return x, kernel, strides, pads


def _sums(x: Any, kernel: list[int], strides: list[int]) -> Any:
    import torch.nn.functional as functional

    mean = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[len(kernel) - 1](x, kernel, strides)
    return mean * math.prod(kernel)


@operation("max_pool")
def _max_pool(args: Args) -> Any:
    import torch.nn.functional as functional

    x, kernel, strides, pads = _windows(args)
    compute = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[len(kernel) - 1]
    return compute(pad_spatial(x, pads, float("-inf")), kernel, strides)


@operation("avg_pool")
def _avg_pool(args: Args) -> Any:
    import torch

    x, kernel, strides, pads = _windows(args)
    total = _sums(pad_spatial(x, pads), kernel, strides)
    if args.flag("exclude_padding_from_average", False):
        ones = torch.ones((1, 1, *x.shape[2:]))
        return total / _sums(pad_spatial(ones, pads), kernel, strides)
    return total / math.prod(kernel)


@operation("l2_pool")
def _l2_pool(args: Args) -> Any:
    x, kernel, strides, pads = _windows(args)
    return _sums(pad_spatial(x * x, pads), kernel, strides).clamp(min=0).sqrt()
