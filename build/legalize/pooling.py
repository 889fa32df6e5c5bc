"""Pooling with partial windows, own divisors, and output sizes that do not divide the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from build.legalize.common import fixed, pair
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


def _ceil_extra(size: int, kernel: int, stride: int, padding: int) -> int:
    """Columns to append so that flooring gives the output size of ``ceil_mode``.

    A last window that would start in the right padding is dropped (PyTorch's ``pooling_output_shape``).
    """
    out = -(-(size + 2 * padding - kernel) // stride) + 1
    if (out - 1) * stride >= size + padding:
        out -= 1
    return max((out - 1) * stride + kernel - size - 2 * padding, 0)


@decomposition(
    "aten.avg_pool2d.default",
    fault="Core ML and OpenVINO count cells outside the padding in ceil mode; all but PyTorch ignore divisor_override",
)
def avg_pool2d_exact(
    x: Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Average pooling in ceil mode or with an own divisor, from plain average pooling.

    In ceil mode the input is extended by zeros to whole windows and the mean corrected by each window's own
    count, itself a pooled mask. Sizes must be fixed there.
    """
    import torch
    import torch.nn.functional as F

    if divisor_override is None and not ceil_mode:
        return NotImplemented
    kernel, pads = pair(kernel_size), pair(padding)
    strides = pair(stride) if stride else kernel
    pool = torch.ops.aten.avg_pool2d.default
    cells = kernel[0] * kernel[1]
    if not ceil_mode:
        return pool(x, kernel, strides, pads, False, True) * (cells / (divisor_override or cells))
    height, width = x.shape[-2:]
    if not fixed(height, width):
        return NotImplemented
    below, right = (_ceil_extra(n, k, s, p) for n, k, s, p in zip((height, width), kernel, strides, pads, strict=True))
    around = (pads[1], pads[1] + right, pads[0], pads[0] + below)
    mean = pool(F.pad(x, around), kernel, strides, [0, 0], False, True)
    if divisor_override is not None:
        return mean * (cells / divisor_override)
    ones = torch.ones([1, 1, height, width], dtype=x.dtype)
    counted = F.pad(ones, (pads[1], pads[1], pads[0], pads[0]), value=1.0 if count_include_pad else 0.0)
    share = pool(F.pad(counted, (0, right, 0, below)), kernel, strides, [0, 0], False, True)
    return mean / (share if x.dim() == 4 else share.squeeze(0))


@decomposition("aten.avg_pool1d.default", fault="Core ML and OpenVINO count cells outside the padding in ceil mode")
def avg_pool1d_exact(
    x: Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:
    """Average pooling in ceil mode along one axis, as the two-dimensional one over a height of 1."""
    import torch

    if not ceil_mode:
        return NotImplemented
    kernel, pads = pair(kernel_size)[0], pair(padding)[0]
    strides = pair(stride)[0] if stride else kernel
    pooled = torch.ops.aten.avg_pool2d.default(
        x.unsqueeze(-2), [1, kernel], [1, strides], [0, pads], True, count_include_pad, None
    )
    return pooled.squeeze(-2)


def _adaptive(x: Tensor, size: Sequence[int], reduce: Callable[[Tensor], Tensor]) -> Any:
    import torch

    height, width = x.shape[-2:]
    if not fixed(height, width) or tuple(size) == (1, 1):
        return NotImplemented
    high, wide = size

    def span(i: int, n: int, out: int) -> slice:
        return slice((i * n) // out, -(-((i + 1) * n) // out))

    rows = [
        torch.stack([reduce(x[..., span(i, height, high), span(j, width, wide)]) for j in range(wide)], -1)
        for i in range(high)
    ]
    return torch.stack(rows, -2)


@decomposition(
    "aten.adaptive_avg_pool2d.default",
    "aten._adaptive_avg_pool2d.default",
    fault="coremltools takes adaptive pooling only to 1x1; OpenVINO and XNNPACK only to divisors",
)
def adaptive_avg_pool2d_by_windows(x: Tensor, size: Sequence[int]) -> Any:
    """One mean per output cell; window bounds as PyTorch computes them. Sizes must be fixed."""
    return _adaptive(x, size, lambda window: window.mean((-2, -1)))


@decomposition("aten.adaptive_max_pool2d.default", fault="coremltools, ExecuTorch and litert-torch lack it")
def adaptive_max_pool2d_by_windows(x: Tensor, size: Sequence[int]) -> Any:
    """One maximum per output cell and its flat position in the input plane. Sizes must be fixed."""
    import torch

    height, width = x.shape[-2:]
    if not fixed(height, width):
        return NotImplemented
    high, wide = size
    values, places = [], []
    for i in range(high):
        top, bottom = (i * height) // high, -(-((i + 1) * height) // high)
        for j in range(wide):
            left, right = (j * width) // wide, -(-((j + 1) * width) // wide)
            window = x[..., top:bottom, left:right].flatten(-2)
            span = right - left
            best = torch.argmax(window, -1)
            row = torch.div(best, span, rounding_mode="floor")
            values.append(torch.amax(window, -1))
            places.append((row + top) * width + (best - row * span) + left)
    shape = [*x.shape[:-2], high, wide]
    return torch.stack(values, -1).reshape(shape), torch.stack(places, -1).reshape(shape)


def _pooled_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """PyTorch's ``pooling_output_shape``: a last window may not start in the right padding."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    out = (-(-room // stride) if ceil_mode else room // stride) + 1
    return out - 1 if ceil_mode and (out - 1) * stride >= size + padding else out


@decomposition("aten.max_pool2d.default", fault="Core ML's max_pool has no dilation")
def max_pool2d_dilated(
    x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    """Dilated max pooling as the maximum of strided slices, one per cell of the window. Sizes must be fixed."""
    import torch
    import torch.nn.functional as F

    kernel, pads, steps = pair(kernel_size), pair(padding), pair(dilation)
    strides = pair(stride) if stride else kernel
    sizes = x.shape[-2:]
    if steps == (1, 1) or not fixed(*sizes) or not x.is_floating_point():
        return NotImplemented
    outs = [
        _pooled_size(n, k, s, p, d, ceil_mode)
        for n, k, s, p, d in zip(sizes, kernel, strides, pads, steps, strict=True)
    ]
    spans = [(o - 1) * s + d * (k - 1) + 1 for o, s, d, k in zip(outs, strides, steps, kernel, strict=True)]
    after = [max(span - n - p, 0) for span, n, p in zip(spans, sizes, pads, strict=True)]
    padded = F.pad(x, (pads[1], after[1], pads[0], after[0]), value=float("-inf"))
    best: Tensor | None = None
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * steps[0], j * steps[1]
            bottom, right = top + (outs[0] - 1) * strides[0] + 1, left + (outs[1] - 1) * strides[1] + 1
            cell = padded[..., top : bottom : strides[0], left : right : strides[1]]
            best = cell if best is None else torch.maximum(best, cell)
    return best
