"""The evaluator's operations that move, pick and place elements, against numpy and coremltools' constant folding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.errors import VerificationError
from tests.mil_support import Array, folded, run

CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def test_shapes_agree_with_coremltools(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    def body(x: Any) -> Any:
        return [
            mb.reshape(x=x, shape=[4, -1]),
            mb.reshape(x=x, shape=[0, 4, 3]),
            mb.transpose(x=x, perm=[2, 0, -2]),
            mb.expand_dims(x=x, axes=[0, -1]),
            mb.squeeze(x=mb.expand_dims(x=x, axes=[1]), axes=[1]),
            mb.reverse(x=x, axes=[0, 2]),
            mb.reverse(x=x),
            mb.flatten2d(x=x, axis=2),
            mb.tile(x=x, reps=[1, 2, 3]),
            mb.stack(values=[x, x], axis=1),
            mb.concat(values=[x, x], axis=-1),
            *mb.split(x=x, split_sizes=[1, 2], axis=1),
            *mb.split(x=x, num_splits=2, axis=2),
            mb.cumsum(x=x, axis=1),
            mb.cumsum(x=x, axis=2, reverse=True),
            mb.band_part(x=x, lower=0, upper=1),
            mb.pad(x=x, pad=[1, 0, 2, 1], constant_val=7.0),
            mb.pad(x=x, pad=[1, 1, 2, 3], mode="reflect"),
            mb.pad(x=x, pad=[2, 1], mode="replicate"),
            mb.argsort(x=x, axis=1),
            *mb.topk(x=x, k=2, axis=2, ascending=True),
        ]

    results = zip(run(tmp_path, body, {"x": CUBE}), folded(body, {"x": CUBE}), strict=True)
    for i, (got, want) in enumerate(results):
        assert got.shape == want.shape, i
        np.testing.assert_array_equal(got, want, err_msg=str(i))


def test_concat_interleaves(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    a, b = np.array([[1, 2], [3, 4]], np.float32), np.array([[5, 6], [7, 8]], np.float32)
    (got,) = run(tmp_path, lambda a, b: mb.concat(values=[a, b], axis=0, interleave=True), {"a": a, "b": b})
    np.testing.assert_array_equal(got, [[1, 2], [5, 6], [3, 4], [7, 8]])


SLICES: list[tuple[dict[str, Any], Any]] = [
    ({"begin": [0, 1, 1], "end": [2, 3, 3]}, np.s_[0:2, 1:3, 1:3]),
    ({"begin": [0, -2, 0], "end": [1, 3, -1]}, np.s_[0:1, -2:3, 0:-1]),
    ({"begin": [0, 0, 3], "end": [2, 3, 0], "stride": [1, 2, -1]}, np.s_[0:2, 0:3:2, 3:0:-1]),
    (
        {"begin": [0, 0, 3], "end": [2, 3, 0], "stride": [1, 1, -2], "end_mask": [False, False, True]},
        np.s_[:, :, 3::-2],
    ),
    ({"begin": [1, 0, 2], "end": [0, 3, 0], "squeeze_mask": [True, False, True]}, np.s_[1, 0:3, 2]),
    ({"begin": [9, 1, 0], "end": [9, 9, 4], "begin_mask": [True, False, False]}, np.s_[:9, 1:9, 0:4]),
]


@pytest.mark.parametrize(("arguments", "key"), SLICES)
def test_slice_by_index_is_numpys(tmp_path: Path, arguments: dict[str, Any], key: Any) -> None:
    from coremltools.converters.mil import Builder as mb

    (got,) = run(tmp_path, lambda x: mb.slice_by_index(x=x, **arguments), {"x": CUBE})
    np.testing.assert_array_equal(got, CUBE[key])


@pytest.mark.parametrize(("arguments", "key"), SLICES)
def test_slice_update_is_numpys(tmp_path: Path, arguments: dict[str, Any], key: Any) -> None:
    from coremltools.converters.mil import Builder as mb

    update = -np.arange(1, CUBE[key].size + 1, dtype=np.float32).reshape(CUBE[key].shape)
    (got,) = run(
        tmp_path,
        lambda x, u: mb.slice_update(x=x, update=u, **arguments),
        {"x": CUBE, "u": update},
        target="iOS18",
    )
    want = CUBE.copy()
    want[key] = update
    np.testing.assert_array_equal(got, want)


def test_slice_by_size_takes_the_rest_for_minus_one(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    (got,) = run(tmp_path, lambda x: mb.slice_by_size(x=x, begin=[1, 0, 1], size=[1, 2, -1]), {"x": CUBE})
    np.testing.assert_array_equal(got, CUBE[1:2, 0:2, 1:])


def test_zero_in_a_shape_counts_from_the_right_since_ios17(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    x = np.arange(100, dtype=np.float32).reshape(2, 50)
    (got,) = run(tmp_path, lambda x: mb.reshape(x=x, shape=[1, 0, -1, 0]), {"x": x}, target="iOS17")
    assert got.shape == (1, 1, 2, 50)  # the example in the operation's documentation


def test_depth_to_space_takes_the_block_first_and_pixel_shuffle_last(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    x = np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1)

    def body(x: Any) -> Any:
        space = mb.depth_to_space(x=x, block_size=2)
        shuffled = mb.pixel_shuffle(x=x, upscale_factor=2)
        return [space, shuffled, mb.space_to_depth(x=space, block_size=2)]

    got = run(tmp_path, body, {"x": x})
    np.testing.assert_array_equal(got[0], [[[[0, 2], [4, 6]], [[1, 3], [5, 7]]]])
    np.testing.assert_array_equal(got[1], [[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]])
    np.testing.assert_array_equal(got[2], x)


def test_made_tensors(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    x = np.array([3, 0, 2], np.int32)

    def body(x: Any) -> Any:
        n = mb.squeeze(x=mb.shape(x=x), axes=[0])
        return [
            mb.fill(shape=mb.concat(values=[mb.shape(x=x), [2]], axis=0), value=1.5),
            mb.range_1d(start=np.int32(0), end=n, step=np.int32(2)),
            mb.one_hot(indices=x, one_hot_vector_size=4, on_value=5.0, off_value=-1.0, axis=0),
            mb.non_zero(x=x),
        ]

    got = run(tmp_path, body, {"x": x})
    np.testing.assert_array_equal(got[0], np.full((3, 2), 1.5))
    np.testing.assert_array_equal(got[1], [0, 2])
    np.testing.assert_array_equal(got[2], np.where(np.eye(4)[x].T == 1, 5.0, -1.0))
    np.testing.assert_array_equal(got[3], [[0], [2]])


def test_gathers(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    at = np.array([[1, 0, 2, 1], [2, 2, 0, 0]], np.int32)

    def body(x: Any, at: Any) -> Any:
        return [
            mb.gather(x=x, indices=at, axis=1),
            mb.gather(x=x, indices=at, axis=1, batch_dims=1),
            mb.gather(x=x, indices=np.int32(1), axis=2),
            mb.gather(x=mb.shape(x=x), indices=np.int32(1), axis=0),
            mb.gather_along_axis(x=x, indices=mb.expand_dims(x=at, axes=[1]), axis=1),
            mb.gather_nd(x=x, indices=np.array([[0, 2], [1, 0]], np.int32)),
            mb.gather_nd(x=x, indices=np.array([[2], [0]], np.int32), batch_dims=1),
        ]

    got = run(tmp_path, body, {"x": CUBE, "at": at}, target="iOS17")
    np.testing.assert_array_equal(got[0], CUBE[:, at])
    np.testing.assert_array_equal(got[1], np.stack([CUBE[i][at[i]] for i in range(2)]))
    np.testing.assert_array_equal(got[2], CUBE[:, :, 1])
    assert (got[3].shape, int(got[3])) == ((), 3)
    np.testing.assert_array_equal(got[4], np.take_along_axis(CUBE, at[:, None], 1))
    np.testing.assert_array_equal(got[5], CUBE[[0, 1], [2, 0]])
    np.testing.assert_array_equal(got[6], np.stack([CUBE[0, 2], CUBE[1, 0]]))


def test_negative_index_counts_from_the_end_until_ios16_and_is_refused_later(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    def body(x: Any, at: Any) -> Any:
        return mb.gather(x=x, indices=at, axis=2)

    inputs = {"x": CUBE, "at": np.array([-1, 0], np.int32)}
    (got,) = run(tmp_path, body, inputs, target="iOS16")
    np.testing.assert_array_equal(got, CUBE[:, :, [-1, 0]])
    with pytest.raises(VerificationError, match="undefined from iOS 17 on"):
        run(tmp_path, body, inputs, target="iOS17")
    with pytest.raises(VerificationError, match=r"indices 0\.\.4 of an axis of size 4"):
        run(tmp_path, body, {"x": CUBE, "at": np.array([0, 4], np.int32)}, target="iOS16")


_MODES = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
}


@pytest.mark.parametrize("mode", [*_MODES, "update"])
def test_scatters_with_a_repeated_position(tmp_path: Path, mode: str) -> None:
    from coremltools.converters.mil import Builder as mb

    data = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
    rows, updates = np.array([2, 0, 2], np.int32), np.array([[2.0, 3.0], [4.0, 0.5], [8.0, 1.5]], np.float32)

    def body(d: Any, u: Any) -> Any:
        return [
            mb.scatter(data=d, indices=rows, updates=u, axis=0, mode=mode),
            mb.scatter_nd(data=d, indices=rows[:, None], updates=u, mode=mode),
            mb.scatter_along_axis(data=d, indices=np.stack([rows, rows], 1), updates=u, axis=0, mode=mode),
        ]

    want: Array = data.copy()
    for row, update in zip(rows, updates, strict=True):
        want[row] = update if mode == "update" else _MODES[mode](want[row], update)
    for got in run(tmp_path, body, {"d": data, "u": updates}):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_scatter_along_an_inner_axis(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    at, updates = np.array([3, 0], np.int32), -np.ones((2, 3, 2), np.float32)
    (got,) = run(
        tmp_path,
        lambda x, u: mb.scatter(data=x, indices=at, updates=u, axis=2, mode="update"),
        {"x": CUBE, "u": updates},
    )
    want = CUBE.copy()
    want[:, :, at] = updates
    np.testing.assert_array_equal(got, want)
