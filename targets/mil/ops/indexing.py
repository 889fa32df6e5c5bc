"""Gather and scatter.

Negative indices count from the end up to iOS 16; from iOS 17 on an index outside its axis is undefined, so the
evaluator refuses it instead of guessing. With ``update``, a position written twice keeps the last write here; with
the arithmetic modes every write counts, in order (the documentation leaves both open).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..registry import IOS17, Args, axis_of, operation


def _checked(args: Args, indices: Any, size: int) -> Any:
    import torch

    indices = indices.long()
    if indices.numel() == 0:
        return indices
    lo, hi = int(indices.min()), int(indices.max())
    floor = -size if args.version < IOS17 else 0
    if lo < floor or hi >= size:
        since = ", which is undefined from iOS 17 on" if -size <= lo < 0 and hi < size else ""
        raise args.error(f"indices {lo}..{hi} of an axis of size {size}{since}")
    return torch.where(indices < 0, indices + size, indices) if lo < 0 else indices


def _batched(x: Any, indices: Any, batch_dims: int, one: Callable[[Any, Any], Any]) -> Any:
    """Applies ``one`` to each pair of leading (batch) entries."""
    import torch

    if batch_dims == 0:
        return one(x, indices)
    lead = x.shape[:batch_dims]
    pairs = zip(x.flatten(0, batch_dims - 1), indices.flatten(0, batch_dims - 1), strict=True)
    rows = torch.stack([one(a, b) for a, b in pairs])
    return rows.reshape([*lead, *rows.shape[1:]])


@operation("gather")
def _gather(args: Args) -> Any:
    x = args["x"]
    axis, batch = axis_of(args, "axis", x.dim(), 0), args.integer("batch_dims", 0)
    indices = _checked(args, args["indices"], x.shape[axis])

    def one(a: Any, at: Any) -> Any:
        rows = a.index_select(axis - batch, at.reshape(-1))
        return rows.reshape([*a.shape[: axis - batch], *at.shape, *a.shape[axis - batch + 1 :]])

    return _batched(x, indices, batch, one)


@operation("gather_along_axis")
def _gather_along_axis(args: Args) -> Any:
    x = args["x"]
    axis = axis_of(args, "axis", x.dim(), 0)
    return x.gather(axis, _checked(args, args["indices"], x.shape[axis]))


def _coordinates(args: Args, indices: Any, sizes: Sequence[int]) -> list[Any]:
    return [_checked(args, indices[..., j], sizes[j]) for j in range(indices.shape[-1])]


@operation("gather_nd")
def _gather_nd(args: Args) -> Any:
    def one(a: Any, at: Any) -> Any:
        return a[tuple(_coordinates(args, at, a.shape))]

    return _batched(args["x"], args["indices"], args.integer("batch_dims", 0), one)


def _scatter_flat(args: Args, data: Any, positions: Any, updates: Any) -> Any:
    """Writes rows ``updates[i]`` at ``positions[i]`` of ``data``, one after the other where order counts."""
    import torch

    mode = args.text("mode", "add")
    out = data.clone()
    if mode == "add":
        return out.index_add_(0, positions, updates)
    if mode == "sub":
        return out.index_add_(0, positions, -updates)
    steps: dict[str, Callable[[Any, Any], Any]] = {
        "update": lambda old, new: new,
        "mul": lambda old, new: old * new,
        "div": lambda old, new: old / new if old.is_floating_point() else torch.div(old, new, rounding_mode="trunc"),
        "max": torch.maximum,
        "min": torch.minimum,
    }
    if mode not in steps:
        raise args.error(f"unknown mode {mode}")
    if positions.unique().numel() == positions.numel():
        out[positions] = steps[mode](out[positions], updates)
        return out
    for at, row in zip(positions.tolist(), updates, strict=True):
        out[at] = steps[mode](out[at], row)
    return out


def _flat_index(coordinates: Sequence[Any], sizes: Sequence[int]) -> Any:
    flat = coordinates[0]
    for coordinate, size in zip(coordinates[1:], sizes[1:], strict=True):
        flat = flat * size + coordinate
    return flat.reshape(-1)


@operation("scatter")
def _scatter(args: Args) -> Any:
    data, updates = args["data"], args["updates"]
    axis = axis_of(args, "axis", data.dim(), 0)
    positions = _checked(args, args["indices"], data.shape[axis])
    if positions.dim() == 0:  # a single index: the updates have no axis for it
        positions, updates = positions.reshape(1), updates.reshape(*data.shape[:axis], 1, *data.shape[axis + 1 :])
    out = _scatter_flat(args, data.movedim(axis, 0).contiguous(), positions, updates.movedim(axis, 0))
    return out.movedim(0, axis)


@operation("scatter_nd")
def _scatter_nd(args: Args) -> Any:
    data, indices, updates = args["data"], args["indices"], args["updates"]
    depth = indices.shape[-1]
    positions = _flat_index(_coordinates(args, indices, data.shape), data.shape[:depth])
    rows = data.reshape(-1, *data.shape[depth:])
    return _scatter_flat(args, rows, positions, updates.reshape(-1, *data.shape[depth:])).reshape(data.shape)


@operation("scatter_along_axis")
def _scatter_along_axis(args: Args) -> Any:
    import torch

    data, updates = args["data"], args["updates"]
    axis = axis_of(args, "axis", data.dim(), 0)
    indices = _checked(args, args["indices"], data.shape[axis])
    grid = torch.meshgrid(*[torch.arange(n) for n in indices.shape], indexing="ij")
    coordinates = [indices if i == axis else g for i, g in enumerate(grid)]
    positions = _flat_index(coordinates, data.shape)
    return _scatter_flat(args, data.reshape(-1), positions, updates.reshape(-1)).reshape(data.shape)
