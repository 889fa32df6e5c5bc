"""Sweeps: the points of a run, and the largest batch that keeps a p95."""

from __future__ import annotations

from typing import Any

import pytest

from build.errors import InputError
from device_bench import options as cli
from device_bench import summary
from device_bench.points import Point, read_sweep
from device_bench.sweep import largest_batches, sweep_lines


def test_a_sweep_is_every_combination() -> None:
    found = read_sweep(["batch=1,4,1", "threads=1,2"], threads=3, batch=None, variants=("",))
    assert [(p.threads, p.batch) for p in found] == [(1, 1), (1, 4), (2, 1), (2, 4)]
    assert {p.slug for p in found} == {"t1.b1", "t1.b4", "t2.b1", "t2.b4"}


def test_what_a_sweep_does_not_name_keeps_its_value() -> None:
    assert read_sweep([], threads=3, batch=None, variants=("wasm", "webgpu")) == (
        Point(threads=3, variant="wasm"),
        Point(threads=3, variant="webgpu"),
    )
    assert read_sweep(["batch=2"], threads=3, batch=9, variants=("",)) == (Point(threads=3, batch=2),)


@pytest.mark.parametrize("word", ["batch", "batch=", "batch=0", "batch=1,x", "depth=1", "threads=-1", "=1"])
def test_a_sweep_that_is_not_understood_is_refused(word: str) -> None:
    with pytest.raises(InputError, match="not understood"):
        cli.parse("bench-local", ["--sweep", word])


def test_an_axis_named_twice_is_refused() -> None:
    with pytest.raises(InputError, match="not understood"):
        cli.parse("bench-local", ["--sweep", "batch=1", "batch=2"])


def test_a_sustained_run_is_one_long_loop() -> None:
    options = cli.parse("bench-local", ["--sustained", "2.5", "--repeats", "5"])
    assert (options.repeats, options.settings.min_seconds, options.settings.max_seconds) == (1, 150.0, 150.0)
    with pytest.raises(InputError, match="--sustained -1"):
        cli.parse("bench-local", ["--sustained", "-1"])


def _row(batch: int, p95: float | None, **changes: Any) -> dict[str, Any]:
    row = {
        "device": "d",
        "model": "m",
        "target": "litert",
        "precision": "fp32",
        "threads": 1,
        "variant": "",
        "batch": batch,
        "emulated": False,
        "limits": {"p95_ms": None, "peak_mb": None},
        "verdict": {"p50_ms": p95, "p95_ms": p95},
        "per_second": 1.0,
    }
    return row | changes


@pytest.mark.parametrize(
    ("tails", "limit", "largest", "why"),
    [
        ({1: 2.0, 4: 5.0, 16: 18.0}, 6.0, 4, "batch 16 has a p95 of 18.000 ms"),
        ({1: 2.0, 4: 5.0, 16: 18.0}, 20.0, 16, None),
        ({1: 2.0, 4: 5.0}, 1.0, None, "batch 1 has a p95 of 2.000 ms"),
        ({1: 2.0, 4: 9.0, 16: 3.0}, 5.0, 1, "batch 4 has a p95 of 9.000 ms"),
        ({1: 2.0, 4: None, 16: 3.0}, 5.0, 1, "batch 4 was not measured"),
        ({1: 2.0, 4: 3.0}, None, None, "no limit: name one with --keep-p95"),
    ],
)
def test_the_largest_batch(
    tails: dict[int, float | None], limit: float | None, largest: int | None, why: str | None
) -> None:
    (found,) = largest_batches([_row(b, t) for b, t in reversed(tails.items())], limit)
    assert (found["largest_batch"], found["why"]) == (largest, why)
    assert [p["batch"] for p in found["points"]] == sorted(tails)
    assert sweep_lines([found])[0].startswith("d m litert fp32: largest batch")


def test_the_budget_is_the_limit_where_none_is_named() -> None:
    rows = [_row(b, t, limits={"p95_ms": 3.0, "peak_mb": None}) for b, t in ((1, 2.0), (2, 4.0))]
    assert largest_batches(rows, None)[0]["largest_batch"] == 1


def test_times_of_an_emulated_device_name_no_batch() -> None:
    (found,) = largest_batches([_row(b, 1.0, emulated=True) for b in (1, 2)], 9.0)
    assert found["largest_batch"] is None
    assert "emulated" in sweep_lines([found])[0]


def test_series_are_kept_apart() -> None:
    rows = [_row(b, float(b * t), threads=t) for b in (1, 2) for t in (1, 2)]
    assert [(s["threads"], s["largest_batch"]) for s in largest_batches(rows, 2.0)] == [(1, 2), (2, 1)]
    assert largest_batches([_row(1, 1.0)], 2.0) == []


def _long(samples_ns: list[int], minutes: float) -> str:
    options = cli.parse("bench-local", ["--sustained", str(minutes)])
    value = summary.sustained(options, [{"status": "ok", "samples_ns": samples_ns, "loop_ns": sum(samples_ns)}])
    assert value is not None
    return summary.sustained_line(value)


def test_a_sustained_run_says_when_it_slowed_down() -> None:
    assert _long([10_000_000] * 3000 + [14_000_000] * 3000, 1.2).endswith("40% slower, from 30 s on")
    assert _long([10_000_000] * 6000, 1).endswith("no throttling")
    assert "too few samples" in _long([10_000_000_000] * 6, 1)


def test_a_sustained_run_that_was_cut_short_says_so() -> None:
    assert "ended before 120 s" in _long([10_000_000] * 6000, 2)
    options = cli.parse("bench-local", [])
    assert summary.sustained(options, []) is None
