"""The native harness on this machine: what it measures, what it refuses, how it fails. Engines: ExecuTorch, LiteRT."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from build.errors import HarnessError
from build.record import ProgramRecord, read_record
from device_bench import harness_result
from device_bench.accuracy import against_host, against_pytorch
from device_bench.artifacts import Artifact, find
from device_bench.contract import HarnessRun
from device_bench.devices.local import local_device
from device_bench.harness import build as harness
from device_bench.job import OUTPUTS_ONLY, Settings, make_data, make_job
from device_bench.session import run_harness
from tests.conftest import require_tools
from tests.device.built import make_out

ENGINES = ("executorch", "litert")
QUICK = Settings(warmup_runs=2, warmup_seconds=0.0, min_runs=20, min_seconds=0.0)


@pytest.fixture(scope="module")
def bundle() -> harness.Bundle:
    require_tools("g++", "/usr/include/nlohmann/json.hpp")
    return harness.ensure(harness.host_arch())


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_out(tmp_path_factory.mktemp("harness") / "out")


@pytest.fixture(scope="module")
def record(out: Path) -> ProgramRecord:
    return read_record(out / "digits_cnn" / "program")


def artifact(out: Path, target: str) -> Artifact:
    (found,) = find(out, models=["digits_cnn"], targets=[target], precisions=["fp32"], build_session="build-android")
    return found


def measure(
    out: Path, bundle: harness.Bundle, target: str, settings: Settings, *, evaluate: bool = False
) -> HarnessRun:
    one = artifact(out, target)
    data = make_data(out, one.record, one.program_folder, settings.batch)
    return run_harness(local_device(out / "device"), bundle, one, data, settings, evaluate=evaluate)


@pytest.mark.parametrize("target", ENGINES)
def test_outputs_are_pytorchs_on_every_call(
    out: Path, bundle: harness.Bundle, record: ProgramRecord, target: str
) -> None:
    run = measure(out, bundle, target, OUTPUTS_ONLY, evaluate=True)
    assert run.outputs is not None
    assert len(run.outputs) == len(record.calls) == 24
    found = against_pytorch(record, out / "digits_cnn" / "program", run.outputs)
    assert found["max_abs_diff"] < 2e-5
    assert found["changed_decisions"] == 0
    assert found["metric"]["value"] == found["metric"]["reference"]
    assert against_host(record, "fp32", run.outputs, run.outputs)["identical"]


@pytest.mark.parametrize("target", ENGINES)
def test_what_is_measured(out: Path, bundle: harness.Bundle, target: str) -> None:
    settings = Settings(warmup_runs=2, warmup_seconds=0.0, min_runs=20, min_seconds=0.5)
    result = measure(out, bundle, target, settings).result
    assert len(result["samples_ns"]) >= 20
    assert result["loop_ns"] >= 500_000_000
    assert result["warmup"]["runs"] == 2
    assert min(result["samples_ns"]) > 0
    # The loop's own bookkeeping: what its samples do not account for.
    overhead = (result["loop_ns"] - sum(result["samples_ns"])) / len(result["samples_ns"])
    assert 0 <= overhead < 100_000
    memory = result["memory"]
    assert 0 < memory["rss_before_load"] < memory["rss_after_load"] <= memory["peak_rss"] <= memory["peak_rss_end"]
    assert result["threads"]["busy"] == 1
    assert result["runtime"]["version"].split("+")[0] == bundle.engines[target]["runtime"]
    assert result["load_ns"] > 0
    assert result["first_ns"] > 0


def test_reading_the_clock_costs_less_than_a_microsecond(out: Path, bundle: harness.Bundle) -> None:
    result = measure(out, bundle, "litert", QUICK).result
    # Two readings for each inference; a clock that needs a system call takes some hundred ns.
    assert 2 * result["timer_cost_ns"] < 1000


@pytest.mark.parametrize("target", ENGINES)
def test_a_batch_runs_as_one_inference(out: Path, bundle: harness.Bundle, target: str) -> None:
    one = min(measure(out, bundle, target, QUICK).result["samples_ns"])
    settings = Settings(warmup_runs=2, warmup_seconds=0.0, min_runs=20, min_seconds=0.0, batch=64)
    assert min(measure(out, bundle, target, settings).result["samples_ns"]) > 4 * one


@pytest.mark.parametrize("target", ENGINES)
def test_threads_and_affinity_are_as_asked_for(out: Path, bundle: harness.Bundle, target: str) -> None:
    cpu = min(os.sched_getaffinity(0))
    settings = Settings(threads=2, affinity=(cpu,), warmup_runs=2, warmup_seconds=0.0, min_runs=20, min_seconds=0.0)
    result = measure(out, bundle, target, settings).result
    assert result["settings"]["threads"] == 2
    assert result["threads"]["alive"] >= 2
    if target == "executorch":
        assert result["threads"]["runtime"] == 2
    assert result["settings"]["affinity"] == [cpu]


def test_a_cpu_that_is_not_there(out: Path, bundle: harness.Bundle) -> None:
    settings = Settings(affinity=(1000,), warmup_runs=0, warmup_seconds=0.0, min_runs=1, min_seconds=0.0)
    with pytest.raises(HarnessError, match="cannot pin to the wanted CPUs"):
        measure(out, bundle, "litert", settings)


def run_job(bundle: harness.Bundle, engine: str, folder: Path, job: Mapping[str, Any] | str) -> Any:
    """Run the program itself, as a device would."""
    path = folder / "job.json"
    path.write_text(job if isinstance(job, str) else json.dumps(job))
    return subprocess.run(
        bundle.command(engine, str(path)), cwd=bundle.folder, capture_output=True, text=True, timeout=60, check=False
    )


def job_for(out: Path, folder: Path, target: str, **changes: Any) -> dict[str, Any]:
    one = artifact(out, target)
    data = make_data(out, one.record, one.program_folder, None)
    paths = {
        "artifact": str(one.file),
        "tensors": str(data.file),
        "result": str(folder / "result.json"),
        "outputs": str(folder / "outputs.safetensors"),
    }
    return make_job(one, data, OUTPUTS_ONLY, job_id="1" * 32, paths=paths, evaluate=True) | changes


def test_a_job_keeps_to_its_schema(out: Path, tmp_path: Path) -> None:
    schema = json.loads((Path(harness_result.__file__).parent / "job.schema.json").read_text())
    jsonschema.validate(json.loads(json.dumps(job_for(out, tmp_path, "litert"))), schema)


@pytest.mark.parametrize("target", ENGINES)
def test_a_result_is_whole_and_marked(out: Path, bundle: harness.Bundle, tmp_path: Path, target: str) -> None:
    job = job_for(out, tmp_path, target)
    done = run_job(bundle, target, tmp_path, job)
    assert done.returncode == 0, done.stderr
    assert harness_result.ended(done.stdout, job["id"])
    text = (tmp_path / "result.json").read_text()
    assert text.endswith(f'"end":"{harness_result.END_MARKER}"}}\n')
    assert harness_result.parse(text.encode(), job)["outputs"]["calls"] == 24
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("target", ENGINES)
@pytest.mark.parametrize(
    ("changes", "stage", "message"),
    [
        ({"artifact": "/no/such/file"}, "load", "/no/such/file"),
        ({"tensors": "/no/such/file"}, "tensors", "cannot open"),
        ({"timed": {"id": "t", "entry": "no_such_entry", "tensors": ["timed/in/image"]}}, "load", "no_such_entry"),
        ({"timed": {"id": "t", "entry": ..., "tensors": ["nothing"]}}, "tensors", "hold no 'nothing'"),
    ],
)
def test_a_failure_is_a_complete_result_that_says_where(
    out: Path, bundle: harness.Bundle, tmp_path: Path, target: str, changes: Any, stage: str, message: str
) -> None:
    job = job_for(out, tmp_path, target)
    if "timed" in changes and changes["timed"]["entry"] is ...:
        changes = {"timed": {**changes["timed"], "entry": job["timed"]["entry"]}}
    done = run_job(bundle, target, tmp_path, job | changes)
    assert done.returncode == 3
    assert harness_result.ended(done.stdout, job["id"])
    result = harness_result.parse((tmp_path / "result.json").read_bytes(), job)
    assert result["status"] == "failed"
    assert result["error"]["stage"] == stage
    assert message in result["error"]["message"]


@pytest.mark.parametrize("target", ENGINES)
def test_a_damaged_artifact(out: Path, bundle: harness.Bundle, tmp_path: Path, target: str) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(artifact(out, target).file.read_bytes()[:1000])
    job = job_for(out, tmp_path, target, artifact=str(broken))
    done = run_job(bundle, target, tmp_path, job)
    # ExecuTorch says that it cannot load the file; LiteRT may be ended by a signal. Neither is a measurement.
    assert done.returncode != 0
    if harness_result.ended(done.stdout, job["id"]):
        assert harness_result.parse((tmp_path / "result.json").read_bytes(), job)["error"]["stage"] == "load"
    else:
        assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("{", "the job cannot be read"),
        ("[]", "the job cannot be read"),
        ('{"schema_version": 2}', "another schema version"),
        ('{"schema_version": 1, "id": "x"}', "the job cannot be read"),
    ],
)
def test_a_job_that_cannot_be_used(bundle: harness.Bundle, tmp_path: Path, job: str, message: str) -> None:
    done = run_job(bundle, "litert", tmp_path, job)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_a_tensor_file_that_is_cut_short_or_lies(out: Path, bundle: harness.Bundle, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    whole = tmp_path / "whole"
    save_file({"timed/in/image": np.zeros((1, 1, 8, 8), np.float32)}, whole)
    content = whole.read_bytes()
    length = int.from_bytes(content[:8], "little")
    lying = json.dumps({"timed/in/image": {"dtype": "F32", "shape": [9, 9], "data_offsets": [0, 256]}}).encode()
    for bad in (content[:4], content[:-1], content[: 8 + length // 2], len(lying).to_bytes(8, "little") + lying):
        (tmp_path / "bad").write_bytes(bad)
        job = job_for(out, tmp_path, "litert", tensors=str(tmp_path / "bad"), calls=[])
        done = run_job(bundle, "litert", tmp_path, job)
        assert done.returncode == 3, bad
        error = harness_result.parse((tmp_path / "result.json").read_bytes(), job)["error"]
        assert error["stage"] == "tensors"


@pytest.mark.parametrize("target", ENGINES)
@pytest.mark.parametrize(
    "value",
    [np.zeros((1, 1, 8, 9), np.float32), np.zeros((1, 8, 8), np.float32), np.zeros((1, 1, 8, 8), np.float64)],
    ids=["size", "rank", "dtype"],
)
def test_an_input_that_the_artifact_does_not_take(
    out: Path, bundle: harness.Bundle, tmp_path: Path, target: str, value: Any
) -> None:
    from safetensors.numpy import save_file

    save_file({"timed/in/image": value}, tmp_path / "tensors")
    job = job_for(out, tmp_path, target, tensors=str(tmp_path / "tensors"), calls=[])
    done = run_job(bundle, target, tmp_path, job)
    assert done.returncode == 3, (done.stdout, done.stderr)
    error = harness_result.parse((tmp_path / "result.json").read_bytes(), job)["error"]
    assert error["stage"] == "tensors"
    assert "input 'image'" in error["message"]


def test_results_that_cannot_be_written_are_no_results(out: Path, bundle: harness.Bundle, tmp_path: Path) -> None:
    job = job_for(out, tmp_path, "litert", result_file="/proc/nothing/result.json")
    done = run_job(bundle, "litert", tmp_path, job)
    assert done.returncode == 4
    assert harness_result.END_MARKER not in done.stdout
    job = job_for(out, tmp_path, "litert", outputs_file="/proc/nothing/outputs")
    done = run_job(bundle, "litert", tmp_path, job)
    assert done.returncode == 4
    assert harness_result.parse((tmp_path / "result.json").read_bytes(), job)["error"]["stage"] == "write"


def test_the_bundle_is_cached_by_content_and_stripped(bundle: harness.Bundle) -> None:
    again = harness.ensure(bundle.arch)
    assert again.folder == bundle.folder
    for name in bundle.files:
        sections = subprocess.run(
            ["readelf", "--sections", "--wide", bundle.folder / name], capture_output=True, text=True, check=True
        ).stdout
        assert ".debug_info" not in sections
        assert ".symtab" not in sections, name


def test_the_arm64_bundle_brings_all_that_it_needs() -> None:
    require_tools("aarch64-linux-gnu-g++", "qemu-aarch64-static")
    bundle = harness.ensure("aarch64")
    assert bundle.loader in bundle.files
    for engine in ENGINES:
        files = bundle.engines[engine]["files"]
        assert bundle.loader in files
        for name in files:
            shown = subprocess.run(
                ["readelf", "--dynamic", "--file-header", "--wide", bundle.folder / name],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            assert "AArch64" in shown, name
            needed = [line.split("[")[1].split("]")[0] for line in shown.splitlines() if "(NEEDED)" in line]
            assert set(needed) <= set(files), name
