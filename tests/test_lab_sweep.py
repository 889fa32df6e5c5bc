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
        "verdict": {"p50_ms": p95, "p95_ms": p95, "word": None, "reasons": []},
        "doubts": [],
        "checked_batches": [],
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
    words = {None: "FAIL", 1: "PASS", 4: "PASS", 16: "PASS"}
    unmeasured = "INCONCLUSIVE" if None in tails.values() else words[largest]
    assert found["word"] == (None if limit is None else unmeasured)
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


def test_one_batch_is_a_question_where_a_p95_is_named() -> None:
    assert largest_batches([_row(16, 1.0)], None) == []
    (found,) = largest_batches([_row(16, 1.0)], 2.0)
    assert (found["largest_batch"], found["word"]) == (16, "PASS")
    (found,) = largest_batches([_row(16, 3.0)], 2.0)
    assert sweep_lines([found])[0].endswith("at most 2 ms: none (batch 16 has a p95 of 3.000 ms)")


_FAIL = {"word": "FAIL", "reasons": ["its outputs differ from this host's: call 'one'"], "p50_ms": 2.0, "p95_ms": 2.0}


@pytest.mark.parametrize(
    ("change", "word", "why"),
    [
        ({"verdict": _FAIL}, "PASS", "batch 4 fails: its outputs differ from this host's: call 'one'"),
        (
            {"doubts": ["throttled in repeat 3: the clock fell"]},
            "INCONCLUSIVE",
            "batch 4 has a p95 of 2.000 ms that does not count: throttled in repeat 3: the clock fell",
        ),
        (
            {"doubts": ["2 of 3 repeats were measured (the connection broke)"]},
            "INCONCLUSIVE",
            "batch 4 has a p95 of 2.000 ms that does not count: 2 of 3 repeats were measured (the connection broke)",
        ),
    ],
)
def test_a_batch_that_fails_or_is_in_doubt_is_not_named(change: dict[str, Any], word: str, why: str) -> None:
    (found,) = largest_batches([_row(1, 1.0), _row(4, 2.0, **change), _row(16, 3.0)], 9.0)
    assert (found["largest_batch"], found["word"], found["why"]) == (1, word, why)
    doubt = "INCONCLUSIVE: " if word == "INCONCLUSIVE" else ""
    assert sweep_lines([found])[0].endswith(f"at most 9 ms: 1 ({doubt}{why})")
    (found,) = largest_batches([_row(4, 2.0, **change), _row(16, 3.0)], 9.0)
    assert (found["largest_batch"], found["word"]) == (None, "FAIL" if word == "PASS" else word)


def test_it_is_said_at_which_batches_outputs_were_compared() -> None:
    rows = [_row(1, 1.0, checked_batches=[1, 7]), _row(7, 1.0), _row(16, 1.0)]
    (found,) = largest_batches(rows, 9.0)
    assert (found["checked_batches"], found["unchecked_batches"]) == ([1, 7], [16])
    assert "outputs were compared at batch 1, 7, not at batch 16" in sweep_lines([found])[1]
    (found,) = largest_batches(rows[:2], 9.0)
    assert len(sweep_lines([found])) == 1


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
