"""bench-apple: what it says where there is no Core ML, and its logic with a stand-in for Core ML's models.

Core ML itself runs on macOS only: nothing here shows that a Mac gives these answers.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from build import manifest
from build.errors import HarnessError, InputError, MissingToolError, RejectedResultError
from device_bench import __main__ as lab
from device_bench import measurement
from device_bench import options as cli
from device_bench.artifacts import Artifact, find
from device_bench.contract import HarnessRun, Task
from device_bench.harness.python import __main__ as process
from device_bench.harness.python.coreml_engine import UNITS, CoreMlEngine, planned
from device_bench.job import OUTPUTS_ONLY, make_data
from device_bench.options import LabOptions
from device_bench.platforms import apple
from device_bench.platforms.python_host import HostPlace, PythonHarness
from tests.conftest import ROOT, environment
from tests.device.built import make_out
from tests.fake_coreml import WHY, FakeModels

_VERIFIED = {
    "verification": {
        "runtime": "mil-evaluator (coremltools 9.0)",
        "calls": 24,
        "sizes": [{"s40": 1}, {"s40": 64}],
        "max_abs_diff": 2.3e-05,
        "decisions": 360,
        "changed_decisions": 0,
    },
    "contract": {
        "minimum_deployment_target": "iOS17",
        "carried": {"ids": "int64 as int32"},
        "mil_ops": {"conv": 3, "quantize": 7},
        "deployment": {
            "target": "iOS17",
            "macos": "14",
            "specification_version": 8,
            "opset": "CoreML7",
            "newer_than_ios15": {"quantize": "iOS17"},
            "lowest_target_of_its_operations": "iOS17",
        },
    },
}
QUICK = ("--warmup-runs", "1", "--warmup-seconds", "0", "--min-runs", "3", "--min-seconds", "0", "--repeats", "1")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_out(tmp_path_factory.mktemp("apple") / "out", targets=("coreml",))
    folder = made / "digits_cnn" / "coreml" / "fp32"
    value = manifest.read(folder)
    assert value is not None
    manifest.write(folder, value | _VERIFIED)
    return made


@pytest.fixture(scope="module")
def artifact(out: Path) -> Artifact:
    (found,) = find(out, models=["digits_cnn"], targets=["coreml"], precisions=["fp32"], build_session="build-apple")
    return found


@pytest.mark.skipif(sys.platform == "darwin", reason="there is a Core ML here, and it is measured")
def test_elsewhere_it_says_that_it_needs_a_mac_and_what_was_verified(out: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "device_bench", "bench-apple", "--out", str(out), "--results", str(tmp_path / "r")]
    done = subprocess.run(
        [*command, "--precisions", "fp32,int8-dynamic"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == MissingToolError.exit_code
    assert "Core ML runs on macOS, this is linux: nothing was measured" in done.stderr
    assert "int8-dynamic: left out: Core ML fixes the ranges" in done.stderr
    assert "Traceback" not in done.stderr
    for line in (
        "digits_cnn coreml fp32: ok",
        "mil-evaluator (coremltools 9.0) on 24 calls at 2 sizes",
        "0 of 360 decisions changed",
        "image float32[1..64, 1, 8, 8] -> logits float32[1..64, 10]",
        "ids crosses Core ML's interface as int64 as int32",
        "for iOS17 or macOS 14 and later: specification version 8, operations of CoreML7",
        "newer than iOS15: quantize (iOS17)",
        "Not verified here: Core ML's own runtime",
    ):
        assert line in done.stdout
    assert not (tmp_path / "r").exists()


@pytest.mark.skipif(sys.platform == "darwin", reason="there is a Core ML here, and it is measured")
@pytest.mark.parametrize(
    ("status", "message"),
    [("failed:metric", "top1_accuracy fell by 0.2"), ("unverified", "the evaluator does not know operation 'erf'")],
)
@pytest.mark.parametrize("alone", [False, True])
def test_a_build_that_went_wrong_is_a_line_of_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: str, message: str, alone: bool
) -> None:
    out = make_out(tmp_path / "out", targets=("coreml",), precisions=("fp32", "fp16"))
    for precision in ("fp32", "fp16"):
        folder = out / "digits_cnn" / "coreml" / precision
        value = manifest.read(folder)
        assert value is not None
        value |= _VERIFIED
        if precision == "fp16" or alone:  # as a build leaves it that got no further than that
            del value["verification"], value["contract"]
            value |= {"status": status, "error": {"code": status, "message": message}}
        manifest.write(folder, value)
    arguments = ["bench-apple", "--out", str(out), "--precisions", "fp32,fp16", "--json", str(tmp_path / "r.json")]
    assert lab.main(arguments) == MissingToolError.exit_code
    told = capsys.readouterr()
    assert "nothing was measured" in told.err
    assert f"  digits_cnn coreml fp16: {status}: {message}\n" in told.out
    assert ("digits_cnn coreml fp32: ok" in told.out) is not alone
    value = json.loads((tmp_path / "r.json").read_text())
    assert value["error"]["code"] == MissingToolError.code
    fp32, fp16 = value["verified"]
    assert (fp16["status"], fp16["error"]["message"], fp16["verification"]) == (status, message, None)
    assert fp32["status"] == (status if alone else "ok")


def test_a_missing_artifact_comes_first(out: Path) -> None:
    with pytest.raises(InputError, match="fp16 is not built"):
        apple.check(cli.parse("bench-apple", ["--out", str(out), "--precisions", "fp16"]))


def test_threads_are_core_mls_own(out: Path) -> None:
    with pytest.raises(InputError, match="chooses its own threads"):
        apple.check(cli.parse("bench-apple", ["--out", str(out), "--sweep", "threads=1,2"]))


def test_the_unit_named_all_can_be_measured_alone() -> None:
    def units(*arguments: str) -> list[str]:
        return [p.variant for p in cli.parse("bench-apple", [*arguments]).points]

    assert units() == units("--variants", "all") == ["all"]
    assert units("--variants", "every") == ["all", "cpu", "cpu_gpu", "cpu_ane"]
    with pytest.raises(InputError, match="no variant is named 'gpu'") as refused:
        units("--variants", "gpu")
    assert "Here: all, cpu, cpu_gpu, cpu_ane, every." in str(refused.value)


class Fake(PythonHarness):
    """The harness with the stand-in, in this process: importing coremltools anew for each run takes long."""

    def __init__(self, fault: str = "") -> None:
        super().__init__("coreml", "coreml", lambda variant: {"unit": variant})
        self._fault = fault

    def _run(self, arguments: list[str], timeout: float) -> object:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = process.carry_out(Path(arguments[0]), lambda: CoreMlEngine(FakeModels(self._fault)))
        return subprocess.CompletedProcess(arguments, code, printed.getvalue().encode(), b"")


def measured(out: Path, artifact: Artifact, fault: str = "", *, emulated: bool = True) -> HarnessRun:
    data = make_data(out, artifact.record, artifact.program_folder, None)
    task = Task(
        artifact=artifact, data=data, settings=OUTPUTS_ONLY, variant="cpu_ane", evaluate=True, emulated=emulated
    )
    return Fake(fault).measure(task)


def test_a_whole_run_with_the_stand_in(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def places(options: LabOptions) -> Iterator[list[HostPlace]]:
        yield [HostPlace(options.out, "mac", "", why_emulated=WHY)]

    monkeypatch.setattr(apple, "places", places)
    monkeypatch.setattr(apple, "check", lambda options: None)
    monkeypatch.setattr(apple, "harness_of", Fake)
    code = lab.main(
        ["bench-apple", "--out", str(out), "--results", str(tmp_path), "--variants", "all,cpu", "--seed", "1", *QUICK]
    )
    assert code == 0
    found = {p.name: measurement.read(p) for p in tmp_path.glob("run-*/mac-*/*.json")}
    assert {v["measurement"]["variant"] for v in found.values()} == {"all", "cpu"}
    for value in found.values():
        variant = value["measurement"]["variant"]
        assert value["runtime"]["name"] == "fake Core ML"
        assert value["emulated"]
        assert value["device"]["why_emulated"] == WHY
        assert value["details"]["fake"] is True
        assert value["details"]["compute_units"] == UNITS[variant]
        assert value["details"]["units_used"] == ("ane,cpu" if variant == "all" else "cpu")
        assert value["accuracy"]["changed_decisions"] == 0
        assert value["accuracy"]["max_abs_diff"] < 1e-3
        assert value["host"] is None  # a stand-in is not this host
    (summary,) = tmp_path.glob("run-*/summary.json")
    assert all(r["emulated"] and not r["counts"] for r in json.loads(summary.read_text())["rows"])


def test_a_stand_in_is_no_measurement_of_a_real_place(out: Path, artifact: Artifact) -> None:
    with pytest.raises(RejectedResultError, match="fake Core ML is a stand-in"):
        measured(out, artifact, emulated=False)


def test_a_system_without_a_plan_is_measured_all_the_same(out: Path, artifact: Artifact) -> None:
    run = measured(out, artifact, "no-plan")
    assert run.details["plan"] == "not available: MLComputePlan is not supported."
    assert "units_used" not in run.details


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("refuse", "load: Core ML refuses model.mlpackage: compiler error"),
        ("fail", "run: Core ML failed: Error computing NN outputs."),
        ("nameless", "logits"),
    ],
)
def test_core_mls_failures_say_where(out: Path, artifact: Artifact, fault: str, message: str) -> None:
    with pytest.raises(HarnessError, match=message):
        measured(out, artifact, fault)


@pytest.mark.skipif(sys.platform == "darwin", reason="there is a Core ML here")
def test_without_the_stand_in_there_is_no_core_ml_here(out: Path, artifact: Artifact) -> None:
    data = make_data(out, artifact.record, artifact.program_folder, None)
    with pytest.raises(HarnessError, match="load: Core ML runs on macOS"):
        apple.harness_of().measure(Task(artifact=artifact, data=data, settings=OUTPUTS_ONLY, variant="all"))


def test_the_units_are_coremltools_own() -> None:
    import coremltools as ct

    assert tuple(UNITS) == apple.VARIANTS
    assert set(UNITS.values()) == {u.name for u in ct.ComputeUnit}


def test_a_plan_is_counted_by_device() -> None:
    """With the names of coremltools's classes; what Core ML puts in them only a Mac can show."""
    from coremltools.models import compute_device

    class Usage:
        def __init__(self, name: str) -> None:
            kind = getattr(compute_device, name)
            self.preferred_compute_device = kind.__new__(kind)

    class Part:
        def __init__(self, **members: Any) -> None:
            self.__dict__.update(members)

    names = [
        "MLCPUComputeDevice",
        "MLNeuralEngineComputeDevice",
        "MLNeuralEngineComputeDevice",
        "",
        "MLGPUComputeDevice",
    ]
    plan = Part(
        model_structure=Part(program=Part(functions={"main": Part(block=Part(operations=names))})),
        get_compute_device_usage_for_mlprogram_operation=lambda op: Usage(op) if op else None,
    )
    assert planned(plan) == {"cpu": 1, "ane": 2, "gpu": 1}
