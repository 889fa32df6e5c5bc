"""The evaluator's resizing and resampling of images, against the documentation's examples and PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.errors import VerificationError
from tests.mil_support import Array, run

RNG = np.random.default_rng(3)
IMAGE = RNG.standard_normal((2, 4, 7, 6), dtype=np.float32)


def _torch(function: Any, *arrays: Array) -> Array:
    import torch

    result: Array = function(*[torch.from_numpy(a) for a in arrays]).detach().numpy()
    return result


MODES = {  # the examples in the documentation of resize_bilinear, for two elements (0 and 1)
    "STRICT_ALIGN_CORNERS": [0.0, 0.25, 0.5, 0.75, 1.0],
    "ALIGN_CORNERS": [0.0, 0.25, 0.5, 0.75, 1.0],
    "DEFAULT": [0.0, 0.4, 0.8, 1.0, 1.0],
    "OFFSET_CORNERS": [0.1, 0.3, 0.5, 0.7, 0.9],
    "UNALIGN_CORNERS": [0.0, 0.1, 0.5, 0.9, 1.0],
}


@pytest.mark.parametrize("mode", MODES)
def test_linear_grids_are_the_documented_ones(tmp_path: Path, mode: str) -> None:
    from coremltools.converters.mil import Builder as mb

    x = np.array([[[0.0, 1.0]]], np.float32)
    (got,) = run(
        tmp_path,
        lambda x: mb.resize_bilinear(x=x, target_size_height=1, target_size_width=5, sampling_mode=mode),
        {"x": x},
    )
    np.testing.assert_allclose(got[0, 0], MODES[mode], atol=1e-6)


def test_upsampling_is_pytorchs(tmp_path: Path) -> None:
    import torch.nn.functional as functional
    from coremltools.converters.mil import Builder as mb

    def body(x: Any) -> Any:
        bilinear = {"x": x, "scale_factor_height": 2.5, "scale_factor_width": 2.0}
        return [
            mb.upsample_bilinear(align_corners=False, **bilinear),
            mb.upsample_bilinear(align_corners=True, **bilinear),
            mb.upsample_nearest_neighbor(x=x, scale_factor_height=3, scale_factor_width=2),
            mb.resize_nearest_neighbor(x=x, target_size_height=5, target_size_width=9),
        ]

    got = run(tmp_path, body, {"x": IMAGE})
    size = (17, 12)
    want = [
        _torch(lambda x: functional.interpolate(x, size, mode="bilinear", align_corners=False), IMAGE),
        _torch(lambda x: functional.interpolate(x, size, mode="bilinear", align_corners=True), IMAGE),
        _torch(lambda x: functional.interpolate(x, scale_factor=(3, 2)), IMAGE),
        _torch(lambda x: functional.interpolate(x, (5, 9)), IMAGE),
    ]
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, atol=1e-6)


def test_a_fractional_nearest_factor_follows_the_ratio_of_sizes(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    x = np.array([1.5, -2.5, 3.5], np.float32).reshape(1, 1, 1, 3)

    def body(x: Any) -> Any:
        return [
            mb.upsample_nearest_neighbor(x=x, scale_factor_height=3.17, scale_factor_width=0.67),
            mb.upsample_nearest_neighbor(x=x, scale_factor_height=2.0, scale_factor_width=1.12),
        ]

    got = run(tmp_path, body, {"x": x})  # factors and results of Apple's test of the operation
    np.testing.assert_array_equal(got[0][0, 0], [[1.5, -2.5]] * 3)
    np.testing.assert_array_equal(got[1][0, 0], [[1.5, -2.5, 3.5]] * 2)


def test_nearest_of_ios17_rounds_and_refuses_a_tie(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    x = np.array([-6.0, 9.0], np.float32).reshape(1, 1, 1, 2)

    def to(width: int) -> Any:
        options = {"interpolation_mode": "NEAREST_NEIGHBOR", "sampling_mode": "DEFAULT"}
        return lambda x: mb.resize(x=x, shape=[1, width], resized_dims=np.uint32(2), **options)

    (got,) = run(tmp_path, to(3), {"x": x}, target="iOS17")
    np.testing.assert_array_equal(got[0, 0, 0], [-6, 9, 9])  # as Apple's test of the operation expects
    with pytest.raises(VerificationError, match="half-way between two"):
        run(tmp_path, to(4), {"x": x}, target="iOS17")


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("padding", ["constant", "border", "reflection", "symmetric"])
def test_resampling_is_pytorchs_where_pytorch_has_the_padding(tmp_path: Path, padding: str, corners: bool) -> None:
    import torch.nn.functional as functional
    from coremltools.converters.mil import Builder as mb

    grid = RNG.uniform(-1.6, 1.6, (2, 3, 5, 2)).astype(np.float32)

    def body(x: Any, g: Any) -> Any:
        return [
            mb.resample(
                x=x,
                coordinates=g,
                sampling_mode=mode,
                padding_mode=padding,
                padding_value=0.0,
                coordinates_mode="normalized_minus_one_to_one",
                align_corners=corners,
            )
            for mode in ("bilinear", "nearest")
        ]

    # PyTorch mirrors about pixel centres with align_corners and about pixel edges without: where MIL combines the two
    # otherwise, the same pixels are named in the other normalisation
    last = np.array([5, 6])
    pixels = (grid + 1) / 2 * last if corners else (grid + 1) / 2 * (last + 1) - 0.5
    name, corners_there = {"constant": "zeros", "border": "border"}.get(padding, "reflection"), corners
    if name == "reflection":
        corners_there = padding == "reflection"
    there = (pixels / last if corners_there else (pixels + 0.5) / (last + 1)) * 2 - 1
    got = run(tmp_path, body, {"x": IMAGE, "g": grid})
    for g, mode in zip(got, ("bilinear", "nearest"), strict=True):

        def sample(x: Any, at: Any, mode: str = mode) -> Any:
            return functional.grid_sample(x, at, mode, name, corners_there)

        np.testing.assert_allclose(g, _torch(sample, IMAGE, there.astype(np.float32)), atol=1e-5)
