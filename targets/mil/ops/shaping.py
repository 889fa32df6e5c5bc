"""Operations that move elements without changing them: reshapes, transposes, blocks, repeats."""

from __future__ import annotations

import math
from typing import Any

from ..dtypes import torch_dtype
from ..registry import IOS17, Args, axis_of, operation


@operation("shape")
def _shape(args: Args) -> Any:
    import torch

    return torch.tensor(list(args["x"].shape), dtype=torch_dtype(args.dtypes[0]))


def _fill_zeros(args: Args, sizes: list[int], target: list[int]) -> list[int]:
    """A 0 in ``shape`` inherits a size: from the same index before iOS 17, counted from the right since."""
    if 0 not in target:
        return target
    if args.version < IOS17:
        if len(sizes) != len(target):
            raise args.error(f"0 in shape {target} of a tensor of rank {len(sizes)}")
        return [s if t == 0 else t for s, t in zip(sizes, target, strict=True)]
    aligned = [1] * max(len(target) - len(sizes), 0) + sizes[max(len(sizes) - len(target), 0) :]
    return [s if t == 0 else t for s, t in zip(aligned, target, strict=True)]


@operation("reshape")
def _reshape(args: Args) -> Any:
    x = args["x"]
    target = _fill_zeros(args, list(x.shape), args.integers("shape"))
    known = math.prod(t for t in target if t != -1)
    if (known != x.numel()) if -1 not in target else (known == 0 or x.numel() % known):
        raise args.error(f"cannot give {list(x.shape)} the shape {target}")
    return x.reshape(target)


@operation("reshape_like")
def _reshape_like(args: Args) -> Any:
    target: list[int] = []
    for ref, begin, end, open_end in zip(
        args.many("ref_tensors"), args.many("begins"), args.many("ends"), args.many("end_masks"), strict=True
    ):
        target += list(ref.shape)[int(begin) : None if bool(open_end) else int(end)]
    return args["x"].reshape(target)


@operation("transpose")
def _transpose(args: Args) -> Any:
    return args["x"].permute(args.integers("perm"))


@operation("expand_dims")
def _expand_dims(args: Args) -> Any:
    x, axes = args["x"], args.integers("axes")
    rank = x.dim() + len(axes)
    for axis in sorted(a % rank for a in axes):
        x = x.unsqueeze(axis)
    return x


@operation("squeeze")
def _squeeze(args: Args) -> Any:
    """Axes of another size than 1 stay, as documented; the declared type then tells whether that is a lie."""
    x = args["x"]
    for axis in sorted((a % x.dim() for a in args.integers("axes", range(x.dim()))), reverse=True):
        x = x.squeeze(axis)
    return x


@operation("flatten2d")
def _flatten2d(args: Args) -> Any:
    x, axis = args["x"], args.integer("axis", 1)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@operation("reverse")
def _reverse(args: Args) -> Any:
    return args["x"].flip(args.integers("axes", range(args["x"].dim())))


@operation("reverse_sequence")
def _reverse_sequence(args: Args) -> Any:
    x, lengths = args["x"].clone(), args.integers("lengths")
    sequence, batch = axis_of(args, "seq_axis", x.dim(), 0), axis_of(args, "batch_axis", x.dim(), 0)
    for i, length in enumerate(lengths):
        part = x.select(batch, i).narrow(sequence - (sequence > batch), 0, length)
        part.copy_(part.flip(sequence - (sequence > batch)))
    return x


@operation("tile")
def _tile(args: Args) -> Any:
    return args["x"].repeat(args.integers("reps"))


@operation("stack")
def _stack(args: Args) -> Any:
    import torch

    return torch.stack(args.many("values"), args.integer("axis"))


@operation("concat")
def _concat(args: Args) -> Any:
    import torch

    values = [v.reshape(1) if v.dim() == 0 else v for v in args.many("values")]  # scalars are allowed, as vectors
    axis = axis_of(args, "axis", values[0].dim())
    if args.flag("interleave", False):
        return torch.stack(values, axis + 1).flatten(axis, axis + 1)
    return torch.cat(values, axis)


@operation("split")
def _split(args: Args) -> Any:
    x = args["x"]
    axis = axis_of(args, "axis", x.dim())
    if args.has("split_sizes"):
        sizes = args.integers("split_sizes")
        if sum(sizes) != x.shape[axis]:
            raise args.error(f"sizes {sizes} of an axis of {x.shape[axis]}")
        return x.split(sizes, axis)
    parts = args.integer("num_splits")
    if x.shape[axis] % parts:
        raise args.error(f"{parts} equal parts of an axis of {x.shape[axis]}")
    return x.split(x.shape[axis] // parts, axis)


@operation("depth_to_space")
def _depth_to_space(args: Args) -> Any:
    """The block index is the slow part of the channel (TensorFlow's order), unlike ``pixel_shuffle``."""
    x, b = args["x"], args.integer("block_size")
    n, c, h, w = x.shape
    blocks = x.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(n, c // (b * b), h * b, w * b)


@operation("space_to_depth")
def _space_to_depth(args: Args) -> Any:
    x, b = args["x"], args.integer("block_size")
    n, c, h, w = x.shape
    return x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4).reshape(n, c * b * b, h // b, w // b)


@operation("space_to_batch")
def _space_to_batch(args: Args) -> Any:
    import torch.nn.functional as functional

    (bh, bw), (top, bottom, left, right) = args.integers("block_shape"), args.integers("paddings")
    x = functional.pad(args["x"], (left, right, top, bottom))
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // bh, bh, w // bw, bw).permute(3, 5, 0, 1, 2, 4)
    return blocks.reshape(n * bh * bw, c, h // bh, w // bw)


@operation("batch_to_space")
def _batch_to_space(args: Args) -> Any:
    x, (bh, bw), (top, bottom, left, right) = args["x"], args.integers("block_shape"), args.integers("crops")
    n, c, h, w = x.shape
    y = x.reshape(bh, bw, n // (bh * bw), c, h, w).permute(2, 3, 4, 0, 5, 1)
    y = y.reshape(n // (bh * bw), c, h * bh, w * bw)
    return y[:, :, top : h * bh - bottom, left : w * bw - right]


@operation("pixel_shuffle")
def _pixel_shuffle(args: Args) -> Any:
    import torch.nn.functional as functional

    return functional.pixel_shuffle(args["x"], args.integer("upscale_factor"))


@operation("pixel_unshuffle")
def _pixel_unshuffle(args: Args) -> Any:
    import torch.nn.functional as functional

    return functional.pixel_unshuffle(args["x"], args.integer("downscale_factor"))


@operation("sliding_windows")
def _sliding_windows(args: Args) -> Any:
    x = args["x"]
    axis = axis_of(args, "axis", x.dim())
    return x.unfold(axis, args.integer("size"), args.integer("stride", 1)).movedim(-1, axis + 1)
