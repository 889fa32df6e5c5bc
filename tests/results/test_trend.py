"""Figures over time: a change is named where it is, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_bench.trend.__main__ import main
from device_bench.trend.points import change_points
from tests.results import measurements as made


def levels(seed: int, *parts: tuple[int, float], noise: float = 0.02) -> list[float]:
    rng = np.random.default_rng(seed)
    return [float(ms * (1 + noise * rng.standard_normal())) for count, ms in parts for _ in range(count)]


def found(values: list[float]) -> list[int]:
    return [at for at, _ in change_points(values, significance=0.05, seed=0)]


def test_a_step_of_10_percent_is_found_at_its_place() -> None:
    places = [found(levels(seed, (12, 10.0), (12, 11.0))) for seed in range(16)]
    assert sum(any(abs(at - 12) <= 1 for at in p) for p in places) >= 15


def test_two_steps_are_two() -> None:
    places = [found(levels(seed, (10, 10.0), (10, 12.0), (10, 10.0))) for seed in range(8)]
    assert sum(any(abs(at - 10) <= 1 for at in p) and any(abs(at - 20) <= 1 for at in p) for p in places) >= 7


def test_where_nothing_changed_nothing_is_named() -> None:
    places = [found(levels(seed, (24, 10.0))) for seed in range(60)]
    assert sum(bool(p) for p in places) <= 8  # of 60 at a significance of 0.05
    assert found([10.0] * 30) == []


def test_one_slow_run_is_no_new_level() -> None:
    values = levels(1, (20, 10.0))
    values[10] = 30.0
    assert found(values) == []


def test_few_points_are_not_split() -> None:
    assert found([1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0]) == []
    assert found([1.0, 1.01, 0.99, 1.0, 9.0, 9.01, 9.02, 9.0]) == [4]


def test_a_long_history_keeps_its_indices() -> None:
    assert any(abs(at - 450) <= 1 for at in found(levels(3, (450, 10.0), (20, 12.0))))


def history(
    results: Path, medians: list[float], changes: dict[int, dict[str, Any]] | None = None, **common: Any
) -> None:
    """One run a day; from a day on, what a measurement says is changed."""
    changed: dict[str, Any] = {}
    for day, ms in enumerate(medians, 1):
        changed |= (changes or {}).get(day, {})
        started = f"2026-10-{day:02}T10:00:00Z"
        value = made.measurement(made.normal(100, ms, seed=day), started=started, **{**common, **changed})
        made.write(results, f"run-202610{day:02}-100000-aaaaaa", value)


def trend(results: Path, *arguments: str) -> dict[str, Any]:
    file = results.parent / "trend.json"
    assert main(["--results", str(results), "--json", str(file), *arguments]) == 0
    value: dict[str, Any] = json.loads(file.read_text())
    return value


def test_the_change_is_named_with_what_else_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = {"artifact": {"toolchain": {"ai-edge-litert": "2.4.0", "torch": "2.13.0"}, "bytes": 70_000}}
    history(tmp_path / "results", [10.0] * 10 + [11.5] * 8, {11: artifact})
    (series,) = trend(tmp_path / "results")["series"]
    shifts = {s["figure"]: s for s in series["shifts"]}
    assert set(shifts) == {"p50_ms", "p95_ms", "bytes"}
    step = shifts["p50_ms"]
    assert (step["run"], step["after"]) == ("run-20261011-100000-aaaaaa", "run-20261010-100000-aaaaaa")
    assert step["change"] == pytest.approx(0.15, abs=0.02)
    assert step["p"] <= 0.05
    assert step["why"] == ["ai-edge-litert 2.3.0 → 2.4.0"]
    assert (shifts["bytes"]["before"], shifts["bytes"]["now"], shifts["bytes"]["p"]) == (68_000, 70_000, None)
    shown = capsys.readouterr().out
    assert "at run-20261011-100000-aaaaaa of 2026-10-11T10:00:00Z" in shown
    assert "changed: ai-edge-litert 2.3.0 → 2.4.0" in shown
    assert shown.endswith("1 series, 3 changes\n")


def test_a_metric_that_fell_is_named_exactly(tmp_path: Path) -> None:
    history(tmp_path / "results", [10.0] * 4, {3: {"accuracy": made.accuracy(value=0.91)}})
    (series,) = trend(tmp_path / "results")["series"]
    (shift,) = series["shifts"]
    assert (shift["figure"], shift["before"], shift["now"]) == ("metric", 0.98, 0.91)
    assert shift["run"].startswith("run-20261003")


def test_thresholds_narrow(tmp_path: Path) -> None:
    history(tmp_path / "results", [10.0] * 10 + [11.0] * 10)
    assert trend(tmp_path / "results")["series"][0]["shifts"]
    assert trend(tmp_path / "results", "--threshold", "20%")["series"][0]["shifts"] == []
    since = trend(tmp_path / "results", "--since", "2026-10-12")["series"][0]
    assert (len(since["points"]), since["shifts"]) == (9, [])


def test_times_of_emulated_devices_are_not_judged(tmp_path: Path) -> None:
    history(tmp_path / "results", [10.0] * 10 + [15.0] * 10, emulated=True)
    (series,) = trend(tmp_path / "results")["series"]
    assert series["shifts"] == []
    assert "emulated" in series["notes"][0]


def test_hostile_names_and_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history(tmp_path / "results", [10.0] * 3, device=made.HOSTILE)
    made.write(tmp_path / "results", "run-20261101-100000-bbbbbb", made.failed(device=made.HOSTILE))
    (series,) = trend(tmp_path / "results")["series"]
    assert len(series["points"]) == 4
    assert series["notes"] == ["nothing was measured in run-20261101-100000-bbbbbb"]
    shown = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert "1 of 1 series have fewer than the 8 runs" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--threshold", "0"], "--threshold 0"),
        (["--significance", "2"], "--significance 2"),
        (["--seed", "-1"], "--seed -1"),
        (["--device", "another"], "nothing to show"),
        (["--version", "torch="], "names nothing"),
        (["--wrong"], "--wrong"),
    ],
)
def test_what_cannot_be_used_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    history(tmp_path / "results", [10.0])
    assert main(["--results", str(tmp_path / "results"), *arguments]) == 2
    assert says in capsys.readouterr().err.splitlines()[-1]
