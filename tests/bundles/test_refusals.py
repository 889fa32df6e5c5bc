"""What is not bundled, why, and what may be excepted; and that a killed process leaves a whole bundle or none."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from build.bundle.__main__ import session
from build.bundle.verify import inspect
from build.manifest import read as read_artifact
from tests.bundles.support import (
    PLATFORMS,
    archive_of,
    artifact,
    bundle,
    change_manifest,
    flip,
    folder_of,
)
from tests.conftest import ROOT, environment


def _flip(out: Path) -> None:
    file = artifact(out, "ort_web") / "model.onnx"
    file.write_bytes(flip(file.read_bytes()))


def _reference(out: Path) -> None:
    file = out / "digits_cnn" / "program" / "reference.safetensors"
    file.write_bytes(flip(file.read_bytes()))


def _judged(out: Path, **changes: str) -> None:
    value = read_artifact(artifact(out, "ort_web"))
    assert value is not None
    change_manifest(out, "ort_web", judged_by={**value["judged_by"], **changes})


_FAILED = {"code": "verification-failed", "message": "it is wrong", "op": None, "source": None, "remedy": None}
FIRM: dict[str, tuple[Callable[[Path], object], str]] = {
    "altered": (_flip, "was altered after it was verified"),
    "missing": (lambda o: (artifact(o, "ort_web") / "model.onnx").unlink(), "'model.onnx' is missing"),
    "too many": (lambda o: (artifact(o, "ort_web") / "x.bin").write_bytes(b""), "'x.bin' does not belong to it"),
    "not built": (lambda o: shutil.rmtree(artifact(o, "ort_web")), "is not built"),
    "failed": (lambda o: change_manifest(o, "ort_web", status="failed:verify", error=_FAILED), "is not verified"),
    "another program": (lambda o: change_manifest(o, "ort_web", program="f" * 64), "made from another program"),
    "reference data altered": (_reference, "reference.safetensors was altered"),
}


def _captured(out: Path) -> None:
    path = out / "digits_cnn" / "program" / "program.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "key": "d" * 64}))


SOFT: dict[str, tuple[Callable[[Path], object], str]] = {
    "unverified": (lambda o: change_manifest(o, "ort_web", status="unverified", error=_FAILED), "is not verified"),
    "old reference data": (lambda o: _judged(o, reference="e" * 64), "other reference data"),
    "old labels": (lambda o: _judged(o, record="e" * 64), "other labels or limits"),
    "old calibration": (
        lambda o: change_manifest(o, "ort_web", calibration={"sha256": "f" * 64, "calls": 1, "source": "calls"}),
        "calibrated with other calls",
    ),
    "old code": (lambda o: _judged(o, code="e" * 64), "other code than this checkout's"),
    "old program": (_captured, "the program was captured by other code"),
}


@pytest.mark.parametrize("name", [*FIRM, *SOFT])
def test_a_bundle_is_refused_with_the_reason(copy: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    spoil, reason = {**FIRM, **SOFT}[name]
    spoil(copy)
    assert bundle(copy, "web", "--precisions", "fp32") == 6
    said = capsys.readouterr()
    assert reason in said.err
    assert len([line for line in said.err.splitlines() if line.startswith("error:")]) == 1
    assert not (copy / "bundles").exists(), "nothing is written"
    assert not list((copy / ".staging").glob("*"))


@pytest.mark.parametrize("name", FIRM)
def test_no_reason_excepts_what_is_not_the_artifact(copy: Path, name: str) -> None:
    FIRM[name][0](copy)
    assert bundle(copy, "web", "--precisions", "fp32", "--allow", "we must") == 6
    assert not (copy / "bundles").exists()


@pytest.mark.parametrize("name", SOFT)
def test_an_exception_is_recorded(copy: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    spoil, reason = SOFT[name]
    spoil(copy)
    assert bundle(copy, "web", "--precisions", "fp32", "--allow", "agreed with QA") == 0
    place = folder_of(copy, "web")
    (exception,) = json.loads((place / "manifest.json").read_text())["exceptions"]
    assert reason in exception["what"]
    assert exception["reason"] == "agreed with QA"
    if name == "unverified":
        capsys.readouterr()
        assert session(["verify-bundle", str(place)]) == 0
        assert "EXCEPTED" in capsys.readouterr().out


def test_an_artifact_that_nothing_here_can_run_may_be_excepted(copy: Path, tmp_path: Path) -> None:
    value = read_artifact(artifact(copy, "ort_web"))
    assert value is not None
    never_run = {k: v for k, v in value.items() if k not in ("verification", "accuracy")}
    path = artifact(copy, "ort_web") / "manifest.json"
    path.write_text(json.dumps({**never_run, "metric": None, "status": "unverified", "error": _FAILED}))
    assert bundle(copy, "web", "--precisions", "fp32") == 6
    assert bundle(copy, "web", "--precisions", "fp32", "--allow", "a device will tell") == 0
    manifest = inspect(archive_of(folder_of(copy, "web")), tmp_path / "x", lambda line: None, sums_required=True)
    assert manifest["artifacts"][0]["verification"] is None
    assert "not verified" in (tmp_path / "x" / "README.md").read_text()


@pytest.mark.parametrize("chosen", [["--precisions", "fp32"], []])
def test_a_budget_that_fails_refuses(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], chosen: list[str]
) -> None:
    budgets = tmp_path / "budgets.toml"
    budgets.write_text('[[budget]]\nplatform = "web"\nmax_bytes = 10\n')
    assert bundle(copy, "web", "--budgets", str(budgets), *chosen) == 6
    assert "max_bytes FAIL" in capsys.readouterr().err
    assert bundle(copy, "web", "--budgets", str(budgets), "--allow", "a pilot", *chosen) == 0
    manifest = json.loads((folder_of(copy, "web") / "manifest.json").read_text())
    assert manifest["artifacts"][0]["budgets"][0]["verdict"] == "FAIL"
    budgets.write_text('[[budget]]\nplatform = "web"\ndevice_class = "low-end"\nmax_bytes = 10\n')
    assert bundle(copy, "web", "--budgets", str(budgets), "--device-class", "low_end", *chosen) == 2
    assert manifest["exceptions"][0]["reason"] == "a pilot"


@pytest.mark.parametrize("reason", ["", "  "])
def test_an_exception_needs_a_reason(copy: Path, reason: str) -> None:
    assert bundle(copy, "web", "--allow", reason) == 2


def test_one_refusal_does_not_stop_the_other_bundles(copy: Path) -> None:
    _flip(copy)
    assert session(["bundle", "--out", str(copy), "--precisions", "fp32", "--json", str(copy / "b.json")]) == 6
    value = json.loads((copy / "b.json").read_text())
    assert {b["platform"] for b in value["bundles"]} == set(PLATFORMS) - {"web"}
    assert value["error"]["code"] == "gate-failed"


@pytest.mark.slow
def test_kills_leave_a_whole_bundle_or_none(built: Path, copy: Path, tmp_path: Path) -> None:

    chance, command = random.Random(2), [sys.executable, "-m", "build.bundle", "bundle-web", "--out", str(copy)]
    command += ["--precisions", "fp32"]
    started = time.monotonic()
    assert subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, check=False).returncode == 0
    span = time.monotonic() - started
    wanted = archive_of(folder_of(copy, "web")).read_bytes()
    killed = 0
    for n in range(300):
        if n % 5 == 0:
            shutil.rmtree(copy / "bundles", ignore_errors=True)
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(chance.uniform(0, span))
        alive = process.poll() is None
        killed += alive
        span *= 1.05 if alive else 0.9  # the machine may have become slower or faster: two of three are to be hit
        process.kill()
        process.wait()
        place = folder_of(copy, "web")
        if place.exists():
            out = tmp_path / f"x{n}"
            out.mkdir()
            inspect(archive_of(place), out, lambda line: None, sums_required=True)
            shutil.rmtree(out)
            assert archive_of(place).read_bytes() == wanted
        if killed == 50:
            break
    assert killed == 50
    assert bundle(copy, "web", "--precisions", "fp32") == 0
    assert not (copy / ".staging").exists(), "what the killed ones left is swept up"
