"""The PC harness: OpenVINO on this machine's CPU, measured, checked, and failing as it should."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from build.errors import DeviceError, HarnessError, InputError, RejectedResultError
from build.record import read_record
from device_bench import harness_result, measurement
from device_bench import options as cli
from device_bench.accuracy import against_pytorch
from device_bench.artifacts import Artifact, find
from device_bench.contract import HarnessRun, Task
from device_bench.job import OUTPUTS_ONLY, Data, Settings, make_data, make_job
from device_bench.platforms.pc import PcHarness
from targets.checks import signature_to_json
from tests.conftest import ROOT, environment
from tests.device.built import make_out

QUICK = Settings(warmup_runs=2, warmup_seconds=0.0, min_runs=20, min_seconds=0.0)
QUICK_OPTIONS = (
    *("--warmup-runs", "1", "--warmup-seconds", "0", "--min-runs", "5", "--min-seconds", "0.01"),
    *("--repeats", "1", "--seed", "7"),
)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_out(tmp_path_factory.mktemp("pc") / "out", targets=("openvino",))


@pytest.fixture(scope="module")
def artifact(out: Path) -> Artifact:
    (found,) = find(out, models=["digits_cnn"], targets=["openvino"], precisions=["fp32"], build_session="build-pc")
    return found


def data_of(out: Path, artifact: Artifact, batch: int | None = None) -> Data:
    return make_data(out, artifact.record, artifact.program_folder, batch)


def measured(
    harness: PcHarness, out: Path, artifact: Artifact, settings: Settings = QUICK, **changes: Any
) -> HarnessRun:
    more = changes.pop("more", None)
    data = data_of(out, artifact, settings.batch)
    how: dict[str, Any] = {"variant": "latency"}
    return harness.measure(Task(artifact=artifact, data=data, settings=settings, **how | changes), more)


def lab(out: Path, results: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "device_bench", "bench-pc", "--out", str(out), "--results", str(results)]
    return subprocess.run(
        [*command, *QUICK_OPTIONS, *arguments], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )


def test_a_run_of_both_hints_and_a_device_that_is_not_there(out: Path, tmp_path: Path) -> None:
    done = lab(out, tmp_path, "--variants", "all", "--device", "CPU,NPU.7")
    assert done.returncode == 8, done.stderr
    assert "OpenVINO finds no NPU.7 on this machine" in done.stdout
    found = {p.name: measurement.read(p) for p in tmp_path.glob("run-*/pc-*/*.json")}
    values = [measurement.read(p) for p in tmp_path.glob("run-*/pc-*-cpu/*.json")]
    assert len(found) == 2
    assert len(values) == 2
    for value in values:
        assert value["status"] == "ok"
        assert value["runtime"]["name"] == "openvino"
        assert value["device"]["kind"] == "pc"
        assert value["accuracy"]["metric"]["value"] == value["accuracy"]["metric"]["reference"]
        assert not value["host"]["flagged"]
        details = value["details"]
        assert details["hint"] == value["measurement"]["variant"].upper()
        assert (details["device"], details["execution_devices"]) == ("CPU", "CPU")
        assert details["inference_precision"] == "f32"
        assert details["inference_threads"] == value["threads"]["runtime"] == 1
        assert details["streams"] >= 1
        few = value["measurement"]["variant"] == "throughput" and value["device"]["cores"] > 1
        assert ("throughput-threads" in {w["code"] for w in value["warnings"]}) is few
        # Each in a fresh process: the second found what the first left in the cache.
        assert details["cache_was_used"] is True
        assert details["loaded_from_cache"] is False
        assert details["first_load_ms"] > 0
        assert details["cached_load_ms"] > 0
    missing = [measurement.read(p) for p in tmp_path.glob("run-*/pc-*-npu.7/*.json")]
    assert {m["error"]["code"] for m in missing} == {"device"}


def test_a_sweep_has_every_point(out: Path, tmp_path: Path) -> None:
    done = lab(out, tmp_path, "--sweep", "batch=1,8", "threads=1,2", "--keep-p95", "1000", "--min-runs", "120")
    assert done.returncode == 0, done.stderr
    (summary,) = tmp_path.glob("run-*/summary.json")
    value = json.loads(summary.read_text())
    assert sorted((r["threads"], r["batch"]) for r in value["rows"]) == [(1, 1), (1, 8), (2, 1), (2, 8)]
    doubted = {(r["threads"], r["batch"]) for r in value["rows"] if r["doubts"]}  # a busy machine may leave some
    for series in value["sweep"]:
        assert [p["batch"] for p in series["points"]] == [1, 8]
        assert all(p["p50_ms"] and p["p95_ms"] and p["per_second"] for p in series["points"])
        one, eight = ((series["threads"], batch) in doubted for batch in (1, 8))
        assert series["largest_batch"] == (None if one else 1 if eight else 8)
        assert series["word"] == ("INCONCLUSIVE" if one or eight else "PASS")
        assert (series["checked_batches"], series["unchecked_batches"]) == ([1], [8])
    assert done.stdout.count("largest batch with a p95 of at most 1000 ms: ") == 2
    assert done.stdout.count("outputs were compared at batch 1, not at batch 8") == 2
    assert {r["runtime_threads"] for r in value["rows"]} == {1, 2}


def test_a_named_p95_takes_the_budgets_place_for_one_batch_too(tmp_path: Path) -> None:
    out = make_out(tmp_path / "out", targets=("openvino",), budgets=[{"platform": "pc", "p95_ms": 0.000001}])
    done = lab(out, tmp_path / "results", "--sweep", "batch=8", "--keep-p95", "100000", "--min-runs", "120")
    assert done.returncode == 0, done.stdout + done.stderr
    (summary,) = (tmp_path / "results").glob("run-*/summary.json")
    (series,) = json.loads(summary.read_text())["sweep"]
    assert (series["limit_ms"], [p["batch"] for p in series["points"]]) == (100000, [8])
    assert series["word"] in ("PASS", "INCONCLUSIVE")  # a busy machine may leave a doubt


@pytest.mark.parametrize("threads", [("--threads", "2"), ("--sweep", "threads=1,2")])
def test_threads_are_the_cpus(out: Path, tmp_path: Path, threads: tuple[str, str]) -> None:
    done = lab(out, tmp_path, "--device", "CPU,GPU.1,NPU", *threads)
    assert done.returncode == InputError.exit_code
    assert "are of the CPU: on GPU.1, NPU they would change nothing" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("device", "message"), [("TPU", "no device of that name"), (" , ", "names nothing")])
def test_a_device_that_openvino_has_no_name_for(out: Path, tmp_path: Path, device: str, message: str) -> None:
    done = lab(out, tmp_path, "--device", device)
    assert done.returncode == InputError.exit_code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_outputs_are_pytorchs_on_every_call(out: Path, artifact: Artifact) -> None:
    run = measured(PcHarness("CPU"), out, artifact, OUTPUTS_ONLY, evaluate=True)
    assert run.outputs is not None
    found = against_pytorch(read_record(out / "digits_cnn" / "program"), out / "digits_cnn" / "program", run.outputs)
    assert found["max_abs_diff"] < 1e-4
    assert found["changed_decisions"] == 0


@pytest.mark.parametrize("hint", ["latency", "throughput"])
def test_what_is_measured(out: Path, artifact: Artifact, hint: str) -> None:
    settings = Settings(threads=2, warmup_runs=2, warmup_seconds=0.0, min_runs=30, min_seconds=0.2)
    run = measured(PcHarness("CPU"), out, artifact, settings, variant=hint)
    result = run.result
    assert len(result["samples_ns"]) >= 30
    assert result["loop_ns"] >= 200_000_000
    assert result["warmup"]["runs"] == 2
    assert min(result["samples_ns"]) > 0
    requests = int(run.details["requests"] or 0)
    assert requests == (run.details["optimal_requests"] if hint == "throughput" else 1)
    # No more can be under way at a time than there are requests.
    assert sum(result["samples_ns"]) <= requests * result["loop_ns"]
    assert result["memory"]["rss_before_load"] < result["memory"]["rss_after_load"] <= result["memory"]["peak_rss"]
    assert result["threads"]["runtime"] == 2
    if hint == "latency":
        inside = float(run.details["runtime_p50_ms"] or 0)
        assert 0 < inside <= sorted(result["samples_ns"])[len(result["samples_ns"]) // 2] / 1e6


def test_the_loop_ends_where_it_is_told_to(out: Path, artifact: Artifact) -> None:
    few = Settings(warmup_runs=0, warmup_seconds=0.0, min_runs=5, min_seconds=60.0, max_runs=7)
    for hint in ("latency", "throughput"):
        run = measured(PcHarness("CPU"), out, artifact, few, variant=hint)
        assert len(run.result["samples_ns"]) == 7


def test_a_changed_weight_file_is_not_measured(out: Path, tmp_path: Path) -> None:
    own = make_out(tmp_path / "out", targets=("openvino",))
    (one,) = find(own, models=["digits_cnn"], targets=["openvino"], precisions=["fp32"], build_session="build-pc")
    weights = one.file.with_suffix(".bin")
    content = bytearray(weights.read_bytes())
    content[100] ^= 1
    weights.write_bytes(content)
    with pytest.raises(DeviceError, match="changed since the run began"):
        measured(PcHarness("CPU"), own, one)
    with pytest.raises(InputError, match=r"model\.bin.*not the file that was built"):
        find(own, models=["digits_cnn"], targets=["openvino"], precisions=["fp32"], build_session="build-pc")


def test_other_weights_are_another_artifact(artifact: Artifact) -> None:
    from build import manifest

    changed = json.loads(json.dumps(artifact.manifest))
    next(f for f in changed["files"] if f["path"] == "model.bin")["sha256"] = "0" * 64
    assert manifest.identity(changed) != artifact.sha256 == manifest.identity(artifact.manifest)


class WithoutCache(PcHarness):
    """The PC harness on a machine where the model cache does not work."""

    def _run(self, arguments: list[str], timeout: float) -> object:
        if "cache_dir" in json.loads(Path(arguments[0]).read_text())["options"]:
            raise HarnessError("the cache is broken")
        return super()._run(arguments, timeout)


def test_a_cache_that_cannot_be_measured_spoils_no_measurement(
    out: Path, artifact: Artifact, capsys: pytest.CaptureFixture[str]
) -> None:
    run = measured(WithoutCache("CPU"), out, artifact, evaluate=True)
    assert len(run.result["samples_ns"]) >= 20
    assert run.outputs is not None
    assert run.details["cache_problem"] == "not measured: the cache is broken"
    assert "cache_was_used" not in run.details
    assert "the model cache was not measured: the cache is broken" in capsys.readouterr().err


class Misbehaving(PcHarness):
    """The PC harness with a script in place of its process: ``job`` is the job, ``MARK`` the end-of-run marker."""

    def __init__(self, script: str) -> None:
        super().__init__("CPU")
        self._script = script

    def command(self, arguments: list[str]) -> list[str | Path]:
        head = f"import json, os, sys, time; job = json.load(open(sys.argv[1])); MARK = '{harness_result.END_MARKER}'\n"
        return [sys.executable, "-c", head + self._script, *arguments]


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ("os.kill(os.getpid(), 11)", HarnessError, "without its end-of-run marker"),
        ("sys.exit('no such thing')", HarnessError, "no such thing"),
        ("time.sleep(60)", HarnessError, "still running after 2 s"),
        ("print(MARK, 'x' * 32)", HarnessError, "without its end-of-run marker"),
        ("print(MARK, job['id'])", RejectedResultError, "cannot be read"),
        ("open(job['result_file'], 'w').write('{'); print(MARK, job['id'])", RejectedResultError, "not whole JSON"),
        ("print('x' * 3_000_000)", RejectedResultError, "garbage"),
        (
            "open(job['result_file'], 'w').write('[' * 20_000_000); print(MARK, job['id'])",
            RejectedResultError,
            "more than",
        ),
    ],
    ids=["signal", "exit", "hang", "other-marker", "no-result", "cut", "garbage", "huge"],
)
def test_a_harness_that_misbehaves(
    out: Path, artifact: Artifact, script: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        measured(Misbehaving(script), out, artifact, timeout=2.0 if "sleep" in script else 60.0)


def job_for(out: Path, artifact: Artifact, folder: Path, **changes: Any) -> dict[str, Any]:
    data = data_of(out, artifact)
    paths = {"artifact": str(artifact.file), "tensors": str(data.file)}
    paths |= {"result": str(folder / "result.json"), "outputs": str(folder / "outputs.safetensors")}
    job = make_job(artifact, data, OUTPUTS_ONLY, job_id="1" * 32, paths=paths, evaluate=True)
    job |= {"signature": signature_to_json(artifact.record.signature)}
    return {**job, "options": {"device": "CPU", "hint": "latency", "harness": "test"}, **changes}


def run_job(folder: Path, job: Mapping[str, Any] | str) -> subprocess.CompletedProcess[str]:
    path = folder / "job.json"
    path.write_text(job if isinstance(job, str) else json.dumps(job))
    command = [sys.executable, "-m", "device_bench.harness.python", "openvino", str(path)]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)


def test_a_job_keeps_to_its_schema(out: Path, artifact: Artifact, tmp_path: Path) -> None:
    import jsonschema

    schema = json.loads((Path(harness_result.__file__).parent / "job.schema.json").read_text())
    jsonschema.validate(json.loads(json.dumps(job_for(out, artifact, tmp_path))), schema)


def damaged(artifact: Artifact, folder: Path, how: str) -> Path:
    """A copy of the IR, damaged."""
    text = artifact.file.read_text()
    changes = {
        "cut": text[: len(text) // 2],
        "renamed": text.replace("logits", "logit"),
        "bounds": text.replace("1..64,1,8,8", "1..99,1,8,8"),
    }
    assert changes[how] != text
    (folder / "model.xml").write_text(changes[how])
    if how != "cut":
        (folder / "model.bin").write_bytes(artifact.file.with_suffix(".bin").read_bytes())
    return folder / "model.xml"


@pytest.mark.parametrize(
    ("change", "stage", "message"),
    [
        ("cut", "load", "refuses model.xml"),
        ("renamed", "load", "another signature"),
        ("bounds", "load", "declares 'image' with shape"),
        ("missing", "load", "refuses nothing.xml"),
        ("device", "load", "on GPU.9"),
        ("tensors", "tensors", "cannot be read"),
        ("affinity", "job", "cannot pin to the wanted CPUs"),
    ],
)
def test_a_failure_is_a_complete_result_that_says_where(
    out: Path, artifact: Artifact, tmp_path: Path, change: str, stage: str, message: str
) -> None:
    job = job_for(out, artifact, tmp_path)
    if change in ("cut", "renamed", "bounds"):
        job["artifact"] = str(damaged(artifact, tmp_path, change))
    elif change == "missing":
        job["artifact"] = str(tmp_path / "nothing.xml")
    elif change == "device":
        job["options"]["device"] = "GPU.9"
    elif change == "affinity":
        job["settings"]["affinity"] = [4000]
    else:
        (tmp_path / "tensors").write_bytes(b"not tensors")
        job["tensors"] = str(tmp_path / "tensors")
    done = run_job(tmp_path, job)
    assert done.returncode == 3, done.stderr
    assert harness_result.ended(done.stdout, job["id"])
    error = harness_result.parse((tmp_path / "result.json").read_bytes(), job)["error"]
    assert (error["stage"], message in error["message"]) == (stage, True), error


@pytest.mark.parametrize("text", ["{", "[]", '{"schema_version": 2}', '{"schema_version": 1, "id": "x"}'])
def test_a_job_that_cannot_be_used(tmp_path: Path, text: str) -> None:
    done = run_job(tmp_path, text)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: job: ")


def test_results_that_cannot_be_written_are_no_results(out: Path, artifact: Artifact, tmp_path: Path) -> None:
    done = run_job(tmp_path, job_for(out, artifact, tmp_path, result_file="/proc/nothing/result.json"))
    assert done.returncode == 4
    assert harness_result.END_MARKER not in done.stdout
    job = job_for(out, artifact, tmp_path, outputs_file="/proc/nothing/outputs")
    assert run_job(tmp_path, job).returncode == 4
    assert harness_result.parse((tmp_path / "result.json").read_bytes(), job)["error"]["stage"] == "write"


def test_the_variants_are_openvinos_hints() -> None:
    assert cli.parse("bench-pc", []).points[0].variant == "latency"
    assert [p.variant for p in cli.parse("bench-pc", ["--variants", "all"]).points] == ["latency", "throughput"]
    with pytest.raises(InputError, match="no variant is named 'fast'"):
        cli.parse("bench-pc", ["--variants", "fast"])
