"""Rewrites for what litert-torch or LiteRT's kernels lack or get wrong, and that no other converter needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.common import fixed, pair
from build.legalize.core import decomposition, graph_pass

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

_SORT = "litert-torch's sort compares indices of two integer types, and LiteRT has no sort but top-k"
_SCATTER = "LiteRT's scatter kernel takes no accumulation as litert-torch writes it"
_MASKED = "litert-torch lowers masked attention to a plain softmax: NaN for a row that is masked throughout"


def _sorted(x: Tensor, dim: int, descending: bool) -> Any:
    import torch

    if x.dim() == 0 or not fixed(x.shape[dim]):
        return NotImplemented
    if x.dtype is torch.bool:
        found = _sorted(x.to(torch.int32), dim, descending)
        return found[0].to(torch.bool), found[1]
    size = x.shape[dim]
    last = x.movedim(dim, -1)
    # Top-k keeps the first of equal values first, in both directions, as PyTorch's stable sort does. Complementing
    # integers reverses their order without the overflow that negating the smallest one has.
    if descending:
        values, indices = torch.topk(last, size, -1, True, True)
    elif x.is_floating_point():
        values, indices = torch.topk(-last, size, -1, True, True)
        values = -values
    else:
        values, indices = torch.topk(-1 - last, size, -1, True, True)
        values = -1 - values
    return values.movedim(-1, dim), indices.movedim(-1, dim)


@decomposition("aten.sort.default", fault=_SORT)
def sort_by_topk(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    """Sort as the top-k of everything."""
    return _sorted(x, dim, descending)


@decomposition("aten.sort.stable", fault=_SORT)
def stable_sort_by_topk(x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """As ``sort_by_topk``: it is stable."""
    return _sorted(x, dim, descending)


@decomposition("aten.argsort.default", fault=_SORT)
def argsort_by_topk(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    """The indices of ``sort_by_topk``."""
    found = _sorted(x, dim, descending)
    return found if found is NotImplemented else found[1]


@decomposition("aten.argsort.stable", fault=_SORT)
def stable_argsort_by_topk(x: Tensor, *, stable: bool, dim: int = -1, descending: bool = False) -> Any:
    """The indices of ``sort_by_topk``."""
    found = _sorted(x, dim, descending)
    return found if found is NotImplemented else found[1]


@decomposition("aten.topk.default", fault="LiteRT's top-k takes the largest of the last dimension only")
def topk_last_largest(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Top-k along any dimension, and of the smallest, through the largest of the last dimension."""
    import torch

    if x.dim() == 0 or (largest and dim % x.dim() == x.dim() - 1):
        return NotImplemented
    last = x.movedim(dim, -1)
    if largest:
        values, indices = torch.topk(last, k, -1)
    elif x.is_floating_point():
        values, indices = torch.topk(-last, k, -1)
        values = -values
    else:
        values, indices = torch.topk(-1 - last, k, -1)
        values = -1 - values
    return values.movedim(-1, dim), indices.movedim(-1, dim)


@graph_pass(
    fault="litert-torch writes a top-k whose places nobody reads as a sort, which LiteRT has not",
    ops=("aten.topk.default",),
)
def topk_values_by_place(program: ExportedProgram) -> ExportedProgram:
    """The values of such a top-k gathered by its places, which are then read."""
    import operator

    import torch

    graph = program.graph
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.topk.default):
        by_place = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        if set(by_place) != {0}:
            continue
        (values,) = by_place.values()
        with graph.inserting_before(values):
            places = graph.call_function(operator.getitem, (node, 1))
            dim = node.args[2] if len(node.args) > 2 else -1
            found = graph.call_function(torch.ops.aten.gather.default, (node.args[0], dim, places))
        places.meta = {**node.meta, "val": node.meta["val"][1]}
        found.meta = dict(values.meta)
        name = values.name
        values.replace_all_uses_with(found, propagate_meta=False)
        graph.erase_node(values)
        found._rename(name)  # the signature names its outputs so
    return program


def _added(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    """``x`` with ``src`` added at ``index`` along ``dim``, as a sum over a comparison of positions."""
    import torch

    if x.dim() == 0 or not fixed(x.shape[dim], *index.shape):
        return NotImplemented
    size = x.shape[dim]
    axis = dim % x.dim()
    where = index.movedim(axis, -1)
    values = src[tuple(slice(0, n) for n in index.shape)].movedim(axis, -1)
    hits = torch.eq(where.unsqueeze(-1), torch.arange(size))
    total = torch.where(hits, values.unsqueeze(-1), torch.zeros_like(values).unsqueeze(-1)).sum(-2).to(x.dtype)
    rest = x.movedim(axis, -1)
    # The index may be smaller than x in the other dimensions: what it doesn't cover gets nothing added.
    for d in range(x.dim() - 1):
        missing = rest.shape[d] - total.shape[d]
        if missing:
            shape = list(total.shape)
            shape[d] = missing
            total = torch.cat([total, torch.zeros(shape, dtype=total.dtype)], d)
    return (rest + total).movedim(-1, axis)


@decomposition("aten.scatter_add.default", fault=_SCATTER)
def scatter_add_by_compare(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    """Scatter-add as a sum over a comparison of positions. Sizes must be fixed."""
    return _added(x, dim, index, src)


@decomposition(
    "aten.index_put.default",
    fault=_SCATTER + "; litert-torch takes no boolean index",
)
def index_put_by_compare(x: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Any:
    """``index_put`` with one index: a mask and one value, or accumulating along the first dimension.

    Other forms are left alone.
    """
    import torch

    if len(indices) != 1 or indices[0] is None:
        return NotImplemented
    index = indices[0]
    if index.dtype is torch.bool:
        if values.numel() != 1 or accumulate:
            return NotImplemented
        mask = index.reshape(list(index.shape) + [1] * (x.dim() - index.dim()))
        return torch.where(mask, values.reshape([1] * x.dim()).to(x.dtype), x)
    if not accumulate or index.dim() != 1 or not fixed(x.shape[0], *index.shape):
        return NotImplemented
    wrapped = torch.where(index < 0, index + x.shape[0], index)
    src = values.expand([index.shape[0], *x.shape[1:]])
    wide = wrapped.reshape([-1] + [1] * (x.dim() - 1)).expand(src.shape)
    return _added(x, 0, wide, src)


@decomposition("aten.scaled_dot_product_attention.default", fault=_MASKED)
def masked_attention_by_matmul(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention with a mask or grouped heads, written out; the plain and causal forms are left to the converter."""
    from build.legalize.attention import attention_by_matmul

    if attn_mask is None and not enable_gqa:
        return NotImplemented
    return attention_by_matmul(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


@decomposition("aten.max_pool2d_with_indices.default", fault="litert-torch returns zeros for the indices of a max pool")
def max_pool2d_indices_by_windows(
    x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    """Max pooling and the flat position of each maximum, over one shifted copy for each cell of the window."""
    import torch
    import torch.nn.functional as F

    kernel, pads, steps = pair(kernel_size), pair(padding), pair(dilation)
    strides = pair(stride) if stride else kernel
    height, width = x.shape[-2:]
    if not fixed(height, width) or not x.is_floating_point():
        return NotImplemented
    sizes = []
    for n, k, s, p, d in zip((height, width), kernel, strides, pads, steps, strict=True):
        span = n + 2 * p - d * (k - 1) - 1
        out = (-(-span // s) if ceil_mode else span // s) + 1
        sizes.append(out - 1 if ceil_mode and (out - 1) * s >= n + p else out)
    reach = [(o - 1) * s + d * (k - 1) + 1 for o, s, k, d in zip(sizes, strides, kernel, steps, strict=True)]
    after = [max(r - n - p, 0) for r, n, p in zip(reach, (height, width), pads, strict=True)]
    padded = F.pad(x, (pads[1], after[1], pads[0], after[0]), value=float("-inf"))
    cells = [
        padded[
            ...,
            i : i + (sizes[0] - 1) * strides[0] + 1 : strides[0],
            j : j + (sizes[1] - 1) * strides[1] + 1 : strides[1],
        ]
        for i in range(0, kernel[0] * steps[0], steps[0])
        for j in range(0, kernel[1] * steps[1], steps[1])
    ]
    windows = torch.stack(cells, -1)
    best = torch.argmax(windows, -1)
    row_in = torch.div(best, kernel[1], rounding_mode="floor")
    column_in = best - row_in * kernel[1]
    rows = row_in * steps[0] + (torch.arange(sizes[0]) * strides[0] - pads[0]).unsqueeze(-1)
    columns = column_in * steps[1] + (torch.arange(sizes[1]) * strides[1] - pads[1])
    return torch.amax(windows, -1), rows * width + columns


_TRANSPOSED = "litert-torch fails on transposed convolutions with output padding, or with padding and groups"


def _transposed(
    function: Any,
    x: Tensor,
    weight: Tensor,
    bias: Any,
    stride: Any,
    padding: Any,
    extra: Any,
    groups: int,
    dilation: Any,
) -> Any:
    """A transposed convolution without padding, cropped (or extended by zeros), and then the bias."""
    import torch.nn.functional as F

    axes = weight.dim() - 2

    def per_axis(value: Any) -> list[int]:
        values = [value] if isinstance(value, int) else list(value)
        return values * axes if len(values) == 1 else values

    strides, pads, extras, steps = per_axis(stride), per_axis(padding), per_axis(extra), per_axis(dilation)
    if not any(extras) and (groups == 1 or not any(pads)):
        return NotImplemented
    full = function(x, weight, None, strides, [0] * axes, [0] * axes, groups, steps)
    around: list[int] = []
    for pad, more in zip(reversed(pads), reversed(extras), strict=True):
        around += [-pad, more - pad]
    cut = full
    for axis in range(axes):
        low, high = around[2 * (axes - 1 - axis)], around[2 * (axes - 1 - axis) + 1]
        size = cut.shape[axis - axes]
        cut = cut.narrow(axis - axes, -low, size + low + min(high, 0))
    y = F.pad(cut, [max(a, 0) for a in around]) if any(a > 0 for a in around) else cut
    return y if bias is None else y + bias.reshape([-1] + [1] * axes)


@decomposition("aten.conv_transpose2d.input", fault=_TRANSPOSED)
def transposed_convolution_cropped(
    x: Tensor,
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Transposed convolution in two dimensions, its padding as a crop of the result."""
    import torch

    function = torch.ops.aten.conv_transpose2d.input
    return _transposed(function, x, weight, bias, stride, padding, output_padding, groups, dilation)


@decomposition("aten.conv_transpose1d.default", fault=_TRANSPOSED)
def transposed_convolution1d_cropped(
    x: Tensor,
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Transposed convolution in one dimension, its padding as a crop of the result."""
    import torch

    function = torch.ops.aten.conv_transpose1d.default
    return _transposed(function, x, weight, bias, stride, padding, output_padding, groups, dilation)
