"""Resizing and sampling of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from build.legalize.common import fixed, torch_decomposition
from build.legalize.core import decomposition

if TYPE_CHECKING:
    from torch import Tensor


def _whole_factors(scale_factors: Sequence[float] | None) -> bool:
    return scale_factors is not None and all(float(s).is_integer() for s in scale_factors)


@decomposition(
    "aten.upsample_bilinear2d.vec",
    fault="ExecuTorch and LiteRT lose a factor that is not whole; coremltools refuses it",
)
def bilinear_by_index(x: Tensor, output_size: Any, align_corners: bool, scale_factors: Any) -> Any:
    """Bilinear resize as gathers and interpolation (PyTorch's decomposition), where the factor is not whole.

    A resize to fixed sizes without factors is left alone: every converter derives its scale as PyTorch does.
    """
    if _whole_factors(scale_factors) or (output_size is not None and fixed(*output_size, *x.shape[-2:])):
        return NotImplemented
    return torch_decomposition("aten.upsample_bilinear2d.vec")(x, output_size, align_corners, scale_factors)


@decomposition(
    "aten.upsample_nearest2d.vec",
    fault="Core ML and LiteRT recompute the scale from the sizes when the factor is not whole",
)
def nearest_by_index(x: Tensor, output_size: Any, scale_factors: Any) -> Any:
    """Nearest resize as gathers (PyTorch's decomposition), where the factor is not whole."""
    if _whole_factors(scale_factors):
        return NotImplemented
    return torch_decomposition("aten.upsample_nearest2d.vec")(x, output_size, scale_factors)


@decomposition("aten.upsample_nearest1d.vec", fault="Core ML recomputes the scale when the factor is not whole")
def nearest1d_by_index(x: Tensor, output_size: Any, scale_factors: Any) -> Any:
    """As ``nearest_by_index``, along one axis."""
    if _whole_factors(scale_factors):
        return NotImplemented
    return torch_decomposition("aten.upsample_nearest1d.vec")(x, output_size, scale_factors)


@decomposition("aten.upsample_linear1d.vec", fault="coremltools refuses factors that are not whole")
def linear1d_by_index(x: Tensor, output_size: Any, align_corners: bool, scale_factors: Any) -> Any:
    """Linear resize along one axis as gathers and interpolation, where the factor is not whole."""
    if _whole_factors(scale_factors):
        return NotImplemented
    return torch_decomposition("aten.upsample_bilinear2d.vec")(x, output_size, align_corners, scale_factors)


@decomposition(
    "aten._upsample_bilinear2d_aa.vec",
    fault="coremltools ignores antialias=; OpenVINO and ExecuTorch have no such op",
)
def antialiased_bilinear_by_matmul(x: Tensor, output_size: Any, align_corners: bool, scale_factors: Any = None) -> Any:
    """Antialiased bilinear resize as one matrix per axis: a triangle filter of the scale's width.

    Source of the filter: ``HelperInterpLinear`` in ATen's ``UpSampleKernel.cpp``. Sizes must be fixed.
    """
    import torch

    height, width = x.shape[-2:]
    if output_size is None:
        output_size = [int(height * scale_factors[0]), int(width * scale_factors[1])]
    if align_corners or not fixed(height, width, *output_size):
        return NotImplemented

    def weights(size: int, out: int, factor: float | None) -> Tensor:
        scale = 1.0 / factor if factor else size / out
        support = max(scale, 1.0)
        centre = (torch.arange(out, dtype=torch.float32) + 0.5) * scale
        place = torch.arange(size, dtype=torch.float32) + 0.5
        raw = torch.relu(1 - torch.abs(place.unsqueeze(0) - centre.unsqueeze(1)) / support)
        return (raw / raw.sum(1, keepdim=True)).to(x.dtype)

    factors = scale_factors or [None, None]
    rows = torch.matmul(weights(height, output_size[0], factors[0]), x)
    return torch.matmul(rows, weights(width, output_size[1], factors[1]).t())


@decomposition("aten.grid_sampler.default", fault="coremltools has no bicubic grid_sample")
def bicubic_grid_sample_by_index(x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Any:
    """Bicubic sampling as gathers (PyTorch's decomposition); the other modes are left alone."""
    if mode != 2:
        return NotImplemented
    return torch_decomposition("aten.grid_sampler_2d.default")(x, grid, mode, padding, align_corners)


@decomposition(
    "aten.grid_sampler.default",
    fault="Core ML's resample is undefined outside the image for reflection, and rounds half away in nearest mode",
)
def grid_sample_by_index(x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Any:
    """Sampling in any mode as gathers (PyTorch's decomposition)."""
    return torch_decomposition("aten.grid_sampler_2d.default")(x, grid, mode, padding, align_corners)


for _op, _lacking in (
    ("upsample_bicubic2d.vec", "coremltools has no bicubic resize; ExecuTorch and LiteRT lose its factor"),
    ("_upsample_nearest_exact1d.vec", "coremltools has no nearest-exact resize"),
    ("_upsample_nearest_exact2d.vec", "coremltools has no nearest-exact resize"),
    ("upsample_trilinear3d.vec", "coremltools has no trilinear resize"),
    ("upsample_nearest3d.vec", "coremltools has no three-dimensional resize"),
    ("affine_grid_generator.default", "coremltools reads affine_grid's size as one constant"),
):
    decomposition(f"aten.{_op}", fault=_lacking, name=_op.split(".")[0].strip("_") + "_written_out")(
        torch_decomposition(f"aten.{_op}")
    )
