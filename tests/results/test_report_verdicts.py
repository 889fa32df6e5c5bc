"""What a report's verdicts rest on: files that are there, points that are judged, times that count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from build.errors import InputError
from device_bench.report import as_json, markdown, sources
from device_bench.report.best import best, fronts
from device_bench.report.data import Report
from device_bench.report.gather import gather
from device_bench.report.rows import ALTERED
from tests.results import full_run
from tests.results.made_up import measurement
from tests.results.reporting import BUILT, DIGITS, PLACE, read, rows_of, value, write_builds, write_run

OTHER = full_run.manifest(DIGITS, "litert", "fp16")
FAST, SLOW = [1_000_000] * 200, [2_000_000] * 200


def of_two(folder: Path, budget: str, *values: dict[str, Any]) -> Report:
    """Two artifacts of one model, and what was measured of them."""
    write_builds(folder / "out", BUILT, OTHER)
    write_run(folder / "results", values)
    return again(folder, budget)


def again(folder: Path, budget: str) -> Report:
    """Read what lies there now."""
    (folder / "b.toml").write_text(f"[[budget]]\n{budget}\n")
    return read(folder / "out", folder / "results", folder / "b.toml")


@pytest.mark.parametrize("harm", ["altered", "removed", "added"])
def test_an_artifact_whose_files_are_not_there_fails_and_is_never_best(tmp_path: Path, harm: str) -> None:
    limit = "max_bytes = 10_000_000\np95_ms = 9.0"
    report = of_two(tmp_path, limit, value(samples_ns=FAST), measurement(OTHER, PLACE, samples_ns=SLOW))
    assert report.verdicts()["PASS"] == 2
    assert [b.fastest.label for b in best(report) if b.fastest] == ["litert fp32"]
    assert "litert fp32" in [r.label for f in fronts(report) for r in f.rows]
    folder = tmp_path / "out" / "digits_cnn" / "litert" / "fp32"
    if harm == "altered":
        (folder / "model.bin").write_bytes(b"garbage")
    elif harm == "removed":
        (folder / "model.bin").unlink()
    else:
        (folder / "more.bin").write_bytes(b"")
    report = again(tmp_path, limit)
    (bad,) = [r for r in report.rows if r.precision == "fp32"]
    assert (bad.verdict, bad.reasons) == ("FAIL", (ALTERED,))
    (one,) = best(report)
    assert one.passing == 1
    assert one.fastest is not None
    assert one.smallest is not None
    assert (one.fastest.label, one.smallest.label) == ("litert fp16", "litert fp16")
    assert [r.label for f in fronts(report) for r in f.rows] == ["litert fp16"]
    (found,) = [f for f in report.findings if f.message == ALTERED]
    assert (found.kind, found.what) == ("failed", ("digits_cnn litert fp32",))
    assert "1 of 2 artifacts built and verified" in markdown.render(report)


def test_a_build_that_was_not_measured_is_compared_with_its_files_too(tmp_path: Path) -> None:
    write_builds(tmp_path / "out", BUILT)
    assert [r.verdict for r in read(tmp_path / "out", None).rows] == [None]
    (tmp_path / "out" / "digits_cnn" / "litert" / "fp32" / "model.bin").write_bytes(b"garbage")
    assert [r.verdict for r in read(tmp_path / "out", None).rows] == ["FAIL"]


def points(*batches: int | None) -> list[dict[str, Any]]:
    return [{"threads": 1, "batch": b, "variant": ""} for b in batches]


def test_points_of_a_sweep_over_batches_are_not_judged_by_p95(tmp_path: Path) -> None:
    swept = [value(batch=b, samples_ns=SLOW) for b in (1, 8)]
    rows = rows_of(tmp_path, swept, "p95_ms = 0.5\nmax_bytes = 10_000_000", points=points(1, 8))
    assert [r.verdict for r in rows] == ["PASS", "PASS"]
    assert {one.name for r in rows for one in r.limits} == {"max_bytes"}
    assert not any(r.times_count for r in rows)


@pytest.mark.parametrize("said", [points(8), [], "many", [1, 2], None])
def test_other_runs_are_judged_by_p95(tmp_path: Path, said: Any) -> None:
    (row,) = rows_of(tmp_path, [value(batch=8, samples_ns=SLOW)], "p95_ms = 0.5", points=said)
    assert row.verdict == "FAIL"


FEW = "60 samples are too few for a p95"


@pytest.mark.parametrize(
    ("budget", "word"),
    [("p95_ms = 9.0", "INCONCLUSIVE"), ("max_bytes = 10_000_000", "PASS"), ("max_bytes = 10", "FAIL")],
)
def test_verdict_why_headline_and_findings_agree_about_doubtful_times(tmp_path: Path, budget: str, word: str) -> None:
    few = value(samples_ns=FAST[:60])
    report = of_two(tmp_path, budget, few, measurement(OTHER, PLACE, samples_ns=SLOW))
    (row,) = [r for r in report.rows if r.precision == "fp32"]
    assert row.verdict == word
    doubted = word == "INCONCLUSIVE"
    assert any(FEW in w for w in row.reasons) is doubted
    assert any(FEW in n for n in row.notes) is not doubted
    kinds = {f.kind for f in report.findings if FEW in f.message}
    assert kinds == {"inconclusive" if doubted else "warning"}
    assert report.verdicts()["INCONCLUSIVE"] == doubted
    assert any(f.kind == "inconclusive" for f in report.findings) is doubted
    (line,) = [one for one in markdown.render(report).splitlines() if FEW in one and f"| {word} |" in one]
    assert ("note: " in line) is not doubted


def test_only_times_that_count_are_the_fastest(tmp_path: Path) -> None:
    few = value(samples_ns=FAST[:60])
    report = of_two(tmp_path, "max_bytes = 10_000_000", few, measurement(OTHER, PLACE, samples_ns=SLOW))
    (one,) = best(report)
    assert one.fastest is not None
    assert (one.passing, one.fastest.label) == (2, "litert fp16")
    assert [p["fastest"] for p in as_json.to_json(report)["passing"]] == ["litert fp16"]
    # A time in doubt neither stands on the Pareto front nor pushes another off it.
    assert [r.label for f in fronts(report) for r in f.rows] == ["litert fp16"]


def test_a_run_is_judged_by_what_it_was_told_to_let_count(tmp_path: Path) -> None:
    charging = value(samples_ns=FAST)
    charging["conditions"]["before"]["charging"] = True
    rules = {"max_spread": 0.15, "allow_charging": True}
    for name, record, word in (("as-usual", {}, "INCONCLUSIVE"), ("allowed", {"rules": rules}, "PASS")):
        (row,) = rows_of(tmp_path / name, [charging], "p95_ms = 9.0", **record)
        assert row.verdict == word


def test_a_class_of_devices_is_one_that_budgets_are_about(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text('[[budget]]\ndevice_class = "low-end"\nmax_bytes = 1\n')
    write_builds(tmp_path / "out", BUILT)

    def verdict(device_class: str) -> str | None:
        found = sources.read(None, tmp_path / "out", budgets=tmp_path / "b.toml", device_class=device_class)
        return gather(found).rows[0].verdict

    assert (verdict("*"), verdict("low-end")) == (None, "FAIL")
    with pytest.raises(InputError, match="low_end: no budget is about such devices"):
        verdict("low_end")
