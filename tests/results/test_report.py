"""What the report shows: figures, rows, verdicts, findings."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build.errors import InputError
from device_bench.report import as_json, page, text
from device_bench.report.clouds import chosen, clouds
from device_bench.report.lines import sweeps
from device_bench.report.marks import usual
from device_bench.report.pareto import front
from device_bench.report.scale import fitting, linear
from device_bench.statistics import summarise
from tests.results import full_run
from tests.results.reporting import (
    BUILT,
    Made,
    make,
    read,
    rows_of,
    value,
    write_builds,
    write_run,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("full"))


# --- figures -------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_the_front_is_what_no_other_point_beats(points: list[tuple[int, int]]) -> None:
    found = front([(float(c), float(w)) for c, w in points])

    def beaten(index: int) -> bool:
        cost, worth = points[index]
        return any(c <= cost and w >= worth and (c, w) != (cost, worth) for c, w in points)

    assert sorted(found) == [i for i in range(len(points)) if not beaten(i)]
    assert [points[i] for i in found] == sorted(points[i] for i in found)


@given(st.lists(st.floats(1e-5, 1e6), min_size=1, max_size=20), st.booleans())
def test_axes_hold_all_values_and_their_ticks_can_be_told_apart(values: list[float], zero: bool) -> None:
    for scale in (linear(values, 0, 100, zero=zero), fitting(values, 0, 100)):
        assert all(-1e-6 <= scale(v) <= 100 + 1e-6 for v in values)
        near = 1e-6 * (scale.high - scale.low)
        assert all(scale.low - near <= t <= scale.high + near for t in scale.ticks)
        labels = [scale.label(t) for t in scale.ticks]
        assert len(set(labels)) == len(labels)
        assert len(labels) <= 14
        ordered = sorted(values)
        assert all(scale(a) <= scale(b) for a, b in itertools.pairwise(ordered))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=2000), st.integers(2, 300))
def test_drawn_samples_keep_the_extremes_and_the_shape(samples: list[int], most: int) -> None:
    picked = chosen(samples, most)
    assert picked == sorted(set(picked))
    assert len(picked) == min(len(samples), most) or len(picked) <= most
    drawn = sorted(samples[i] for i in picked)
    assert (drawn[0], drawn[-1]) == (min(samples), max(samples))
    # No percentile of what is drawn is further from the whole's than the step between two drawn ranks.
    ordered = sorted(samples)
    step = -(-len(samples) // (most - 1)) if len(samples) > most else 0
    for share in (0.25, 0.5, 0.75):
        at = round(share * (len(ordered) - 1))
        near = drawn[round(share * (len(drawn) - 1))]
        assert ordered[max(at - step - 1, 0)] <= near <= ordered[min(at + step + 1, len(ordered) - 1)]


def test_one_interrupted_sample_does_not_squeeze_the_others(tmp_path: Path) -> None:
    calm = [1_000_000 + 1000 * (i % 100) for i in range(400)]
    rows = rows_of(tmp_path, [value(samples_ns=[*calm, 500_000_000])])
    made = clouds(rows, key="k", title="t")
    assert made is not None
    assert (made.total, made.beyond, made.largest_ms) == (401, 1, 500.0)
    assert made.drawn <= 240
    (strip,) = re.findall(r'd="([^"]+)" class="strip', made.image)
    places = sorted(float(x) for x in re.findall(r"M([\d.]+),", strip))
    assert len(places) == made.drawn
    assert places[-2] - places[0] > 10  # the calm ones are still told apart
    assert places[-1] > places[-2] + 100  # and the interrupted one stands at the edge
    (cloud,) = re.findall(r'd="([^"]+)" class="cloud', made.image)
    assert max(float(x) for x in re.findall(r"[ML]([\d.]+),", cloud)) < places[-1] - 50


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0123456, "0.0123"), (4.5678, "4.57"), (78.96, "79.0"), (1234.4, "1234"), (0.0, "0"), (None, "–")],
)
def test_milliseconds_have_three_digits_and_no_exponent(value: float | None, shown: str) -> None:
    assert text.milliseconds(value) == shown


# --- what is shown -------------------------------------------------------------------------------------------------


def test_a_full_run_is_shown_whole(made: Made) -> None:
    report = made.report
    assert report.models == ("digits_cnn", "efficientnet_lite0", "minilm")
    assert report.targets == ("executorch", "litert", "coreml", "openvino", "ort_web")
    assert len(report.precisions) == 6
    assert [(d.name, d.emulated) for d in report.devices] == [
        ("local-workstation", False),
        ("web-chromium", False),
        ("adb-emulated-0", True),
    ]
    built = {(b.model, b.target, b.precision) for b in report.builds}
    assert built == {(r.model, r.target, r.precision) for r in report.rows}
    assert report.problems == ()
    assert report.failed == 1
    files = [f for r in report.rows if r.measured for f in r.measured.files]
    assert len(files) == len(set(files)) == report.taken + report.failed


def test_figures_are_those_of_the_samples_and_of_the_worst_repeat(made: Made) -> None:
    for row in made.report.rows:
        m = row.measured
        if m is None or not m.samples_ns:
            continue
        each = [summarise(s) for s in m.samples_ns]
        assert (m.p50_ms, m.p95_ms) == (max(s.p50_ms for s in each), max(s.p95_ms for s in each))


def test_what_is_emulated_never_passes_and_has_no_front(made: Made) -> None:
    emulated = [r for r in made.report.rows if r.emulated]
    assert emulated
    assert all(r.verdict != "PASS" for r in emulated)
    names = {f["device"] for f in as_json.to_json(made.report)["fronts"]}
    assert names == {"local-workstation", "web-chromium"}


def test_everything_that_went_wrong_is_said(made: Made) -> None:
    found = {(f.kind, f.message): f for f in made.report.findings}
    kinds = {kind for kind, _ in found}
    assert kinds == {"failed", "refused", "budget", "inconclusive", "unavailable", "missing", "warning"}
    assert any("signal 9" in m for k, m in found if k == "failed")
    assert any("erfinv" in m for k, m in found if k == "refused")
    coreml = found["missing", "built, but measured on no device"]
    assert {w.split()[1] for w in coreml.what} == {"coreml"}
    noisy = next(f for (k, m), f in found.items() if k == "inconclusive" and "p95 differ" in m)
    assert all("litert int8-weight" in w for w in noisy.what)
    unavailable = [f for f in made.report.findings if f.kind == "unavailable"]
    assert {w for f in unavailable for w in f.what} == {"coreml int8-dynamic", "openvino int8-dynamic"}


def test_a_model_that_was_not_built_for_a_target_is_missing(tmp_path: Path) -> None:
    write_builds(tmp_path, BUILT)
    report = read(tmp_path, None)
    missing = next(f for f in report.findings if f.kind == "missing" and "executorch" in f.what[0])
    assert missing.remedy == "nox -s build -- --model digits_cnn --targets executorch --precisions fp32"


def test_how_nodes_were_counted_is_said_once_as_far_as_it_is_the_same() -> None:
    assert page._common(["nodes of the graph"] * 3) == "nodes of the graph"
    assert page._common(["ops; whole graphs: conv 3", "ops; whole graphs: conv 31"]) == "ops; whole graphs:"
    assert page._common(["nodes", "operations"]) == ""
    assert page._common([]) == ""


def test_sweeps_and_long_runs_are_found(made: Made) -> None:
    local = made.report.devices[0]
    batches = next(s for s in sweeps(local.rows) if s.axis == "batch")
    assert (batches.model, batches.label, len(batches.rows)) == ("digits_cnn", "litert fp32", 12)
    (lasting,) = local.long_runs
    assert (lasting.model, lasting.label) == ("minilm", "executorch fp16, 4 threads")
    assert lasting.found.throttled
    assert 40 < (lasting.found.throttled_at_s or 0) < 60
    assert [d.long_runs for d in made.report.devices[1:]] == [(), ()]
    # Points of a sweep do not crowd the plots that compare artifacts.
    compared = [r for r in usual(local.rows) if (r.model, r.label.split(",")[0]) == ("digits_cnn", "litert fp32")]
    assert [r.label for r in compared] == ["litert fp32"]


def test_of_several_runs_the_newest_of_these_bytes_is_shown(tmp_path: Path) -> None:
    write_builds(tmp_path / "out", BUILT)
    other = value(samples_ns=[9_000_000] * 200)
    other["artifact"] = {**other["artifact"], "sha256": "0" * 64}
    for run, one in (
        ("run-20260101-000000-a", value(samples_ns=[1_000_000] * 200)),
        ("run-20260102-000000-b", value(samples_ns=[2_000_000] * 200)),
        ("run-20260103-000000-c", other),
    ):
        write_run(tmp_path / "results", [one], run=run, started=f"{run[4:8]}-{run[8:10]}-{run[10:12]}T00:00:00Z")
    (row,) = read(tmp_path / "out", tmp_path / "results").rows
    assert row.measured is not None
    assert (row.measured.run, row.measured.p95_ms, row.measured.stale) == ("run-20260102-000000-b", 2.0, False)


def test_a_long_run_does_not_stand_for_the_short_ones(tmp_path: Path) -> None:
    write_builds(tmp_path / "out", BUILT)
    lasting = value(samples_ns=[3_000_000] * 20_000)
    lasting["settings"] = {**lasting["settings"], "min_seconds": 60.0}
    write_run(tmp_path / "results", [lasting], run="run-20260102-000000-b", started="2026-01-02T00:00:00Z")
    (row,) = read(tmp_path / "out", tmp_path / "results").rows
    assert row.measured is not None
    assert row.measured.p95_ms == 3.0  # there is no other
    short = value(samples_ns=[1_000_000] * 200)
    write_run(tmp_path / "results", [short], run="run-20260101-000000-a", started="2026-01-01T00:00:00Z")
    report = read(tmp_path / "out", tmp_path / "results")
    (row,) = report.rows
    assert row.measured is not None
    assert row.measured.p95_ms == 1.0
    (found,) = report.devices[0].long_runs
    assert found.found.steady.p50_ms == 3.0


def test_other_bytes_than_lie_there_are_said_to_be_others(tmp_path: Path) -> None:
    other = value()
    other["artifact"] = {**other["artifact"], "sha256": "0" * 64, "bytes": 123}
    (row,) = rows_of(tmp_path, [other], "p95_ms = 9.0")
    assert row.measured is not None
    assert row.measured.stale
    assert row.verdict == "INCONCLUSIVE"
    assert "other bytes were measured than lie in the output folder now" in row.reasons
    assert row.size == 123


@pytest.mark.parametrize(
    ("budget", "changes", "word", "reason"),
    [
        ("", {}, None, ""),
        ("p95_ms = 2.0", {}, "PASS", ""),
        ("p95_ms = 0.5", {}, "FAIL", "p95 is 1.000 ms, the budget is 0.5"),
        ("max_bytes = 10", {}, "FAIL", "max_bytes is"),
        ("max_bytes = 10\np95_ms = 2.0", {}, "FAIL", "max_bytes is"),
        ("max_bytes = 10_000_000", {}, "PASS", ""),
        ("min_metric = 0.99", {}, "FAIL", "min_metric is"),
        ("p95_ms = 2.0", {"emulated": True}, "INCONCLUSIVE", "emulated"),
        ("max_bytes = 10_000_000", {"emulated": True}, "INCONCLUSIVE", "emulated"),
        ("max_bytes = 10", {"emulated": True}, "FAIL", "max_bytes is"),
        ("peak_mb = 1.0", {}, "FAIL", "peak memory is"),
        ('platform = "web"\np95_ms = 0.5', {}, None, ""),
        ('platform = "local"\np95_ms = 0.5', {}, "FAIL", "p95 is"),
    ],
)
def test_verdicts(tmp_path: Path, budget: str, changes: dict[str, Any], word: str | None, reason: str) -> None:
    (row,) = rows_of(tmp_path, [value(**changes)], budget)
    assert row.verdict == word, row.reasons
    assert reason in "; ".join(row.reasons)


def test_memory_that_is_not_known_does_not_pass(tmp_path: Path) -> None:
    one = value()
    one["memory"] = {**dict.fromkeys(one["memory"], -1), "peak_mb": 0.0}
    (row,) = rows_of(tmp_path, [one], "peak_mb = 9.0")
    assert row.verdict == "INCONCLUSIVE"
    assert "peak memory is not known there" in row.reasons


def test_what_was_not_measured_does_not_pass_a_budget_of_times(tmp_path: Path) -> None:
    write_builds(tmp_path, BUILT)
    budgets = tmp_path / "b.toml"
    budgets.write_text("[[budget]]\np95_ms = 9.0\nmax_bytes = 10_000_000\n")
    (row,) = read(tmp_path, None, budgets).rows
    assert (row.verdict, row.reasons) == ("INCONCLUSIVE", ("not measured",))


def test_limits_of_the_run_stand_in_for_the_models_own(tmp_path: Path) -> None:
    program = tmp_path / "out" / "digits_cnn" / "program" / "program.json"
    program.parent.mkdir(parents=True)
    program.write_text(json.dumps({"budgets": [{"p95_ms": 0.5, "max_bytes": 10_000_000}]}))
    verdict = {"word": "PASS", "reasons": [], "p50_ms": 1.0, "p95_ms": 1.0, "peak_mb": 1.0}
    summary = {"schema_version": 1, "session": "bench-local", "run": full_run.RUN, "repeats": 1}
    row = {k: value()["measurement"][k] for k in ("device", "model", "target", "precision")}
    row |= {"artifact_sha256": "", "counts": True, "emulated": False, "verdict": verdict}
    (found,) = rows_of(tmp_path, [value()])
    assert [(one.name, one.allowed) for one in found.limits] == [("max_bytes", 10_000_000), ("p95_ms", 0.5)]
    assert found.verdict == "FAIL"
    summary["rows"] = [row | {"limits": {"p95_ms": 2.0, "peak_mb": None}}]
    (tmp_path / "results" / full_run.RUN / "summary.json").write_text(json.dumps(summary))
    (found,) = read(tmp_path / "out", tmp_path / "results").rows
    assert {one.name: one.allowed for one in found.limits} == {"max_bytes": 10_000_000, "p95_ms": 2.0}
    assert found.verdict == "PASS"


def test_budgets_that_are_none_are_an_error(tmp_path: Path) -> None:
    program = tmp_path / "out" / "digits_cnn" / "program" / "program.json"
    program.parent.mkdir(parents=True)
    program.write_text(json.dumps({"budgets": [{"p95": 0.5}]}))
    with pytest.raises(InputError, match="unknown key p95"):
        rows_of(tmp_path, [value()])


def test_a_label_is_cut_by_the_width_of_its_letters() -> None:
    usual_label = "executorch int8-static, 2 threads, batch 16"
    assert text.fitted(usual_label, 48) == usual_label
    assert text.fitted("w" * 60, 48) == "w" * 21 + "…"
    assert len(text.fitted("i" * 60, 48)) > 50
    assert text.fitted("", 48) == ""
    assert text.fitted("漢字" * 30, 10).endswith("…")
