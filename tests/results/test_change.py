"""How much changed, and whether the samples tell: in samples whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from device_bench.compare import noise
from device_bench.compare.change import Change, block_length, changes
from device_bench.compare.pair import Rules, judge
from tests.results import measurements as made
from tests.results.measurements import drawn

Ns = NDArray[np.int64]
RULES = Rules()
SEEDS = range(100)


def word(a: list[Ns], b: list[Ns], rules: Rules = RULES) -> str:
    return judge(changes(a, b, confidence=rules.confidence, seed=0).get(rules.percent), rules)[0]


def test_a_slowdown_of_5_percent_is_found_in_200_samples_with_3_percent_noise() -> None:
    words = [word([drawn(seed)], [drawn(1000 + seed, ms=10.5)]) for seed in SEEDS]
    assert words.count("slower") >= 95
    assert words.count("faster") == 0


def test_no_alarm_where_nothing_changed() -> None:
    words = [word([drawn(seed)], [drawn(1000 + seed)]) for seed in SEEDS]
    assert words.count("slower") + words.count("faster") <= 5
    assert words.count("same") >= 95


def test_no_alarm_where_repeats_differ_more_than_their_samples_show() -> None:
    """Each process is 2 % faster or slower as a whole: its samples alone would prove a change that is none."""
    rng = np.random.default_rng(5)

    def side() -> list[Ns]:
        return [drawn(int(rng.integers(10**6)), ms=10 + 0.2 * rng.standard_normal(), count=60) for _ in range(3)]

    words = [word(side(), side()) for _ in SEEDS]
    assert words.count("slower") + words.count("faster") <= 5


def test_no_alarm_where_samples_wander() -> None:
    """Neighbouring samples that resemble each other hold less than as many independent ones."""

    def side(seed: int) -> list[Ns]:
        rng = np.random.default_rng(seed)
        steps, level = rng.standard_normal(200), 0.0
        values = []
        for step in steps:
            level = 0.9 * level + step * 0.01
            values.append(10e6 * (1 + level))
        return [np.array(values).astype(np.int64)]

    words = [word(side(seed), side(1000 + seed)) for seed in SEEDS]
    assert words.count("slower") + words.count("faster") <= 5
    assert block_length(side(1)[0]) > 5 * block_length(drawn(1))


def test_the_interval_holds_the_true_change() -> None:
    found = [changes([drawn(s)], [drawn(1000 + s, ms=10.5)], confidence=0.95, seed=0) for s in SEEDS]
    for percent in (50, 95):
        assert sum(f[percent].low < 0.05 < f[percent].high for f in found) >= 88


def test_a_bimodal_run_is_seen_and_others_are_not() -> None:
    rules = RULES.threshold
    assert sum(noise.modes(np.array(made.bimodal(seed=s)), rules) is not None for s in SEEDS) >= 95
    assert sum(noise.modes(drawn(s), rules) is not None for s in SEEDS) <= 1


UNIMODAL: dict[str, Callable[[np.random.Generator], NDArray[Any]]] = {
    "skewed": lambda rng: 5 + rng.exponential(1, 200),
    "log-normal": lambda rng: np.exp(rng.normal(0, 0.5, 200)),
    "uniform": lambda rng: 10 + rng.random(300),
    "with slow ones": lambda rng: np.where(rng.random(200) < 0.03, 20, 10) * (1 + 0.03 * rng.normal(size=200)),
    "of a coarse clock": lambda rng: np.round(1 + 0.03 * rng.normal(size=200), 1),
    "of a rather coarse clock": lambda rng: np.round(10 * (1 + 0.03 * rng.normal(size=200)), 1),
    "many": lambda rng: 10 * (1 + 0.03 * rng.normal(size=5000)),
    "constant": lambda rng: np.full(200, 10.0),
}


@pytest.mark.parametrize("shape", UNIMODAL)
def test_one_mode_is_one(shape: str) -> None:
    found = [noise.modes((UNIMODAL[shape](np.random.default_rng(s)) * 1e6).astype(np.int64), 0.02) for s in range(50)]
    assert sum(f is not None for f in found) <= 1


def test_the_critical_value_is_what_one_in_a_thousand_uniform_samples_exceed() -> None:
    rng = np.random.default_rng(1)
    gains = [noise._excess_mass(np.sort(rng.random(100)))[0] * 10 for _ in range(1500)]
    assert float(np.quantile(gains, 0.99)) < noise.CRITICAL
    assert float(np.quantile(gains, 0.99)) > 0.75 * noise.CRITICAL
    assert sum(g > noise.CRITICAL for g in gains) <= 6


def test_two_levels_that_are_close_enough_do_not_matter() -> None:
    near = np.concatenate([drawn(1, noise=0.001), drawn(2, ms=10.15, noise=0.001)])
    np.random.default_rng(0).shuffle(near)
    assert noise.modes(near, 0.02) is None
    found = noise.modes(near, 0.01)
    assert found is not None
    assert list(found) == pytest.approx([10e6, 10.15e6], rel=0.001)


def test_a_drift_is_a_trend_not_an_accident() -> None:
    slope = np.linspace(1.0, 1.25, 200)
    assert noise.drift((drawn(1) * slope).astype(np.int64)) == pytest.approx(0.19, abs=0.05)
    assert all(noise.drift(drawn(s, noise=0.2, count=60)) is None for s in range(20))


@pytest.mark.parametrize(
    ("change", "low", "high", "expected"),
    [
        (0.05, 0.01, 0.09, "slower"),
        (0.05, -0.01, 0.11, "NOISY"),
        (-0.05, -0.09, -0.01, "faster"),
        (0.01, 0.005, 0.015, "same"),
        (0.01, 0.005, 0.03, "NOISY"),
        (0.0, -0.015, 0.015, "same"),
        (0.0, -0.15, 0.15, "NOISY"),
        (0.02, 0.001, 0.04, "slower"),
        (-0.0196, -0.03, -0.001, "NOISY"),
        (-0.0197, -0.03, -0.001, "faster"),
    ],
)
def test_words(change: float, low: float, high: float, expected: str) -> None:
    assert judge(Change(a_ms=1, b_ms=1 + change, change=change, low=low, high=high), RULES)[0] == expected


def test_too_few_samples_are_no_verdict() -> None:
    few = [drawn(1, count=9)]
    assert changes(few, [drawn(2)], confidence=0.95, seed=0) == {}
    assert judge(None, RULES) == ("NOISY", "fewer than the 10 samples that a p50 needs")
    assert list(changes([drawn(1, count=60)], [drawn(2)], confidence=0.95, seed=0)) == [50]


def test_the_same_seed_gives_the_same_interval() -> None:
    sides = [[drawn(1)], [drawn(2)]]
    first, again = (changes(*sides, confidence=0.95, seed=3) for _ in range(2))
    assert first == again
    assert first != changes(*sides, confidence=0.95, seed=4)
    assert [tuple(s) for s in sides[0]] == [tuple(drawn(1))]  # and the samples are left as they were
