"""Which models take pictures on a bundle's page, and by which steps."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from device_bench.web.pictures import picture_spec
from targets.contract import DynamicDim, Signature, TensorSpec
from tests.web.support import PREPROCESSING


def _signature(
    dtype: str = "float32", shape: tuple[Any, ...] = (DynamicDim(symbol="s0", lo=1, hi=4), 3, 20, 30)
) -> Any:
    spec = TensorSpec(name="x", dtype=dtype, shape=shape)
    return Signature(inputs=(spec,), outputs=(TensorSpec(name="y", dtype="float32", shape=(1, 2)),))


def test_which_models_take_pictures() -> None:
    rgb = {"layout": "NCHW", "color": "RGB", "mean": [1, 2, 3], "std": [4, 5, 6], "steps": []}
    found = picture_spec(_signature(), rgb, ["a", "b"], "y", {})
    assert not isinstance(found, str)
    assert (found["width"], found["height"], found["shape"]) == (30, 20, [1, 3, 20, 30])
    assert (found["dark"], found["light"], found["method"]) == (0.0, 255.0, "bilinear")
    gray = picture_spec(_signature(shape=(1, 1, 8, 8)), PREPROCESSING, [], "y", {})
    assert not isinstance(gray, str)
    assert (gray["dark"], gray["light"], gray["method"]) == (16.0, 0.0, "box")
    for signature, preprocessing, output in (
        (_signature(), rgb, None),
        (_signature(), None, "y"),
        (_signature("int64"), rgb, "y"),
        (_signature(shape=(1, 4, 20, 30)), rgb, "y"),
        (_signature(shape=(1, 3, 20)), rgb, "y"),
        (_signature(shape=(2, 3, 20, 30)), rgb, "y"),
        (_signature(), {**rgb, "layout": "BT"}, "y"),
    ):
        assert isinstance(picture_spec(signature, preprocessing, [], output, {}), str)


def test_pictures_have_the_size_of_the_models_example() -> None:
    """Not the least that the model takes: at 32x32 a model for 224x224 answers confidently, and wrong."""
    rgb = {"layout": "NCHW", "color": "RGB", "mean": [], "std": [], "steps": []}
    batch = DynamicDim(symbol="s0", lo=1, hi=4)
    height, width = (DynamicDim(symbol=s, lo=32, hi=512, scale=32) for s in ("s1", "s2"))
    signature = _signature(shape=(batch, 3, height, width))
    found = picture_spec(signature, rgb, [], "y", {"s0": 2, "s1": 7, "s2": 5})
    assert not isinstance(found, str)
    assert (found["shape"], found["width"], found["height"]) == ([1, 3, 224, 160], 160, 224)
    assert found["sizes"] == {"s0": 1, "s1": 7, "s2": 5}, "what a page counts the outputs' sizes with"
    unknown = picture_spec(signature, rgb, [], "y", {})
    assert unknown == "No pictures here: the size that this model wants them in is not known."
    pairs = _signature(shape=(DynamicDim(symbol="s0", lo=2, hi=4, scale=2), 3, 20, 30))
    assert picture_spec(pairs, rgb, [], "y", {}) == "No pictures here: this model takes several at a time."


def test_the_projects_own_steps_are_understood() -> None:
    from models import digits_cnn, efficientnet_lite0

    for spec, shape in ((digits_cnn.spec(), (1, 1, 8, 8)), (efficientnet_lite0.spec(), (1, 3, 224, 224))):
        assert spec.preprocessing is not None
        found = picture_spec(_signature(shape=shape), dataclasses.asdict(spec.preprocessing), [], "y", {})
        assert not isinstance(found, str), found


@pytest.mark.parametrize(
    "step",
    [
        "resize the shorter side to 256, bilinear, antialias",
        "resize to 30x20, nearest",
        "resize to 30x20, bilinear",
        "resize to 256x256, bilinear, antialias",
        "center crop 30x20",
        "equalise the histogram",
        "BGR, 8 bits per channel",
        "subtract 127, divide by 128",
        "divide by 255",
        "8x8 pixels, ink 16, paper 0",
        "",
    ],
)
def test_a_step_that_the_page_does_not_do_means_no_pictures(step: str) -> None:
    rgb = {"layout": "NCHW", "color": "RGB", "mean": [1, 1, 1], "std": [2, 2, 2]}
    good = ["RGB, 8 bits per channel", "resize to 30x20, bilinear, antialias", "subtract 1, divide by 2"]
    assert not isinstance(picture_spec(_signature(), {**rgb, "steps": good}, [], "y", {}), str)
    found = picture_spec(_signature(), {**rgb, "steps": [*good, step]}, [], "y", {})
    assert found == f"No pictures here: this page can't do a step of this model's preprocessing: '{step}'."


def test_one_mean_is_no_mean_of_three_channels() -> None:
    rgb = {"layout": "NCHW", "color": "RGB", "mean": [127], "std": [128, 128, 128], "steps": []}
    found = picture_spec(_signature(), rgb, [], "y", {})
    assert found == "No pictures here: this model's mean and std are not those of 3 channels."
