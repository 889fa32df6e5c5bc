"""The evaluator's element-wise operations, activations and reductions, against coremltools' own constant folding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.mil_support import Array, folded, run

#: away from kinks and poles; positive values where the domain asks for them
SIGNED = np.array([[-2.5, -1.5, -0.5, 0.25], [0.5, 1.5, 2.5, 3.75]], np.float32)
UNIT = np.array([[-0.9, -0.5, -0.1, 0.0], [0.1, 0.3, 0.5, 0.9]], np.float32)
POSITIVE = np.abs(SIGNED)


def test_unary_operations_agree_with_coremltools(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    signed = "abs atan ceil cos cosh erf exp exp2 floor relu relu6 round sigmoid sign sin sinh softplus softsign square"
    names = [*signed.split(), "tan", "tanh"]
    inside, above = ["acos", "asin", "atanh"], ["sqrt", "log", "rsqrt", "inverse"]

    def body(x: Any, u: Any, p: Any) -> Any:
        return [
            *(getattr(mb, n)(x=x) for n in names),
            *(getattr(mb, n)(x=u) for n in inside),
            *(getattr(mb, n)(x=p) for n in above),
        ]

    inputs = {"x": SIGNED, "u": UNIT, "p": POSITIVE}
    for name, got, want in zip(names + inside + above, run(tmp_path, body, inputs), folded(body, inputs), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6, rtol=1e-5, err_msg=name)


def test_binary_operations_agree_with_coremltools(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    both = ["add", "sub", "mul", "maximum", "minimum", "mod", "floor_div", "equal", "not_equal", "greater", "less"]
    both += ["greater_equal", "less_equal"]

    def body(x: Any, y: Any, i: Any, j: Any) -> Any:
        floats = [getattr(mb, n)(x=x, y=y) for n in [*both, "real_div"]]
        integers = [getattr(mb, n)(x=i, y=j) for n in both]
        return [mb.cast(x=v, dtype="fp32") for v in (*floats, *integers)]

    inputs = {
        "x": SIGNED,
        "y": np.array([0.5, -1.5, 2.0, 3.75], np.float32),  # broadcasts
        "i": np.array([[-7, 7, -6, 5], [3, -2, 0, 9]], np.int32),
        "j": np.array([[2, -2, 3, 5], [-4, -2, 7, 9]], np.int32),
    }
    names = [*both, "real_div", *both]
    for name, got, want in zip(names, run(tmp_path, body, inputs), folded(body, inputs), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6, err_msg=name)


def test_activations_with_parameters_agree_with_coremltools(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    image = np.linspace(-3, 3, 24, dtype=np.float32).reshape(1, 3, 2, 4)
    three = np.array([0.1, 0.5, 2.0], np.float32)

    def body(x: Any) -> Any:
        return [
            mb.clamped_relu(x=x, alpha=0.3, beta=1.5),
            mb.elu(x=x, alpha=0.7),
            mb.gelu(x=x),
            mb.gelu(x=x, mode="TANH_APPROXIMATION"),
            mb.gelu(x=x, mode="SIGMOID_APPROXIMATION"),
            mb.leaky_relu(x=x, alpha=0.2),
            mb.linear_activation(x=x, alpha=2.0, beta=-1.0),
            mb.prelu(x=x, alpha=three),
            mb.scaled_tanh(x=x, alpha=1.5, beta=0.5),
            mb.sigmoid_hard(x=x, alpha=0.2, beta=0.5),
            mb.softplus_parametric(x=x, alpha=three, beta=three),
            mb.softmax(x=x, axis=1),
            mb.clip(x=x, alpha=-1.0, beta=2.0),
            mb.threshold(x=x, alpha=0.5),
        ]

    for got, want in zip(run(tmp_path, body, {"x": image}), folded(body, {"x": image}), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6, rtol=1e-5)


def test_thresholded_relu_keeps_the_threshold_itself(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    x = np.array([-1.0, 0.5, 1.0, 2.0], np.float32)
    (got,) = run(tmp_path, lambda x: mb.thresholded_relu(x=x, alpha=1.0), {"x": x})
    np.testing.assert_array_equal(got, [0.0, 0.0, 1.0, 2.0])


def test_reductions_agree_with_coremltools(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    names = [f"reduce_{n}" for n in ("sum", "mean", "max", "min", "prod", "l1_norm", "l2_norm", "sum_square")]
    x = np.array([[[1.0, -2.0], [3.0, 0.5]], [[-1.5, 2.0], [0.25, 4.0]]], np.float32)

    def body(x: Any) -> Any:
        return [
            *(getattr(mb, n)(x=x, axes=[0, -1]) for n in names),
            *(getattr(mb, n)(x=x, axes=[1], keep_dims=True) for n in names),
            *(getattr(mb, n)(x=x) for n in names),
            mb.reduce_log_sum_exp(x=x, axes=[2]),
            mb.reduce_log_sum(x=mb.abs(x=x), axes=[2]),
        ]

    for got, want in zip(run(tmp_path, body, {"x": x}), folded(body, {"x": x}), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_argmax_gives_the_first_of_equals_and_drops_the_axis(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    x = np.array([[1.0, 3.0, 3.0], [2.0, 0.0, 0.0]], np.float32)
    got = run(
        tmp_path,
        lambda x: [
            mb.reduce_argmax(x=x, axis=1),
            mb.reduce_argmin(x=x, axis=1),
            mb.reduce_argmax(x=x, axis=0, keep_dims=True),
        ],
        {"x": x},
    )
    assert [g.dtype for g in got] == [np.int32] * 3
    np.testing.assert_array_equal(got[0], [1, 0])
    np.testing.assert_array_equal(got[1], [0, 1])
    np.testing.assert_array_equal(got[2], [[1, 0, 0]])


@pytest.mark.parametrize(
    ("value", "want"), [(2.9, 2), (-2.9, -2), (3e9, 2**31 - 1), (-3e9, -(2**31)), (float("nan"), 0)]
)
def test_cast_to_integer_truncates_and_saturates(tmp_path: Path, value: float, want: int) -> None:
    from coremltools.converters.mil import Builder as mb

    (got,) = run(tmp_path, lambda x: mb.cast(x=x, dtype="int32"), {"x": np.array([value], np.float32)})
    assert got.tolist() == [want]


def test_nan_is_not_lost(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    x = np.array([np.nan, -1.0, 2.0], np.float32)
    got = run(
        tmp_path,
        lambda x: [
            mb.relu(x=x),
            mb.maximum(x=x, y=np.float32(0)),
            mb.clip(x=x, alpha=0.0, beta=1.0),
            mb.reduce_max(x=x),
        ],
        {"x": x},
    )
    assert all(np.isnan(g.reshape(-1)[0]) for g in got)


def test_select_and_logic(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    x = np.array([-1.0, 0.0, 2.0, 5.0], np.float32)

    def body(x: Any) -> Any:
        positive, small = mb.greater(x=x, y=np.float32(0)), mb.less(x=x, y=np.float32(3))
        masks = [
            mb.logical_and(x=positive, y=small),
            mb.logical_or(x=positive, y=small),
            mb.logical_xor(x=positive, y=small),
            mb.logical_not(x=small),
        ]
        return [*(mb.cast(x=m, dtype="int32") for m in masks), mb.select(cond=small, a=x, b=np.float32(-9))]

    got = run(tmp_path, body, {"x": x})
    np.testing.assert_array_equal(got[0], [0, 0, 1, 0])
    np.testing.assert_array_equal(got[1], [1, 1, 1, 1])
    np.testing.assert_array_equal(got[2], [1, 1, 0, 1])
    np.testing.assert_array_equal(got[3], [0, 0, 0, 1])
    np.testing.assert_array_equal(got[4], [-1, 0, 2, -9])


def _epsilon_inputs() -> dict[str, Array]:
    return {"x": np.array([0.0, 1.0, 4.0], np.float32)}


def test_epsilons_are_those_of_the_file(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    def body(x: Any) -> Any:
        return [mb.inverse(x=x, epsilon=0.5), mb.rsqrt(x=x, epsilon=0.25), mb.log(x=x, epsilon=1.0), mb.log(x=x)]

    got = run(tmp_path, body, _epsilon_inputs())
    np.testing.assert_allclose(got[0], [2.0, 1 / 1.5, 1 / 4.5], rtol=1e-6)
    np.testing.assert_allclose(got[1], [2.0, 1.25**-0.5, 4.25**-0.5], rtol=1e-6)
    np.testing.assert_allclose(got[2], np.log([1.0, 2.0, 5.0]), rtol=1e-6)
    assert np.isfinite(got[3][0])  # the default epsilon keeps log(0) finite
    assert got[3][0] < -100
