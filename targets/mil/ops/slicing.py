"""Slices, padding, and tensors made from numbers (fill, range, one-hot)."""

from __future__ import annotations

from typing import Any

from ..dtypes import torch_dtype
from ..registry import Args, axis_of, operation


def _keys(args: Args, x: Any) -> tuple[Any, ...]:
    """The index of each axis: an int where ``squeeze_mask`` says so, else the list of positions or a slice.

    Begin and end follow numpy: negative ones count from the end, and those beyond the axis are cut to it.
    """
    rank = x.dim()
    begin, end = args.integers("begin"), args.integers("end")
    if len(begin) != rank or len(end) != rank:
        raise args.error(f"begin {begin} and end {end} of a tensor of rank {rank}")
    stride = args.integers("stride", [1] * rank)
    open_begin, open_end, squeeze = (args.flags(f"{k}_mask", rank) for k in ("begin", "end", "squeeze"))
    keys: list[Any] = []
    for i, size in enumerate(x.shape):
        if squeeze[i]:
            at = 0 if open_begin[i] else begin[i]
            if not -size <= at < size:
                raise args.error(f"index {at} of an axis of size {size}")
            keys.append(at)
        else:
            keys.append(slice(None if open_begin[i] else begin[i], None if open_end[i] else end[i], stride[i]))
    return tuple(keys)


def _view(x: Any, keys: tuple[Any, ...]) -> Any:
    """``x[keys]``. torch refuses negative steps, so those axes are flipped and stepped forwards."""
    axis = 0
    for key in keys:
        if isinstance(key, int):
            x = x.select(axis, key)
            continue
        start, stop, step = key.indices(x.shape[axis])
        if step > 0:
            x = x.narrow(axis, start, max(stop - start, 0)) if start < x.shape[axis] else x.narrow(axis, 0, 0)
        else:
            size = x.shape[axis]
            first, count = size - 1 - start, max(start - stop, 0)
            x = x.flip(axis).narrow(axis, first if count else 0, count)
        if abs(step) != 1:
            x = x[(slice(None),) * axis + (slice(None, None, abs(step)),)]
        axis += 1
    return x


@operation("slice_by_index")
def _slice_by_index(args: Args) -> Any:
    return _view(args["x"], _keys(args, args["x"]))


@operation("slice_update")
def _slice_update(args: Args) -> Any:
    import torch

    x, update = args["x"], args["update"]
    positions = torch.arange(x.numel()).reshape(x.shape)
    where = _view(positions, _keys(args, x))
    if tuple(where.shape) != tuple(update.shape):
        raise args.error(f"an update of shape {list(update.shape)} for a slice of {list(where.shape)}")
    out = x.clone().reshape(-1)
    out[where.reshape(-1)] = update.reshape(-1)
    return out.reshape(x.shape)


@operation("slice_by_size")
def _slice_by_size(args: Args) -> Any:
    x, begin, size = args["x"], args.integers("begin"), args.integers("size")
    for axis, (b, s) in enumerate(zip(begin, size, strict=True)):
        n = x.shape[axis]
        start = b + n if b < 0 else b
        count = n - start if s == -1 else s
        if start < 0 or start + count > n or count < 0:
            raise args.error(f"{s} elements from {b} of an axis of size {n}")
        x = x.narrow(axis, start, count)
    return x


@operation("crop")
def _crop(args: Args) -> Any:
    (top, bottom), (left, right) = args.integers("crop_height"), args.integers("crop_width")
    x = args["x"]
    return x[..., top : x.shape[-2] - bottom, left : x.shape[-1] - right]


def _mirror(x: Any, axis: int, before: int, after: int, mode: str) -> Any:
    """Pads one axis by reflection (without the edge) or by repeating the edge, by index, for any rank and type."""
    import torch

    size = x.shape[axis]
    at = torch.arange(-before, size + after)
    if mode == "reflect":
        at = torch.where(at < 0, -at, at)
        at = torch.where(at >= size, 2 * (size - 1) - at, at)
    else:
        at = at.clamp(0, size - 1)
    return x.index_select(axis, at)


@operation("pad")
def _pad(args: Args) -> Any:
    import torch.nn.functional as functional

    x, pad, mode = args["x"], args.integers("pad"), args.text("mode", "constant")
    pairs = list(zip(pad[::2], pad[1::2], strict=True))
    if mode == "constant":
        value = args["constant_val"].item() if args.has("constant_val") else 0
        return functional.pad(x, [n for pair in reversed(pairs) for n in pair], value=value)
    if mode not in ("reflect", "replicate"):
        raise args.error(f"unknown mode {mode}")
    for i, (before, after) in enumerate(pairs):
        axis = x.dim() - len(pairs) + i
        if mode == "reflect" and max(before, after) >= x.shape[axis]:
            raise args.error(f"a reflection of {max(before, after)} on an axis of size {x.shape[axis]}")
        x = _mirror(x, axis, before, after, mode)
    return x


@operation("band_part")
def _band_part(args: Args) -> Any:
    import torch

    x, lower, upper = args["x"], args.integer("lower", -1), args.integer("upper", -1)
    below = torch.arange(x.shape[-2])[:, None] - torch.arange(x.shape[-1])[None]
    keep = torch.ones_like(below, dtype=torch.bool)
    if lower >= 0:
        keep &= below <= lower
    if upper >= 0:
        keep &= -below <= upper
    return torch.where(keep, x, torch.zeros((), dtype=x.dtype))


@operation("fill", "fill_like")
def _fill(args: Args) -> Any:
    import torch

    sizes = args.integers("shape") if args.op == "fill" else list(args["ref_tensor"].shape)
    value = args["value"].item() if args.has("value") else 0.0
    return torch.full(sizes, value, dtype=torch_dtype(args.dtypes[0]))


@operation("range_1d")
def _range(args: Args) -> Any:
    """ceil((end - start) / step) elements, each start + i·step (not a running sum)."""
    import torch

    start, end, step = (args[k].reshape(-1)[0].item() for k in ("start", "end", "step"))
    if step == 0:
        raise args.error("a step of 0")
    return (
        torch.arange(start, end, step, dtype=torch_dtype(args.dtypes[0]))
        if (end - start) / step > 0
        else (torch.empty(0, dtype=torch_dtype(args.dtypes[0])))
    )


@operation("one_hot")
def _one_hot(args: Args) -> Any:
    """Indices outside the vector give a row of ``off_value`` (the documentation does not say)."""
    import torch

    indices = args["indices"].long()
    dtype = torch_dtype(args.dtypes[0])
    on, off = (
        torch.tensor(args[k].item() if args.has(k) else d, dtype=dtype) for k, d in (("on_value", 1), ("off_value", 0))
    )
    hot = torch.where(indices.unsqueeze(-1) == torch.arange(args.integer("one_hot_vector_size")), on, off)
    return hot.movedim(-1, axis_of(args, "axis", hot.dim(), -1))


@operation("cumsum")
def _cumsum(args: Args) -> Any:
    import torch

    x = args["x"]
    axis, reverse = axis_of(args, "axis", x.dim(), 0), args.flag("reverse", False)
    y = x.flip(axis) if reverse else x
    y = torch.cumsum(y, axis).to(x.dtype)
    if args.flag("exclusive", False):
        y = torch.cat([torch.zeros_like(y.narrow(axis, 0, 1)), y.narrow(axis, 0, y.shape[axis] - 1)], axis)
    return y.flip(axis) if reverse else y
