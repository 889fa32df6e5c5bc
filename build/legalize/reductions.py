"""Reductions whose keywords or forms a converter does not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build.legalize.common import dims_of, fixed
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor

_DTYPE = "coremltools never reads dtype= of a reduction; onnxscript drops mean's"


@decomposition("aten.mean.default", fault=_DTYPE)
def mean_dtype(x: Tensor, *, dtype: Any = None) -> Any:
    """Cast first, then the mean of everything."""
    import torch

    return NotImplemented if dtype in (None, x.dtype) else torch.mean(x.to(dtype))


@decomposition("aten.mean.dim", fault=_DTYPE)
def mean_dim_dtype(x: Tensor, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Cast first, then the mean."""
    import torch

    return NotImplemented if dtype in (None, x.dtype) else torch.mean(x.to(dtype), dim, keepdim)


@decomposition("aten.sum.default", fault=_DTYPE)
def sum_dtype(x: Tensor, *, dtype: Any = None) -> Any:
    """Cast first, then the sum of everything."""
    import torch

    return NotImplemented if dtype in (None, x.dtype) else torch.sum(x.to(dtype))


@decomposition("aten.sum.dim_IntList", fault=_DTYPE)
def sum_dim_dtype(x: Tensor, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Cast first, then the sum."""
    import torch

    return NotImplemented if dtype in (None, x.dtype) else torch.sum(x.to(dtype), dim, keepdim)


@decomposition("aten.cumsum.default", fault=_DTYPE)
def cumsum_dtype(x: Tensor, dim: int, *, dtype: Any = None) -> Any:
    """Cast first, then the running sum."""
    import torch

    return NotImplemented if dtype in (None, x.dtype) else torch.cumsum(x.to(dtype), dim)


@decomposition("aten.cumprod.default", fault=_DTYPE)
def cumprod_dtype(x: Tensor, dim: int, *, dtype: Any = None) -> Any:
    """Cast first, then the running product."""
    import torch

    return NotImplemented if dtype in (None, x.dtype) else torch.cumprod(x.to(dtype), dim)


@decomposition("aten.linalg_vector_norm.default", fault=_DTYPE)
def vector_norm_dtype(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Cast first, then the norm."""
    import torch

    if dtype in (None, x.dtype):
        return NotImplemented
    return torch.linalg.vector_norm(x.to(dtype), ord, dim, keepdim)


@decomposition("aten.prod.dim_int", fault="coremltools has no prod")
def prod_by_slices(x: Tensor, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Products of halves, down to one slice; a dimension of unknown size through the running product."""
    import torch

    y = x if dtype is None else x.to(dtype)
    if not y.is_floating_point() and dtype is None:
        y = y.to(torch.int64)
    size = y.shape[dim]
    if not fixed(size):
        y = torch.cumprod(y, dim).narrow(dim, size - 1, 1)
    elif size == 0:
        return NotImplemented
    while fixed(size) and size > 1:
        half = size // 2
        product = y.narrow(dim, 0, half) * y.narrow(dim, half, half)
        y = torch.cat([product, y.narrow(dim, 2 * half, 1)], dim) if size % 2 else product
        size = half + size % 2
    return y if keepdim else y.squeeze(dim)


@decomposition("aten.prod.default", fault="coremltools has no prod")
def prod_all_by_slices(x: Tensor, *, dtype: Any = None) -> Tensor:
    """Product of everything: of the flattened tensor."""
    import torch

    return torch.prod(x.reshape(-1), 0, dtype=dtype)


def _arg_all(function: Any, x: Tensor, dim: int | None, keepdim: bool) -> Any:
    if dim is not None or x.dim() < 2:
        return NotImplemented
    index = function(x.reshape(-1), 0)
    return index.reshape([1] * x.dim()) if keepdim else index


@decomposition("aten.argmax.default", fault="Core ML's argmax over everything keeps a dimension and searches one axis")
def argmax_all(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Argmax of the flattened tensor."""
    import torch

    return _arg_all(torch.argmax, x, dim, keepdim)


@decomposition("aten.argmin.default", fault="Core ML's argmin over everything keeps a dimension and searches one axis")
def argmin_all(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Argmin of the flattened tensor."""
    import torch

    return _arg_all(torch.argmin, x, dim, keepdim)


@decomposition("aten.median.dim", fault="coremltools, OpenVINO and litert-torch have no median")
def median_by_sort(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    """The lower middle of the sorted values; NaN sorts last, so any NaN is looked for first, as PyTorch does."""
    import torch

    size = x.shape[dim]
    values, indices = torch.sort(x, dim)
    middle = (size - 1) // 2
    value, index = values.narrow(dim, middle, 1), indices.narrow(dim, middle, 1)
    if x.is_floating_point():
        bad = torch.ne(x, x)
        any_bad = torch.sum(bad.to(torch.int64), dim, True) > 0
        value = torch.where(any_bad, torch.full_like(value, float("nan")), value)
        index = torch.where(any_bad, torch.argmax(bad.to(torch.int64), dim, True), index)
    return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


def _std_mean(x: Tensor, dim: Any, correction: float, keepdim: bool, root: bool) -> tuple[Tensor, Tensor]:
    import torch

    dims = dims_of(x, dim)
    mean = torch.mean(x, dims, True)
    count: Any = 1
    for d in dims:
        count = count * x.shape[d]
    deviation = x - mean
    total = torch.sum(deviation * deviation, dims, keepdim)
    free = count - correction
    if fixed(count):
        free = max(free, 0)  # no freedom left: a division by zero, NaN or infinity, as in PyTorch
    variance = total / torch.full_like(total, free) if free == 0 else total / free
    spread = torch.sqrt(variance) if root else variance
    return spread, mean if keepdim else torch.squeeze(mean, dims)


_STD_MEAN = "coremltools and OpenVINO have no std_mean or var_mean"


@decomposition("aten.std_mean.correction", fault=_STD_MEAN)
def std_mean_correction(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Mean, then the mean square of the deviations from it."""
    return _std_mean(x, dim, 1 if correction is None else correction, keepdim, True)


@decomposition("aten.std_mean.dim", fault=_STD_MEAN)
def std_mean_dim(x: Tensor, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
    """As ``std_mean_correction``, with the older spelling of the correction."""
    return _std_mean(x, dim, int(unbiased), keepdim, True)


@decomposition("aten.std_mean.default", fault=_STD_MEAN)
def std_mean_all(x: Tensor, unbiased: bool = True) -> Any:
    """As ``std_mean_dim``, over everything."""
    return _std_mean(x, None, int(unbiased), False, True)


@decomposition("aten.var_mean.correction", fault=_STD_MEAN)
def var_mean_correction(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Mean, then the mean square of the deviations from it."""
    return _std_mean(x, dim, 1 if correction is None else correction, keepdim, False)


@decomposition("aten.var_mean.dim", fault=_STD_MEAN)
def var_mean_dim(x: Tensor, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
    """As ``var_mean_correction``, with the older spelling of the correction."""
    return _std_mean(x, dim, int(unbiased), keepdim, False)
