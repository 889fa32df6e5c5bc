"""Compressed weights (``constexpr_*``, decompressed once at load) and quantised activations.

``quantize`` rounds halves to even, which the documentation leaves open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..dtypes import to_torch, torch_dtype, unpack
from ..registry import Args, operation


def _along(vector: Any, rank: int, axis: int) -> Any:
    """A scalar as it is; a vector laid along ``axis``."""
    return vector.reshape([-1 if i == axis % rank else 1 for i in range(rank)]) if vector.dim() else vector


def _bytes(tensor: Any) -> bytes:
    data: bytes = tensor.contiguous().numpy().tobytes()
    return data


@operation("constexpr_cast")
def _cast(args: Args) -> Any:
    return args["source_val"].to(torch_dtype(args.dtypes[0]))


@operation("constexpr_affine_dequantize")
def _affine_dequantize(args: Args) -> Any:
    data, axis = args["quantized_data"].float(), args.integer("axis")
    scale, zero = (_along(args[k], data.dim(), axis).float() for k in ("scale", "zero_point"))
    return (data - zero) * scale


def _spread(tensor: Any, shape: Sequence[int]) -> Any:
    """Repeats each entry over its block, up to ``shape``."""
    for axis, size in enumerate(shape):
        if tensor.shape[axis] != size:
            tensor = tensor.repeat_interleave(size // tensor.shape[axis], axis)
    return tensor


def _shift_scale(args: Args, data: Any) -> Any:
    data = data.float()
    if args.has("offset"):
        data = data - _spread(args["offset"].float(), data.shape)
    return data * _spread(args["scale"], data.shape)


@operation("constexpr_blockwise_shift_scale")
def _blockwise_shift_scale(args: Args) -> Any:
    return _shift_scale(args, args["data"])


def _look_up(args: Args, indices: Any, lut: Any) -> Any:
    """``lut`` is [one entry per block of each axis…, palettes, vector]; each index becomes a scalar or a vector."""
    import torch

    blocks = [torch.arange(n) // (n // m) for n, m in zip(indices.shape, lut.shape, strict=False)]
    found = lut[(*torch.meshgrid(*blocks, indexing="ij"), indices.long())]
    if lut.shape[-1] == 1:
        return found[..., 0]
    axis = args.integer("vector_axis") % indices.dim()
    return found.movedim(-1, axis + 1).flatten(axis, axis + 1)


@operation("constexpr_lut_to_dense")
def _lut_to_dense(args: Args) -> Any:
    lut = args["lut"]
    if not args.has("shape"):
        return _look_up(args, args["indices"], lut)
    shape, bits = args.integers("shape"), round(math.log2(lut.numel()))  # before iOS 18: indices packed in bytes
    indices = unpack(_bytes(args["indices"]), f"uint{bits}", math.prod(shape))
    return lut.reshape(-1)[to_torch(indices, "int32").long()].reshape(shape)


def _dense(args: Args, values: Any, mask: Any) -> Any:
    import torch

    mask = mask.bool()
    if int(mask.sum()) != values.numel():
        raise args.error(f"{values.numel()} values for {int(mask.sum())} places")
    out = torch.zeros(mask.shape, dtype=values.dtype)
    out[mask] = values
    return out


@operation("constexpr_sparse_to_dense")
def _sparse_to_dense(args: Args) -> Any:
    mask = args["mask"]
    if args.has("shape"):  # before iOS 18: one bit per element
        shape = args.integers("shape")
        mask = to_torch(unpack(_bytes(mask), "uint1", math.prod(shape)), "uint1").reshape(shape)
    return _dense(args, args["nonzero_data"], mask)


@operation("constexpr_lut_to_sparse")
def _lut_to_sparse(args: Args) -> Any:
    mask, lut = args["indices_mask"], args["lut"]
    dense = _look_up(args, _dense(args, args["indices_nonzero_data"], mask), lut)
    if lut.shape[-1] > 1:
        mask = mask.repeat_interleave(lut.shape[-1], args.integer("vector_axis") % mask.dim())
    return mask, dense[mask.bool()]


@operation("constexpr_sparse_blockwise_shift_scale")
def _sparse_shift_scale(args: Args) -> Any:
    mask = args["data_mask"]
    dense = _shift_scale(args, _dense(args, args["nonzero_data"], mask))
    return mask, dense[mask.bool()]


def _scale_and_zero(args: Args) -> tuple[Any, Any]:
    rank, axis = args["input"].dim(), args.integer("axis", 0)
    zero = _along(args["zero_point"], rank, axis).float() if args.has("zero_point") else 0.0
    return _along(args["scale"], rank, axis), zero


@operation("quantize")
def _quantize(args: Args) -> Any:
    scale, zero = _scale_and_zero(args)
    lo, hi = (0, 255) if args.text("output_dtype") == "uint8" else (-128, 127)
    return ((args["input"] / scale).round() + zero).clamp(lo, hi).to(torch_dtype(args.dtypes[0]))


@operation("dequantize")
def _dequantize(args: Args) -> Any:
    scale, zero = _scale_and_zero(args)
    return (args["input"].float() - zero) * scale
