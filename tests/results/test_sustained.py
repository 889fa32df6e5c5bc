"""Peak, steady state and the beginning of throttling, in samples whose truth is known."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_bench.sustained import WINDOWS, analyse

#: seconds -> factor on a latency of 10 ms.
Profile = Callable[[float], float]


def run(profile: Profile, *, seconds: float = 120.0, noise: float = 0.03, seed: int = 0) -> list[int]:
    """Samples that follow one another for so long."""
    rng = np.random.default_rng(seed)
    samples, passed = [], 0.0
    while passed < seconds:
        sample = 0.010 * profile(passed) * max(1 + noise * rng.standard_normal(), 0.1)
        samples.append(int(sample * 1e9))
        passed += sample
    return samples


@pytest.mark.parametrize("seed", range(5))
def test_a_step_is_found_where_it_is(seed: int) -> None:
    found = analyse(run(lambda t: 1.0 if t < 45 else 1.4, seed=seed))
    assert found.throttled is True
    assert found.throttled_at_s == pytest.approx(45, abs=2 * 120 / WINDOWS)
    assert found.peak.p50_ms == pytest.approx(10, rel=0.02)
    assert found.steady.p50_ms == pytest.approx(14, rel=0.02)
    assert found.slowdown == pytest.approx(0.4, abs=0.02)
    assert found.peak_per_second == pytest.approx(100, rel=0.03)
    assert found.steady_per_second == pytest.approx(100 / 1.4, rel=0.03)
    assert found.seconds == pytest.approx(120, rel=0.01)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.0, 0.03, 0.2])
def test_a_steady_run_does_not_throttle(seed: int, noise: float) -> None:
    found = analyse(run(lambda _: 1.0, noise=noise, seed=seed))
    assert (found.throttled, found.throttled_at_s) == (False, None)
    assert abs(found.slowdown) < 0.15


def test_a_ramp_begins_somewhere_on_its_way_up() -> None:
    found = analyse(run(lambda t: 1.0 if t < 30 else min(1.0 + (t - 30) / 60, 1.5)))
    assert found.throttled_at_s is not None
    assert 32 < found.throttled_at_s < 45


def test_a_slow_start_is_no_throttling() -> None:
    found = analyse(run(lambda t: 1.6 if t < 10 else 1.0))
    assert found.throttled is False
    assert found.peak.p50_ms == pytest.approx(10, rel=0.02)


def test_a_dip_that_passes_is_no_throttling() -> None:
    found = analyse(run(lambda t: 1.5 if 30 < t < 50 else 1.0))
    assert (found.throttled, found.throttled_at_s) == (False, None)


def test_clocks_that_come_back_for_moments_still_count() -> None:
    found = analyse(run(lambda t: 1.0 if t < 40 or int(t) % 17 == 0 else 1.4))
    assert found.throttled_at_s == pytest.approx(40, abs=5)


def test_a_short_run_says_that_it_cannot_tell() -> None:
    found = analyse(run(lambda t: 1.0 if t < 0.4 else 2.0, seconds=1.0))
    assert len(found.windows) < 6
    assert (found.throttled, found.throttled_at_s) == (None, None)
    assert found.slowdown > 0.5


def test_overlapping_requests_count_by_the_time_of_the_loop() -> None:
    samples = run(lambda t: 1.0 if t < 40 else 1.5)
    alone, four = analyse(samples), analyse(samples, loop_ns=sum(samples) // 4)
    assert four.seconds == pytest.approx(alone.seconds / 4, rel=1e-6)
    assert alone.throttled_at_s is not None
    assert four.throttled_at_s == pytest.approx(alone.throttled_at_s / 4, rel=1e-3)
    assert four.steady_per_second == pytest.approx(4 * alone.steady_per_second, rel=0.01)


def test_it_travels_as_json() -> None:
    value = json.loads(json.dumps(analyse(run(lambda _: 1.0, seconds=20)).to_json(), allow_nan=False))
    assert sum(w["samples"] for w in value["windows"]) == value["samples"]
    assert value["peak"]["p50_ms"] <= value["steady"]["p50_ms"] * 1.01
    assert [w["start_s"] for w in value["windows"]] == sorted(w["start_s"] for w in value["windows"])


def test_no_samples_are_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        analyse([])


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=300), st.none() | st.integers(1, 10**12))
def test_no_samples_break_it(samples: list[int], loop_ns: int | None) -> None:
    found = analyse(samples, loop_ns=loop_ns)
    assert sum(w.samples for w in found.windows) == len(samples)
    assert found.peak.samples <= len(samples)
    assert found.steady.samples >= 1
