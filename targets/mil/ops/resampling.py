"""Resizing and resampling of images. Grids and weights are computed in float64, the result rounded once.

Left open by the documentation:

- nearest neighbours: ``floor(i * in / out)`` for the operations of iOS 15, but the rounded linear grid for iOS 17's
  ``resize`` (as Apple's own tests of ``upsample_nearest_neighbor`` and ``resize``, shipped inside coremltools, expect;
  that ``resize_nearest_neighbor`` follows the former is assumed). A point half-way between two
  elements is refused in the latter: which of the two it takes is not defined.
- ``upsample_nearest_neighbor`` with a fractional factor: positions follow the ratio of sizes, not the factor (as
  Apple's own operation test, shipped inside coremltools, expects).
- ``resample`` with ``nearest``: halves go to even.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..registry import Args, operation


def _grid(args: Args, n: int, out: int, mode: str) -> Any:
    """The documented sampling positions of ``out`` points along an axis of ``n``."""
    import torch

    i = torch.arange(out, dtype=torch.float64)
    if mode in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS"):
        if out == 1:
            at = torch.full((1,), (n - 1) / 2 if mode == "ALIGN_CORNERS" else 0.0, dtype=torch.float64)
        else:
            at = i * (n - 1) / (out - 1)
    elif mode == "DEFAULT":
        at = i * n / out
    elif mode == "OFFSET_CORNERS":
        at = (i + 0.5) * max(1, n - 1) / out
    elif mode == "UNALIGN_CORNERS":
        at = (i + 0.5) * n / out - 0.5
    else:
        raise args.error(f"unknown sampling_mode {mode}")
    return at.clamp(0, n - 1)


def _nearest(args: Args, n: int, out: int, mode: str) -> Any:
    import torch

    if args.op != "resize":
        i = torch.arange(out)
        return (i * n) // out  # whole numbers: a product of floats could land just below an integer
    at = _grid(args, n, out, mode)
    if bool(((at - at.floor() - 0.5).abs() < 1e-6).any()):
        raise args.error(f"{mode} from {n} to {out} elements has points half-way between two: undefined")
    return at.round().long()


def _resize(args: Args, x: Any, sizes: Sequence[int], mode: str, nearest: bool) -> Any:
    """Resizes the trailing axes, one after the other (linear interpolation separates)."""
    import torch

    dtype = x.dtype
    for k, out in enumerate(sizes):
        axis = x.dim() - len(sizes) + k
        n = x.shape[axis]
        if nearest:
            x = x.index_select(axis, _nearest(args, n, out, mode))
            continue
        at = _grid(args, n, out, mode)
        low = at.floor().long()
        weight = (at - low).reshape([-1] + [1] * (x.dim() - axis - 1))
        high = (low + 1).clamp(max=n - 1)
        x = x.double()
        x = torch.lerp(x.index_select(axis, low), x.index_select(axis, high), weight)
    return x.to(dtype) if x.dtype.is_floating_point == dtype.is_floating_point else x.trunc().to(dtype)


def _scaled(args: Args) -> list[int]:
    """Output height and width of the ``upsample`` operations."""
    factors = (args.number(f"scale_factor_{key}", 1.0) for key in ("height", "width"))
    # a float32 factor such as 1.1 may miss its integer from below
    return [math.floor(n * factor + 1e-6) for n, factor in zip(args["x"].shape[-2:], factors, strict=True)]


@operation("upsample_nearest_neighbor")
def _upsample_nearest(args: Args) -> Any:
    return _resize(args, args["x"], _scaled(args), "DEFAULT", True)


@operation("upsample_bilinear")
def _upsample_bilinear(args: Args) -> Any:
    corners = args.flag("align_corners", True)
    centers = args.flag("half_pixel_centers", not corners)
    if corners and centers:
        raise args.error("align_corners together with half_pixel_centers is not defined")
    mode = "STRICT_ALIGN_CORNERS" if corners else "UNALIGN_CORNERS" if centers else "DEFAULT"
    return _resize(args, args["x"], _scaled(args), mode, False)


@operation("resize_nearest_neighbor")
def _resize_nearest(args: Args) -> Any:
    sizes = [args.integer("target_size_height"), args.integer("target_size_width")]
    return _resize(args, args["x"], sizes, "DEFAULT", True)


@operation("resize_bilinear")
def _resize_bilinear(args: Args) -> Any:
    sizes = [args.integer("target_size_height", 1), args.integer("target_size_width", 1)]
    return _resize(args, args["x"], sizes, args.text("sampling_mode", "DEFAULT"), False)


@operation("resize")
def _resize_dynamic(args: Args) -> Any:
    x, shape, count = args["x"], args.integers("shape"), args.integer("resized_dims")
    sizes = [x.shape[x.dim() - count + i] if s == 0 else s for i, s in enumerate(shape[len(shape) - count :])]
    mode = args.text("interpolation_mode", "LINEAR")
    if mode not in ("LINEAR", "NEAREST_NEIGHBOR"):
        raise args.error(f"unknown interpolation_mode {mode}")
    return _resize(args, x, sizes, args.text("sampling_mode", "DEFAULT"), mode == "NEAREST_NEIGHBOR")


def _pixels(args: Args, at: Any, n: int) -> Any:
    """Coordinates as positions of pixel centres, 0 to n - 1 inside the image."""
    mode, corners = args.text("coordinates_mode"), args.flag("align_corners", True)
    if mode == "unnormalized":
        return at
    if mode == "normalized_minus_one_to_one":
        at = (at + 1) / 2
    elif mode != "normalized_zero_to_one":
        raise args.error(f"unknown coordinates_mode {mode}")
    return at * (n - 1) if corners else at * n - 0.5


def _reflected(at: Any, lo: float, hi: float) -> Any:
    """Folds positions into [lo, hi] by mirroring at both ends."""
    if hi <= lo:
        return at * 0
    span = hi - lo
    folded = (at - lo).abs() % (2 * span)
    return lo + span - (folded - span).abs()


def _sample(args: Args, x: Any, px: Any, py: Any) -> Any:
    """Values of x [B, C, H, W] at pixel positions px, py [B, H2, W2]."""
    import torch

    mode, padding = args.text("sampling_mode"), args.text("padding_mode")
    if mode not in ("bilinear", "nearest") or padding not in ("constant", "border", "reflection", "symmetric"):
        raise args.error(f"unknown sampling_mode {mode} or padding_mode {padding}")
    height, width = x.shape[2:]
    constant = args.number("padding_value", 0.0) if padding == "constant" else 0.0

    def folded(at: Any, n: int) -> Any:
        if padding == "reflection":
            at = _reflected(at, 0, n - 1)
        elif padding == "symmetric":
            at = _reflected(at, -0.5, n - 0.5)
        return at if padding == "constant" else at.clamp(0, n - 1)

    px, py = folded(px, width), folded(py, height)

    def pixel(row: Any, column: Any) -> Any:
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        flat = row.clamp(0, height - 1).long() * width + column.clamp(0, width - 1).long()
        at = flat.reshape(x.shape[0], 1, -1).expand(-1, x.shape[1], -1)
        found = x.double().flatten(2).gather(2, at).reshape(x.shape[0], x.shape[1], *row.shape[1:])
        return torch.where(inside[:, None], found, torch.tensor(constant, dtype=torch.float64))

    if mode == "nearest":
        return pixel(py.round(), px.round()).to(x.dtype)
    top, left = py.floor(), px.floor()
    wy, wx = (py - top)[:, None], (px - left)[:, None]
    upper = pixel(top, left) * (1 - wx) + pixel(top, left + 1) * wx
    lower = pixel(top + 1, left) * (1 - wx) + pixel(top + 1, left + 1) * wx
    return (upper * (1 - wy) + lower * wy).to(x.dtype)


@operation("resample")
def _resample(args: Args) -> Any:
    x, at = args["x"], args["coordinates"].double()
    return _sample(args, x, _pixels(args, at[..., 0], x.shape[3]), _pixels(args, at[..., 1], x.shape[2]))


@operation("affine")
def _affine(args: Args) -> Any:
    """Output coordinates run over -1..1 with the corner pixels at the ends (the only form allowed)."""
    import torch

    x = args["x"]
    matrix = args["transform_matrix"].double().expand(x.shape[0], 6).reshape(-1, 6, 1, 1)
    height, width = args.integer("output_height"), args.integer("output_width")
    v, u = torch.meshgrid(
        torch.linspace(-1, 1, height, dtype=torch.float64),
        torch.linspace(-1, 1, width, dtype=torch.float64),
        indexing="ij",
    )
    px, py = (matrix[:, 3 * k] * u + matrix[:, 3 * k + 1] * v + matrix[:, 3 * k + 2] for k in (0, 1))
    return _sample(args, x, _pixels(args, px, x.shape[3]), _pixels(args, py, x.shape[2]))
