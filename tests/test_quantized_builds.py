"""Whole builds of quantised precisions: the digits model, a planted fault, a program that is quantised already."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from build.attempt import Maker
from build.errors import UnsupportedError, VerificationError
from build.record import PROGRAM, ProgramRecord
from targets.contract import Arithmetic, Coverage, Lowered, LowerRequest, Signature
from targets.precisions import PRECISIONS
from targets.registry import all_targets
from tests import planted
from tests.conftest import NOX_PYTHON, ROOT, Run, build_in, environment
from tests.quantized_support import small_program

QUANTISED = [p.name for p in PRECISIONS.values() if p.quantized]
CELLS = [(t, p) for t in all_targets() for p in QUANTISED]
#: One target every day, all of them in the full run: a search lowers a program several times.
TARGETS = [t if t == "ort_web" else pytest.param(t, marks=pytest.mark.slow) for t in all_targets()]
PLANTED = ("--module", str(Path(planted.__file__)) + ":spec", "--precisions", "int8-static")

#: Of the digits model, by hand: three convolutions without bias, each with a norm, and a linear layer. A product and a
#: sum are two operations, at each of 8 x 8, 8 x 8 and 4 x 4 places.
PARAMETERS = 9 * (1 * 16 + 16 * 32 + 32 * 32) + 2 * (16 + 32 + 32) + 128 * 10 + 10
FLOPS = 2 * (64 * 9 * 1 * 16 + 64 * 9 * 16 * 32 + 16 * 9 * 32 * 32 + 128 * 10)


@pytest.mark.parametrize(("target", "precision"), CELLS, ids=["-".join(c) for c in CELLS])
def test_every_cell_is_an_artifact_with_its_metric_or_a_reason(digits: Run, target: str, precision: str) -> None:
    row = digits.row(target, precision)
    reason = all_targets()[target].unavailable(precision)
    if reason is not None:
        assert row["status"] == f"unavailable: {reason}"
        assert len(reason.split()) > 3
        return
    assert row["status"] == "ok", row["error"]
    metric = row["metric"]
    assert metric["name"] == "top1_accuracy"
    assert metric["value"] >= metric["reference"] - 0.01, "at most one point of accuracy is lost"
    assert row["bytes"] == sum(f["bytes"] for f in row["files"])


@pytest.mark.parametrize("target", list(all_targets()))
def test_a_quantised_manifest_says_what_it_was_made_from(digits: Run, target: str) -> None:
    value = json.loads((digits.out / "digits_cnn" / target / "int8-static" / "manifest.json").read_text())
    jsonschema.validate(value, json.loads((ROOT / "build" / "manifest.schema.json").read_text()))
    assert value["calibration"]["calls"] == 100
    assert value["calibration"]["source"] == "model"
    assert value["cost"]["parameters"] == PARAMETERS
    assert value["cost"]["flops"] == FLOPS
    assert value["accuracy"]["outputs"]["logits"]["snr_db"] > 15
    assert sum(c["rows"] for c in value["accuracy"]["per_class"]) == 360
    for change in value["verification"]["changed"]:
        assert change["before"] != change["after"]
        assert change["call"].startswith("evaluation/digits/test/")
    plain = json.loads((digits.out / "digits_cnn" / target / "fp32" / "manifest.json").read_text())
    assert plain["calibration"] is None


def test_check_names_the_artifact_to_ship(digits: Run, tmp_path: Path) -> None:
    run = check(digits.out, tmp_path, "--targets", "ort_web,openvino")
    assert run.returncode == 0, run.stdout + run.stderr
    (web,) = [s for s in report(tmp_path)["sections"] if s["platform"] == "web"]
    sizes = {c["precision"]: c["size"] for c in web["candidates"] if c["verdict"] == "PASS"}
    assert web["ship"]["precision"] == min(sizes, key=lambda p: sizes[p])
    assert "ship: ort_web" in run.stdout


def test_check_says_what_stops_each_candidate(digits: Run, tmp_path: Path) -> None:
    budgets = tmp_path / "budgets.toml"
    budgets.write_text('[[budget]]\nplatform = "web"\nmax_bytes = 10\nmin_metric = 0.5\np95_ms = 3.0\n')
    run = check(digits.out, tmp_path, "--budgets", str(budgets), "--targets", "ort_web")
    assert run.returncode == 6
    assert "ship: none passes" in run.stdout
    assert "is stopped by max_bytes FAIL, p95_ms INCONCLUSIVE (not measured on such a device)" in run.stdout


def check(out: Path, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """``nox -s check``."""
    command = [*NOX_PYTHON, "-m", "build.check", "--out", str(out), "--json", str(tmp_path / "check.json"), *options]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)


def report(tmp_path: Path) -> Any:
    """What it wrote."""
    return json.loads((tmp_path / "check.json").read_text())


@pytest.mark.parametrize("target", TARGETS)
def test_a_planted_fault_is_caught_blamed_and_mended(
    target: str, tmp_path: Path, run_build: Callable[..., Run]
) -> None:
    broken = run_build(*PLANTED, "--targets", target)
    row = broken.row(target, "int8-static")
    assert broken.code == 4
    assert row["status"] == "failed:metric"
    assert "top1_accuracy" in row["error"]["message"]
    assert row["metric"]["value"] < row["metric"]["reference"] - 0.3
    assert row["files"] == []

    found = tmp_path / "blame.json"
    blamed = subprocess.run(
        [*(*NOX_PYTHON, "-m", "build.blame", *PLANTED, "--target", target), *("--json", found, "--out", broken.out)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert blamed.returncode == 0, blamed.stderr
    assert json.loads(found.read_text())["reports"][0]["culprit"] == planted.CULPRIT
    assert f"culprit: {planted.CULPRIT} (aten.conv2d.default, layer spread) at planted.py:" in blamed.stdout

    mended = run_build(*PLANTED, "--targets", target, "--auto-mixed")
    row = mended.row(target, "int8-static")
    assert row["status"] == "ok", row["error"]
    assert row["metric"]["value"] >= row["metric"]["reference"] - 0.02
    value = json.loads((mended.out / "planted" / target / "int8-static" / "manifest.json").read_text())
    assert value["auto_mixed"]["found"]
    assert 1 <= len(value["kept_float"]) <= 2


def test_keep_float_of_no_node_is_one_clear_error(run_build: Callable[..., Run]) -> None:
    run = run_build("--targets", "ort_web", "--precisions", "int8-static", "--keep-float", "conv2d_9")
    assert run.code == 2
    error = run.row("ort_web", "int8-static")["error"]
    assert "conv2d_9" in error["message"]
    assert "conv2d_1" in error["remedy"]


@pytest.fixture(scope="module")
def quantised_already(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The QAT example on every target, without naming a precision."""
    return build_in(ROOT, tmp_path_factory.mktemp("qat") / "out", "--model", "digits_qat")


@pytest.mark.parametrize("target", list(all_targets()))
def test_a_program_that_is_quantised_already_is_built_as_int8(quantised_already: Run, target: str) -> None:
    row = quantised_already.row(target, "int8-static")
    assert row["status"] == "ok", row["error"]
    assert row["metric"]["reference"] > 0.97
    assert abs(row["metric"]["value"] - row["metric"]["reference"]) <= 0.01
    folder = quantised_already.out / "digits_qat"
    value = json.loads((folder / target / "int8-static" / "manifest.json").read_text())
    assert value["calibration"] is None
    found, worst = value["accuracy"]["outputs"]["logits"], value["verification"]["outputs"]["logits"]
    assert found["cosine"] > 0.99, "compared with its own fake-quantised outputs"
    if found["snr_db"] is None:  # nothing differs; what has no signal has no SNR either
        assert (worst["max_abs"], found["cosine"]) == (0, 1)
    else:
        assert found["snr_db"] > 20
    assert value["verification"]["decisions"] == 360
    assert value["cost"]["flops"] == FLOPS, "as many as the float model has"
    assert row["bytes"] < 55_000, "weights are stored in 8 bits: as floats they alone would be 62 kB"


class _OfFloats:
    """A target whose artifacts compute nothing in integers; they are not looked at."""

    def lower(self, program: Any, request: LowerRequest) -> Lowered:
        return Lowered(files=(), coverage=Coverage(delegated=1), arithmetic=Arithmetic(integers=0, floats={"LSTM": 1}))

    def load(self, directory: Path, files: Any, signature: Any) -> Any:
        raise VerificationError("loaded")


@pytest.mark.parametrize(
    ("keep", "own", "error"),
    [((), False, UnsupportedError), (("conv2d",), False, VerificationError), ((), True, VerificationError)],
)
def test_a_promise_of_integers_that_is_not_kept_is_no_artifact(
    tmp_path: Path, keep: tuple[str, ...], own: bool, error: type[Exception]
) -> None:
    """Unless the user asked for floats, or gave a program that decides for itself."""
    small_program(tmp_path).rename(tmp_path / PROGRAM)
    record = ProgramRecord(
        name="m",
        key="",
        sha256="",
        signature=Signature(inputs=(), outputs=()),
        calls=(),
        files={},
        source={},
        quantized=own,
    )
    target: Any = _OfFloats()
    maker = Maker(target=target, record=record, folder=tmp_path, precision="int8-static", enter=lambda stage: None)
    with pytest.raises(error):
        maker.make(tmp_path, keep, None)


def test_it_cannot_be_asked_for_in_float(run_build: Callable[..., Run]) -> None:
    run = run_build("--model", "digits_qat", "--targets", "ort_web", "--precisions", "fp32")
    assert run.code == 2
    assert "quantised already" in run.row("ort_web")["error"]["message"]


def test_check_judges_latency_by_what_a_device_lab_measured(digits: Run, tmp_path: Path) -> None:
    folder = digits.out / "digits_cnn" / "litert" / "fp32"
    value = json.loads((folder / "manifest.json").read_text())
    (sha256,) = [f["sha256"] for f in value["files"] if f["path"] == value["main"]]
    row = {"artifact_sha256": sha256, "platform": "android", "device_class": "*", "counts": True, "emulated": False}
    run = tmp_path / "results" / "run-20260101T000000"
    run.mkdir(parents=True)
    rows = [{**row, "verdict": {"p95_ms": 2.0, "peak_mb": 30.0}}]
    (run / "summary.json").write_text(json.dumps({"schema_version": 1, "rows": rows}))
    budgets = tmp_path / "budgets.toml"
    budgets.write_text('[[budget]]\nplatform = "android"\np95_ms = 3.0\n')
    options = ("--budgets", str(budgets), "--targets", "litert", "--results", str(run.parent))
    assert check(digits.out, tmp_path, *options).returncode == 0
    (section,) = report(tmp_path)["sections"]
    assert section["ship"] == {"target": "litert", "precision": "fp32"}
    others = {c["verdict"] for c in section["candidates"] if c["precision"] != "fp32"}
    assert others == {"INCONCLUSIVE"}, "only these very bytes were measured"
