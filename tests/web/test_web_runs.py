"""``bench-web`` as a user runs it: engines, precisions, threads, providers; what is recorded; what fails clearly."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.web.conftest import Bench
from tests.web.support import make_out


@pytest.mark.slow
def test_both_engines_at_two_precisions_and_thread_counts(bench: Bench) -> None:
    run = bench("--precisions", "fp32,int8-static", "--sweep", "threads=1,2")
    assert run.code == 0, run.stdout + run.stderr
    assert len(run.measurements) == 8
    cells = itertools.product(("ort_web", "litert"), ("fp32", "int8-static"))
    for target, precision in cells:
        for threads in (1, 2):
            found = run.of(target, precision, threads)
            assert found["status"] == "ok", found["error"]
            assert found["device"]["kind"] == "browser"
            assert not found["emulated"]
            details = found["details"]
            assert details["provider"] == "wasm"
            _check_threads(target, threads, found)
            assert details["hidden"] is False
            assert details["cross_origin_isolated"] is True
            assert "Chrome" in details["user_agent"]
            assert 0 < found["timer_step_ns"] <= 100_000
            assert len(found["samples_ns"]) >= 5
            assert found["loop_ns"] >= sum(found["samples_ns"]) * 0.99
            assert found["load_ms"] > 0
            assert found["first_ms"] > 0
            # A browser shows no peak: there is no figure, in place of an invented one.
            assert found["memory"]["peak_mb"] is None
            accuracy, host = found["accuracy"], found["host"]
            assert accuracy["metric"]["value"] == accuracy["metric"]["reference"]
            assert accuracy["changed_decisions"] == 0
            assert not host["flagged"], host["why"]
            assert host["calls"] == accuracy["calls"] == 24
    assert run.of("litert")["details"]["fixed_shapes"].startswith("image [-1, 1, 8, 8] -> [1, 1, 8, 8]")
    assert run.of("ort_web")["runtime"] == {"name": "onnxruntime-web", "version": "1.30.0"}
    assert run.of("litert")["runtime"] == {"name": "litert.js", "version": "2.5.3"}


def _check_threads(target: str, threads: int, found: dict[str, Any]) -> None:
    """ONNX Runtime says what it has made of what it was asked for; LiteRT.js only how many it has started."""
    details = found["details"]
    assert found["settings"]["threads"] == threads
    if target == "ort_web":
        assert details["threads_used"] == found["threads"]["runtime"] == threads
        return
    assert details["litert_threaded_build"] is (threads > 1)
    if threads == 1:
        assert details["threads_used"] == found["threads"]["runtime"] == details["litert_pool"] == 1
    else:
        assert details["threads_used"] is found["threads"]["runtime"] is None, "it can't be asked"
        assert details["litert_pool"] >= threads


@pytest.mark.slow
def test_batches_are_timed_at_their_size(bench: Bench) -> None:
    run = bench("--sweep", "batch=1,16")
    assert run.code == 0, run.stdout + run.stderr
    for target in ("ort_web", "litert"):
        small, large = (
            next(
                m
                for m in run.measurements
                if m["measurement"]["target"] == target and m["measurement"]["batch"] == batch
            )
            for batch in (1, 16)
        )
        seconds = large["loop_ns"] / 1e9
        assert large["statistics"]["per_second"] == pytest.approx(16 * len(large["samples_ns"]) / seconds, rel=0.01)
        assert small["accuracy"] is not None
        assert large["accuracy"] is None


@pytest.mark.slow
def test_a_gpu_in_software_computes_right_and_never_passes_a_budget(tmp_path: Path, bench: Bench) -> None:
    budget = {"platform": "web", "device_class": "*", "p95_ms": 1e9}
    out = make_out(tmp_path / "out", budgets=(budget,))
    run = bench("--software-gpu", "--variants", "webgpu", out=out)
    assert run.code == 0, run.stdout + run.stderr
    for target in ("ort_web", "litert"):
        found = run.of(target)
        assert found["status"] == "ok", found["error"]
        assert found["details"]["provider"] == "webgpu"
        assert "swiftshader" in found["details"]["adapter"]
        assert found["emulated"]
        assert "software" in found["device"]["why_emulated"]
        assert found["accuracy"]["changed_decisions"] == 0
        assert not found["host"]["flagged"], found["host"]["why"]
    assert {r["verdict"]["word"] for r in run.rows} == {"INCONCLUSIVE"}


@pytest.mark.slow
def test_a_gpu_that_takes_a_part_of_a_model_is_no_secret(bench: Bench) -> None:
    """ONNX Runtime runs the rest on the CPU, and the record says so; LiteRT.js would move all of it, and fails."""
    run = bench("--software-gpu", "--variants", "webgpu", "--precisions", "int8-dynamic")
    assert run.code == 8
    onnx, litert = run.of("ort_web", "int8-dynamic"), run.of("litert", "int8-dynamic")
    assert onnx["status"] == "ok", onnx["error"]
    assert onnx["details"]["provider"] == "webgpu, some nodes on wasm"
    assert not onnx["host"]["flagged"], onnx["host"]["why"]
    assert litert["status"] == "failed"
    assert "would fall back to wasm" in litert["error"]["message"]


def test_a_failed_build_is_named_and_the_others_are_measured(tmp_path: Path, bench: Bench) -> None:
    out = make_out(tmp_path / "out")
    path = out / "digits_cnn" / "litert" / "fp32" / "manifest.json"
    value = json.loads(path.read_text())
    value |= {"status": "failed:metric", "error": {"code": "verification-failed", "message": "not good enough"}}
    path.write_text(json.dumps(value))
    run = bench(out=out)
    assert run.code == 8
    assert run.of("ort_web")["status"] == "ok"
    words = "digits_cnn litert fp32 cannot be measured: its build ended with failed:metric: not good enough"
    assert words in run.stdout
    alone = bench("--targets", "litert", out=out)
    assert alone.code == 2
    assert words in alone.stderr


def test_without_a_gpu_that_provider_fails_and_the_others_are_kept(bench: Bench) -> None:
    run = bench("--targets", "ort_web", "--variants", "wasm,webgpu")
    assert run.code == 8
    by_way = {m["measurement"]["variant"]: m for m in run.measurements}
    assert by_way["wasm"]["status"] == "ok"
    assert by_way["webgpu"]["status"] == "failed"
    assert by_way["webgpu"]["error"]["code"] == "harness-failed"
    assert "no adapter" in by_way["webgpu"]["error"]["message"]
    assert "1 of 2 measurements taken" in run.stdout


def test_a_budget_on_memory_is_not_passed_where_none_is_shown(tmp_path: Path, bench: Bench) -> None:
    out = make_out(tmp_path / "out", budgets=({"platform": "web", "device_class": "*", "peak_mb": 1e6},))
    run = bench("--targets", "ort_web", out=out)
    (row,) = run.rows
    assert row["verdict"]["word"] == "INCONCLUSIVE"
    assert any("does not show any" in reason for reason in row["verdict"]["reasons"])


def test_a_missing_browser_is_said_in_every_measurement(bench: Bench) -> None:
    run = bench("--targets", "ort_web", EDGEPORT_CHROMIUM="/nonexistent/chromium")
    assert run.code == 8
    (found,) = run.measurements
    assert found["error"]["code"] == "missing-tool"
    assert "/nonexistent/chromium" in found["error"]["message"]
    assert "Traceback" not in run.stderr


def test_a_browser_that_cannot_start_is_said(bench: Bench) -> None:
    run = bench("--targets", "ort_web", EDGEPORT_CHROMIUM="/bin/false")
    assert run.code == 8
    (found,) = run.measurements
    assert found["error"]["code"] == "device"
    assert "cannot be started" in found["error"]["message"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--open", "--software-gpu"], "different browsers"),
        (["--serial", "A", "--serial", "B"], "one device at a time"),
        (["--affinity", "0"], "can't be pinned"),
        (["--variants", "webgl"], "no variant is named 'webgl'"),
        (["--targets", "coreml"], "no target is named 'coreml'"),
    ],
)
def test_options_that_make_no_sense(bench: Bench, arguments: list[str], words: str) -> None:
    run = bench(*arguments)
    assert run.code == 2
    assert words in run.stderr
    assert not run.measurements
