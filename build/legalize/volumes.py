"""Three-dimensional convolution and pooling, for runtimes that have the two-dimensional ones only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from build.legalize.common import fixed
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


def _triple(value: int | Sequence[int]) -> tuple[int, int, int]:
    values = [value] if isinstance(value, int) else list(value)
    a, b, c = values * 3 if len(values) == 1 else values
    return a, b, c


@decomposition("aten.conv3d.default", fault="ExecuTorch has no three-dimensional convolution")
def conv3d_by_planes(
    x: Tensor,
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """One conv2d over planes: the kernel's depth becomes channels. The depth must be fixed."""
    import torch
    import torch.nn.functional as F

    batched = x.dim() == 5
    y = x if batched else x.unsqueeze(0)
    (sd, sh, sw), (pd, ph, pw), (dd, dh, dw) = _triple(stride), _triple(padding), _triple(dilation)
    out, per_group, depth, high, wide = weight.shape
    if not fixed(y.shape[2]):
        return NotImplemented
    y = F.pad(y, (0, 0, 0, 0, pd, pd)) if pd else y
    planes = (y.shape[2] - dd * (depth - 1) - 1) // sd + 1
    shifted = [y[:, :, k * dd : k * dd + (planes - 1) * sd + 1 : sd] for k in range(depth)]
    # [N, C, KD, D', H, W] -> [N*D', C*KD, H, W]; the weight [O, C/g, KD, kh, kw] already lies as [O, C/g*KD, kh, kw].
    stacked = torch.stack(shifted, 2).permute(0, 3, 1, 2, 4, 5)
    batch, channels, rows, columns = y.shape[0], y.shape[1], y.shape[3], y.shape[4]
    flat = stacked.reshape([-1, channels * depth, rows, columns])
    kernel = weight.reshape([out, per_group * depth, high, wide])
    z = torch.conv2d(flat, kernel, bias, [sh, sw], [ph, pw], [dh, dw], groups)
    z = z.reshape([batch, planes, out, z.shape[2], z.shape[3]]).permute(0, 2, 1, 3, 4)
    return z if batched else z.squeeze(0)


def _planes(x: Tensor, kernel: int, stride: int, reduce: Callable[[list[Tensor]], Tensor]) -> Tensor:
    count = (x.shape[-3] - kernel) // stride + 1
    return reduce([x[..., k : k + (count - 1) * stride + 1 : stride, :, :] for k in range(kernel)])


@decomposition("aten.avg_pool3d.default", fault="ExecuTorch has no three-dimensional pooling (local response norm)")
def avg_pool3d_by_planes(
    x: Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """The mean of shifted planes, then pooling within each. The depth must be fixed."""
    import torch
    import torch.nn.functional as F

    kernel, pads = _triple(kernel_size), _triple(padding)
    strides = _triple(stride) if stride else kernel
    padded = any(pads)
    if ceil_mode or not fixed(x.shape[-3]) or (padded and not count_include_pad):
        return NotImplemented
    if padded:
        x = F.pad(x, (pads[2], pads[2], pads[1], pads[1], pads[0], pads[0]))
    y = _planes(x, kernel[0], strides[0], lambda parts: torch.stack(parts, 0).sum(0)) / kernel[0]
    shape = y.shape
    if kernel[1:] != (1, 1) or strides[1:] != (1, 1):
        flat = y.reshape([-1, *shape[-3:]]) if y.dim() == 5 else y
        pooled = F.avg_pool2d(flat, kernel[1:], strides[1:])
        y = pooled.reshape([*shape[:-2], *pooled.shape[-2:]])
    cells = kernel[0] * kernel[1] * kernel[2]
    return y if divisor_override is None else y * (cells / divisor_override)
