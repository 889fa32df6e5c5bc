"""The arithmetic of verification."""

from __future__ import annotations

import math

import numpy as np
import pytest

from build.verify.accuracy import Accuracy
from build.verify.check import Report
from build.verify.compare import DEFAULT_TOLERANCES, Decision, Tolerance, changed_decisions, difference, extent

EXACT = Tolerance(atol=0, rtol=0)
LOOSE = Tolerance(atol=1e-3, rtol=1e-3)


def test_equal_arrays_have_no_difference() -> None:
    x = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)
    found = difference("y", x, x.copy(), EXACT)
    assert found.ok
    assert found.max_abs == 0
    assert found.snr_db == math.inf


@pytest.mark.parametrize(
    ("got", "want"),
    [
        ([0.0, 1.0], [math.nan, 1.0]),
        ([math.nan, 1.0], [0.0, 1.0]),
        ([math.inf, 1.0], [-math.inf, 1.0]),
        ([3.4e38, 1.0], [math.inf, 1.0]),
    ],
)
def test_nan_and_infinity_count_as_values(got: list[float], want: list[float]) -> None:
    found = difference("y", np.array(got, np.float32), np.array(want, np.float32), LOOSE)
    assert found.nonfinite == 1
    assert not found.ok


def test_shape_and_dtype_are_part_of_the_answer() -> None:
    x = np.zeros((2, 3), np.float32)
    assert "shape" in difference("y", x[:, :2], x, LOOSE).problem
    assert "dtype" in difference("y", x.astype(np.float64), x, LOOSE).problem


def test_one_wrong_integer_fails_whatever_the_tolerance() -> None:
    want = np.arange(1000, dtype=np.int64)
    got = want.copy()
    got[17] += 1
    found = difference("y", got, want, Tolerance(atol=10, rtol=10))
    assert found.beyond == 1
    assert not found.ok


def test_a_small_element_is_not_hidden_by_a_large_one() -> None:
    want = np.array([1e6, 1.0], np.float32)
    got = np.array([1e6, 1.5], np.float32)
    assert difference("y", got, want, Tolerance(atol=1e-5, rtol=1e-4)).beyond == 1


@pytest.mark.parametrize("precision", sorted(DEFAULT_TOLERANCES))
@pytest.mark.parametrize("fill", [-1e9, -1e4, float(np.finfo(np.float32).min), 3e38])
@pytest.mark.parametrize("masked", [0.01, 0.5, 0.9])
def test_a_masks_fill_hides_no_wrong_score(precision: str, fill: float, masked: float) -> None:
    random = np.random.default_rng(5)
    want = random.normal(size=(8, 200)).astype(np.float32)
    hidden = random.random(want.shape) < masked
    want[hidden] = fill
    got = want.copy()
    assert difference("y", got, want, DEFAULT_TOLERANCES[precision]).ok
    row, column = np.argwhere(~hidden)[0]
    got[row, column] += 10.0
    assert difference("y", got, want, DEFAULT_TOLERANCES[precision]).beyond == 1


def test_boxes_in_pixels_hide_no_wrong_score_beside_them() -> None:
    random = np.random.default_rng(6)
    want = np.concatenate([random.random((50, 4)) * 640, random.random((50, 80)) ** 4], 1).astype(np.float32)
    got = want.copy()
    got[:, 4:] += np.where(got[:, 4:] > 0.5, -0.4, 0.0)
    assert difference("y", got, want, DEFAULT_TOLERANCES["fp16"]).beyond == np.count_nonzero(want[:, 4:] > 0.5)


def test_the_extent_is_the_largest_value_of_ordinary_outputs() -> None:
    random = np.random.default_rng(7)
    assert extent(np.array([0.0, -3.0, 2.0])) == 3.0
    assert extent(np.zeros(4)) == 0.0
    assert extent(np.array([np.nan, np.inf])) == 0.0
    for values in (random.normal(size=1000), random.dirichlet(np.full(1000, 0.01)), np.arange(10.0) * 1e6):
        assert extent(values) == np.abs(values).max()


def test_snr_and_cosine_of_known_noise() -> None:
    want = np.array([3.0, 4.0], np.float32)
    found = difference("y", np.array([3.0, 4.5], np.float32), want, LOOSE)
    assert found.snr_db == pytest.approx(20.0)  # 10 log10(25 / 0.25)
    assert found.cosine == pytest.approx((9 + 18) / (5 * math.hypot(3, 4.5)))
    assert found.max_abs == pytest.approx(0.5)
    assert found.max_rel == pytest.approx(0.125)


def test_empty_output_is_equal_when_its_shape_is() -> None:
    assert difference("y", np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), EXACT).ok


def test_changed_decisions_tell_ties_apart() -> None:
    want = np.array([[1.0, 0.999, 0.0], [5.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    got = np.array([[0.998, 1.0, 0.0], [1.0, 5.0, 0.0], [0.0, 1.0, 2.0]])
    near, far = changed_decisions("c", got, want, max_abs=0.002)
    assert (near.row, near.before, near.after, near.tie) == (0, 0, 1, True)
    assert (far.row, far.before, far.after, far.tie) == (1, 0, 1, False)
    assert [near.margin, near.margin_after] == pytest.approx([0.001, 0.002])
    assert [far.margin, far.margin_after] == pytest.approx([4.0, 4.0])


def test_garbage_makes_no_near_ties() -> None:
    want = np.array([[1.0, 0.5, 0.0], [1.0, 0.99, 0.0]])
    got = np.array([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    assert [d.tie for d in changed_decisions("c", got, want, max_abs=1.0)] == [False, True]


def test_real_changes_are_listed_before_near_ties_and_the_rest_is_counted() -> None:
    def decision(call: int, *, tie: bool) -> Decision:
        return Decision(call=f"c{call}", row=0, before=0, after=1, margin=0.0, margin_after=1.0, tie=tie)

    decisions = (*(decision(i, tie=True) for i in range(60)), decision(60, tie=False), decision(61, tie=False))
    report = Report(
        runtime="r",
        calls=62,
        sizes=(),
        worst={},
        decisions=decisions,
        decided=62,
        accuracy=Accuracy(metric=None, output=None),
        problems=(),
        losses=(),
        warnings=(),
    )
    value = report.to_json()
    assert [d["call"] for d in value["changed"]][:3] == ["c60", "c61", "c0"]
    assert len(value["changed"]) == 50
    assert value["changed_not_listed"] == 12
    assert (value["changed_decisions"], value["near_ties"]) == (2, 60)
