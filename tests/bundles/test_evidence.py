"""Measurements in a bundle, and building a bundle again from its own manifest."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from build.bundle.__main__ import session
from build.bundle.measured import newest
from build.cache import sha256_file
from device_bench import measurement
from tests.bundles.support import archive_of
from tests.conftest import ROOT, Run, environment

CONDITIONS: dict[str, Any] = {
    "celsius": 30.0,
    "sensor": "battery",
    "battery_percent": 80.0,
    "charging": False,
    "load1": 0.1,
    "governors": ["schedutil"],
    "khz": {},
}
CPU: dict[str, Any] = {
    "arch": "aarch64",
    "kernel": "6",
    "online": 8,
    "affinity": [],
    "models": [],
    "parts": [],
    "features": [],
}
HARNESS: dict[str, Any] = {"load1": 0.1, "cpus": [], "thermal": []}


@pytest.fixture
def out(digits: Run, tmp_path: Path) -> Path:
    """The digits model, built, to bundle for Android."""
    shutil.copytree(digits.out / "digits_cnn", tmp_path / "out" / "digits_cnn")
    return tmp_path / "out"


def measured(
    results: Path, out: Path, *, p95_ms: float = 4.0, started: str = "2026-01-02T03:04:05Z", **changes: Any
) -> None:
    """Three repeats on one phone, as the lab writes them.

    Args:
        changes: of ``artifact``, ``device`` or the whole.
    """
    file = out / "digits_cnn" / "litert" / "fp32" / "model.tflite"
    samples = [int(p95_ms * 1e6)] * 40
    folder = results / f"run-{started[:4]}-{p95_ms}" / "PHONE123"
    folder.mkdir(parents=True, exist_ok=True)
    for repeat in (1, 2, 3):
        device = {
            "kind": "adb",
            "serial": "PHONE123",
            "arch": "aarch64",
            "machine": "aarch64",
            "manufacturer": "Maker",
            "model": "Phone 1",
            "soc": "SoC 1",
            "os": "Android 16",
            "abi": "arm64-v8a",
            "cores": 8,
            "memory_mb": 8000,
            "emulated": False,
            "why_emulated": None,
            **changes.get("device", {}),
        }
        who = {"device": "PHONE123", "model": "digits_cnn", "target": "litert", "precision": "fp32"}
        milli = {f"{k}_ms": p95_ms for k in ("min", "p50", "p90", "p95", "max", "mean")}
        value = {
            "schema_version": 1,
            "measurement": {**who, "threads": 1, "batch": None, "variant": "", "repeat": repeat},
            "artifact": {"sha256": sha256_file(file), "bytes": 1, "key": "k", "program": "p", "toolchain": {}}
            | changes.get("artifact", {}),
            "device": device,
            "emulated": device["emulated"],
            "harness": {"version": "1", "arch": "aarch64"},
            "settings": {
                "threads": 1,
                "affinity": [],
                "warmup_runs": 5,
                "warmup_seconds": 0.5,
                "min_runs": 40,
                "min_seconds": 0.0,
                "max_runs": 40,
                "max_seconds": 9.0,
                "batch": 1,
                "seed": 1,
                "position": 0,
            },
            "status": "ok",
            "error": None,
            "warnings": [],
            "attempts": 1,
            "runtime": {"name": "litert", "version": "2.3.0"},
            "load_ms": 1.0,
            "first_ms": 5.0,
            "statistics": {
                "samples": 40,
                **milli,
                "p99_ms": None,
                "stdev_ms": 0.0,
                "spread": 0.0,
                "drift": 0.0,
                "per_second": 1.0,
            },
            "details": {},
            "memory": {
                "rss_before_load": 1,
                "rss_after_load": 2,
                "peak_rss": 3,
                "peak_rss_end": 3,
                "samples_bytes": 1,
                "peak_mb": 12.5,
            },
            "threads": {"alive": 1, "busy": 1, "runtime": 1},
            "timer_cost_ns": 50,
            "clock": "CLOCK_MONOTONIC",
            "warmup": {"runs": 5, "ns": 1},
            "loop_ns": 1,
            "cpu": CPU,
            "conditions": {
                "gate": {
                    "celsius": 30.0,
                    "sensor": "battery",
                    "limit": 35.0,
                    "waited_seconds": 0.0,
                    "timed_out": False,
                },
                "before": CONDITIONS,
                "after": CONDITIONS,
                "harness_before": HARNESS,
                "harness_after": HARNESS,
            },
            "accuracy": None,
            "host": None,
            "samples_ns": samples,
            "started": started,
            "finished": started,
            "end": "edgeport-measurement",
        }
        path = folder / f"digits_cnn.litert.fp32.t1.r{repeat}.json"
        path.write_text(json.dumps({**value, **changes.get("whole", {})}))
        if "whole" not in changes:
            measurement.read(path)  # as the lab itself reads it


def budget(tmp_path: Path, p95_ms: float = 8.0) -> str:
    path = tmp_path / "budgets.toml"
    path.write_text(f'[[budget]]\nplatform = "android"\np95_ms = {p95_ms}\n')
    return str(path)


def bundle(out: Path, tmp_path: Path, *arguments: str) -> int:
    command = ["bundle-android", "--out", str(out), "--targets", "litert", "--precisions", "fp32"]
    return session([*command, "--results", str(tmp_path / "results"), *arguments])


def test_measurements_that_keep_the_budget_are_enclosed(out: Path, tmp_path: Path) -> None:
    measured(tmp_path / "results", out)
    assert bundle(out, tmp_path, "--budgets", budget(tmp_path)) == 0
    place = out / "bundles" / "digits_cnn-android-0.1.0"
    (artifact,) = json.loads((place / "manifest.json").read_text())["artifacts"]
    (found,) = artifact["measurements"]
    assert found["p95_ms"] == 4.0
    assert found["samples"] == 120
    assert found["started"] == "2026-01-02T03:04:05Z"
    assert found["device"]["model"] == "Phone 1"
    assert len(found["files"]) == 3
    assert artifact["budgets"][0]["verdict"] == "PASS"
    assert b"PHONE123" not in archive_of(place).read_bytes(), "no serial number leaves the house"


def test_what_the_lab_really_measured_is_enclosed(out: Path, tmp_path: Path) -> None:
    results = str(tmp_path / "results")
    quick = ["--repeats", "1", "--min-runs", "3", "--min-seconds", "0", "--warmup-runs", "1", "--warmup-seconds", "0"]
    command = [sys.executable, "-m", "device_bench", "bench-pc", "--out", str(out), "--results", results, *quick]
    subprocess.run(command, cwd=ROOT, env=environment(), check=True, capture_output=True)
    path = tmp_path / "budgets.toml"
    path.write_text('[[budget]]\nplatform = "pc"\nmax_bytes = 1_000_000\n')
    options = ["--out", str(out), "--precisions", "fp32", "--results", results, "--budgets", str(path)]
    assert session(["bundle-pc", *options]) == 0
    manifest = json.loads((out / "bundles" / "digits_cnn-pc-0.1.0" / "manifest.json").read_text())
    (found,) = manifest["artifacts"][0]["measurements"]
    assert (found["device"]["kind"], found["runtime"]["name"], found["repeats"]) == ("pc", "openvino", 1)
    assert (found["variant"], found["samples"]) == ("latency", 3)


@pytest.mark.parametrize(
    ("changes", "options", "says"),
    [
        ({"p95_ms": 9.0}, (), "p95_ms FAIL (9 against 8)"),
        ({"device": {"emulated": True, "why_emulated": "qemu"}}, (), "emulated: qemu"),
        ({"artifact": {"sha256": "a" * 64}}, (), "it is of other bytes"),
        ({"artifact": {"sha256": "a" * 64}}, (), "it is older than the artifact"),
        ({"whole": {"end": "cut"}}, (), "has no end marker"),
        ({"device": {"kind": "local"}}, (), "not measured on such a device"),
    ],
)
def test_evidence_that_does_not_count_refuses(
    out: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    options: tuple[str, ...],
    says: str,
) -> None:
    measured(tmp_path / "results", out, **changes)
    assert bundle(out, tmp_path, "--budgets", budget(tmp_path), *options) == 6
    assert says in capsys.readouterr().err
    assert not (out / "bundles").exists()


def test_the_newest_measurement_of_a_device_counts(out: Path, tmp_path: Path) -> None:
    measured(tmp_path / "results", out, p95_ms=9.0, started="2025-01-01T00:00:00Z", artifact={"sha256": "a" * 64})
    measured(tmp_path / "results", out)
    runs, problems = newest(tmp_path / "results", "digits_cnn")
    assert problems == []
    assert [r.started for r in runs["litert", "fp32"]] == ["2026-01-02T03:04:05Z"]
    assert bundle(out, tmp_path, "--budgets", budget(tmp_path)) == 0


def test_a_budget_for_the_latency_without_a_measurement_refuses(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").mkdir()
    assert bundle(out, tmp_path, "--budgets", budget(tmp_path)) == 6
    assert "not shown to keep its budget" in capsys.readouterr().err


def test_what_a_manifest_says_can_be_made_again(out: Path, tmp_path: Path) -> None:
    """The step of `reproduce` that packs: measurements and verdicts are inputs, taken over."""
    measured(tmp_path / "results", out)
    assert bundle(out, tmp_path, "--budgets", budget(tmp_path), "--version", "1.2.3") == 0
    place = out / "bundles" / "digits_cnn-android-1.2.3"
    first = archive_of(place).read_bytes()
    like = shutil.copy(place / "manifest.json", tmp_path / "like.json")
    shutil.rmtree(place)
    assert session(["bundle-android", "--out", str(out), "--like", str(like), "--version", "1.2.3"]) == 0
    assert archive_of(place).read_bytes() == first


def test_a_bundle_of_a_file_needs_the_file_to_be_reproduced(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = out / "digits_cnn" / "program" / "program.json"
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "source": {"kind": "program"}}))
    assert session(["bundle-android", "--out", str(out), "--targets", "litert", "--precisions", "fp32"]) == 0
    assert session(["reproduce", str(out / "bundles" / "digits_cnn-android-0.1.0")]) == 2
    assert "--program FILE.pt2" in capsys.readouterr().err


@pytest.mark.slow
def test_reproduce(out: Path, tmp_path: Path) -> None:
    """A real rebuild: identical; and with another input, the file, the part and the reason are named."""
    command = [sys.executable, "-m", "build.bundle"]
    place = out / "bundles" / "digits_cnn-web-0.1.0"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
        )

    assert run("bundle-web", "--out", str(out), "--precisions", "fp32").returncode == 0
    done = run("reproduce", str(place), "--json", str(tmp_path / "r.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["identical"] is True
    record = out / "digits_cnn" / "program" / "program.json"
    value = json.loads(record.read_text())
    record.write_text(json.dumps({**value, "labels": value["labels"][::-1]}))
    assert run("bundle-web", "--out", str(out), "--precisions", "fp32").returncode == 0
    done = run("reproduce", str(place))
    assert done.returncode == 4
    assert "labels.txt: line 1: '9', rebuilt '0'" in done.stdout
    assert "why: " in done.stdout
