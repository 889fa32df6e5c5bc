"""Gathers, scatters, diagonals, windows and triangles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.common import as_dtype, fixed, result_dtype, torch_decomposition
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


@decomposition("aten.diagonal.default", fault="coremltools takes the wrong axes; OpenVINO has no diagonal")
def diagonal_by_select(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Selection of every (width + 1)-th value of the flattened plane. Sizes of the plane must be fixed."""
    import torch

    first, second = dim1 % x.dim(), dim2 % x.dim()
    height, width = x.shape[first], x.shape[second]
    if not fixed(height, width):
        return NotImplemented
    count = max(min(height, width - offset) if offset >= 0 else min(height + offset, width), 0)
    start = offset if offset >= 0 else -offset * width
    order = [d for d in range(x.dim()) if d not in (first, second)] + [first, second]
    plane = x.permute(order)
    flat = plane.reshape([*plane.shape[:-2], height * width])
    return torch.index_select(flat, flat.dim() - 1, torch.arange(count) * (width + 1) + start)


@decomposition("aten.gather.default", fault="coremltools wants an index as large as the tensor in the other dimensions")
def gather_cropped(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Any:
    """Crop the tensor to the index's size in every other dimension first."""
    import torch

    y = x
    for d in range(x.dim()):
        if d != dim % x.dim() and fixed(x.shape[d], index.shape[d]) and index.shape[d] < x.shape[d]:
            y = y.narrow(d, 0, index.shape[d])
    return NotImplemented if y is x else torch.gather(y, dim, index)


@decomposition("aten.unfold.default", fault="coremltools has no Tensor.unfold")
def unfold_by_slices(x: Tensor, dimension: int, size: int, step: int) -> Any:
    """A stack of slices. The size of the dimension must be fixed."""
    import torch

    dim = dimension % x.dim()
    length = x.shape[dim]
    if not fixed(length):
        return NotImplemented
    windows = [x.narrow(dim, start, size).movedim(dim, -1) for start in range(0, length - size + 1, step)]
    return torch.stack(windows, dim)


def _unit_kernels(kernel: Any, channels: int, dtype: Any) -> Tensor:
    """Convolution weights, one per cell of the window and channel, that copy that cell."""
    import torch

    cells = kernel[0] * kernel[1]
    eye = torch.eye(cells, dtype=dtype).reshape(cells, 1, kernel[0], kernel[1])
    return eye.repeat(channels, 1, 1, 1)


@decomposition("aten.im2col.default", fault="coremltools cannot hold a symbolic batch in im2col's reshape")
def im2col_by_convolution(x: Tensor, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Windows of a batch of images by a grouped convolution with unit kernels (finite values only)."""
    import torch.nn.functional as F

    if x.dim() != 4 or not fixed(x.shape[1]) or not x.is_floating_point():
        return NotImplemented
    channels = x.shape[1]
    kernels = _unit_kernels(kernel_size, channels, x.dtype)
    windows = F.conv2d(x, kernels, None, stride, padding, dilation, channels)
    return windows.reshape([x.shape[0], channels * kernel_size[0] * kernel_size[1], -1])


@decomposition("aten.col2im.default", fault="litert-torch has no col2im; coremltools takes it without overlap only")
def col2im_by_transposed_convolution(
    x: Tensor, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> Any:
    """Overlap-add of windows by a grouped transposed convolution with unit kernels (finite values only)."""
    import torch.nn.functional as F

    if x.dim() != 3 or not fixed(x.shape[1], *output_size) or not x.is_floating_point():
        return NotImplemented
    cells = kernel_size[0] * kernel_size[1]
    channels = x.shape[1] // cells
    spans = [dilation[i] * (kernel_size[i] - 1) + 1 for i in (0, 1)]
    steps = [(output_size[i] + 2 * padding[i] - spans[i]) // stride[i] + 1 for i in (0, 1)]
    rest = [output_size[i] - ((steps[i] - 1) * stride[i] - 2 * padding[i] + spans[i]) for i in (0, 1)]
    image = x.reshape([x.shape[0], channels * cells, steps[0], steps[1]])
    kernels = _unit_kernels(kernel_size, channels, x.dtype)
    return F.conv_transpose2d(image, kernels, None, stride, padding, rest, channels, dilation)


def _triangle(x: Tensor, diagonal: int, upper: bool) -> Tensor:
    import torch

    rows = torch.arange(x.shape[-2]).unsqueeze(-1)
    columns = torch.arange(x.shape[-1]).unsqueeze(0)
    keep = torch.ge(columns - rows, diagonal) if upper else torch.le(columns - rows, diagonal)
    if x.dtype is torch.bool:
        return torch.logical_and(x, keep)
    return torch.where(keep, x, torch.zeros_like(x))


_BAND = "Core ML's band_part multiplies by a mask, so that triu of -inf gives NaN; it takes no bool or symbolic size"


@decomposition("aten.triu.default", fault=_BAND)
def triu_by_compare(x: Tensor, diagonal: int = 0) -> Tensor:
    """Upper triangle by a select: what is outside becomes zero whatever it was."""
    return _triangle(x, diagonal, True)


@decomposition("aten.tril.default", fault=_BAND)
def tril_by_compare(x: Tensor, diagonal: int = 0) -> Tensor:
    """Lower triangle by a select."""
    return _triangle(x, diagonal, False)


@decomposition("aten.bucketize.Tensor", fault="coremltools, ExecuTorch and litert-torch have no bucketize")
def bucketize_by_compare(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The number of boundaries below (``right``: not above) each value."""
    import torch

    value = x.unsqueeze(-1)
    below = torch.le(boundaries, value) if right else torch.lt(boundaries, value)
    if x.is_floating_point():  # NaN belongs after every boundary
        below = torch.logical_or(below, torch.ne(value, value))
    dtype = torch.int32 if out_int32 else torch.int64
    return torch.sum(below.to(torch.int32), -1).to(dtype)


_WHERE = "coremltools has no where with numbers"


@decomposition("aten.where.ScalarOther", fault=_WHERE)
def where_scalar_other(condition: Tensor, x: Tensor, other: Any) -> Tensor:
    """The number as a tensor of the promoted dtype."""
    import torch

    dtype = result_dtype(x, other)
    return torch.where(condition, as_dtype(x, dtype), torch.full([], other, dtype=dtype))


@decomposition("aten.where.ScalarSelf", fault=_WHERE)
def where_scalar_self(condition: Tensor, number: Any, other: Tensor) -> Tensor:
    """The number as a tensor of the promoted dtype."""
    import torch

    dtype = result_dtype(number, other)
    return torch.where(condition, torch.full([], number, dtype=dtype), as_dtype(other, dtype))


@decomposition("aten.where.Scalar", fault=_WHERE)
def where_scalars(condition: Tensor, number: Any, other: Any) -> Tensor:
    """Both numbers as tensors of their common dtype."""
    import torch

    dtype = torch.result_type(number, other)
    return torch.where(condition, torch.full([], number, dtype=dtype), torch.full([], other, dtype=dtype))


_OPERATOR = "coremltools and OpenVINO read bitwise_and and its kin, not the operators' own ops"


@decomposition("aten.__and__.Tensor", "aten.__and__.Scalar", fault=_OPERATOR)
def and_operator(x: Tensor, y: Any) -> Tensor:
    """The operator's named op."""
    import torch

    return torch.bitwise_and(x, y)


@decomposition("aten.__or__.Tensor", "aten.__or__.Scalar", fault=_OPERATOR)
def or_operator(x: Tensor, y: Any) -> Tensor:
    """The operator's named op."""
    import torch

    return torch.bitwise_or(x, y)


@decomposition("aten.__xor__.Tensor", "aten.__xor__.Scalar", fault=_OPERATOR)
def xor_operator(x: Tensor, y: Any) -> Tensor:
    """The operator's named op."""
    import torch

    return torch.bitwise_xor(x, y)


def _logical(x: Tensor, y: Any, function: Any) -> Any:
    import torch

    if x.dtype is not torch.bool or not (isinstance(y, bool) or getattr(y, "dtype", None) is torch.bool):
        return NotImplemented
    return function(x, y if isinstance(y, torch.Tensor) else torch.full([], y, dtype=torch.bool))


_LOGICAL = "coremltools has no bitwise_or and bitwise_xor, and bitwise_and for bools only"


@decomposition("aten.bitwise_or.Tensor", "aten.bitwise_or.Scalar", fault=_LOGICAL)
def bool_or_is_logical(x: Tensor, y: Any) -> Any:
    """On bools, the logical op."""
    import torch

    return _logical(x, y, torch.logical_or)


@decomposition("aten.bitwise_xor.Tensor", "aten.bitwise_xor.Scalar", fault=_LOGICAL)
def bool_xor_is_logical(x: Tensor, y: Any) -> Any:
    """On bools, the logical op."""
    import torch

    return _logical(x, y, torch.logical_xor)


@decomposition("aten.bitwise_and.Tensor", "aten.bitwise_and.Scalar", fault=_LOGICAL)
def bool_and_is_logical(x: Tensor, y: Any) -> Any:
    """On bools, the logical op."""
    import torch

    return _logical(x, y, torch.logical_and)


@decomposition("aten.unsafe_chunk.default", fault="coremltools has no unsafe_chunk")
def unsafe_chunk_by_chunk(x: Tensor, chunks: int, dim: int = 0) -> Any:
    """The same chunks (the unsafe one differs in autograd only)."""
    import torch

    return list(torch.chunk(x, chunks, dim))


for _op in (
    "index_add.default",
    "new_ones.default",
    "unsafe_split.Tensor",
):
    _name = "_".join(_op.lower().replace("__", "").removesuffix(".default").split("."))
    decomposition(
        f"aten.{_op}", fault=f"coremltools or OpenVINO has no {_op}, spelled so", name=_name + "_written_out"
    )(torch_decomposition(f"aten.{_op}"))
