"""One run of the native harness on one device: push, run, pull, check."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from build.errors import DeviceError, HarnessError, RejectedResultError
from device_bench import harness_result
from device_bench.artifacts import ENGINES, Artifact
from device_bench.contract import HarnessRun
from device_bench.devices.base import Completed, Device
from device_bench.harness.build import Bundle
from device_bench.job import Data, Settings, job_text, make_job
from targets.contract import DynamicDim

if TYPE_CHECKING:
    from targets.contract import Array

#: seconds beyond the timed loop's bound for loading, warm-up and the evaluation set; more on an emulated CPU.
_MARGIN = 240.0
_EMULATED_MARGIN = 1800.0


def run_harness(
    device: Device,
    bundle: Bundle,
    artifact: Artifact,
    data: Data,
    settings: Settings,
    *,
    evaluate: bool,
    timeout: float | None = None,
    emulated: bool = False,
) -> HarnessRun:
    """Measure once.

    Args:
        timeout: seconds for the whole run on the device; None: the timed loop's bound and a margin, a large one on an
            emulated CPU.

    Raises:
        DeviceLostError: the connection broke.
        HarnessError: the harness crashed, hung, or its engine failed.
        RejectedResultError: what came back is not the result of this job.
        DeviceError: the device refused something (disk full).
    """
    engine = ENGINES[artifact.target]
    # A fresh id for every attempt: what an earlier one left behind can never be taken for this one's.
    job_id = uuid.uuid4().hex
    folder = f"harness/{bundle.arch}-{bundle.version}"
    model = f"models/{artifact.model}/{artifact.target}/{artifact.precision}/{artifact.file.name}"
    tensors = f"data/{data.file.name}"
    jobs = f"jobs/{job_id}"
    paths = {
        "artifact": f"../../{model}",
        "tensors": f"../../{tensors}",
        "result": f"../../{jobs}/result.json",
        "outputs": f"../../{jobs}/outputs.safetensors",
    }
    job = make_job(artifact, data, settings, job_id=job_id, paths=paths, evaluate=evaluate)
    with TemporaryDirectory(prefix="edgeport-") as name:
        scratch = Path(name)
        (scratch / "job.json").write_text(job_text(job))
        library = {f"{folder}/{f}": bundle.folder / f for f in bundle.engines[engine]["files"]}
        own = {f"{jobs}/job.json": scratch / "job.json"}
        try:
            pushed = device.push({**library, model: artifact.file, tensors: data.file, **own})
            margin = settings.max_seconds + (_EMULATED_MARGIN if emulated else _MARGIN)
            command = bundle.command(engine, f"../../{jobs}/job.json")
            done = device.run(command, folder=folder, timeout=timeout or margin)
            result = accept(job, done, lambda: _fetch(device, f"{jobs}/result.json", scratch))
            outputs = (
                _outputs(device, job, artifact, data, f"{jobs}/outputs.safetensors", scratch) if evaluate else None
            )
        finally:
            _tidy(device, jobs)
    return HarnessRun(result=result, outputs=outputs, pushed=pushed)


def _tidy(device: Device, jobs: str) -> None:
    # A device that is gone keeps the folder: its id is one that nobody will ask for again.
    with contextlib.suppress(DeviceError):
        device.remove([jobs])


def _fetch(device: Device, remote: str, scratch: Path) -> bytes:
    device.pull(remote, scratch / "result.json", max_bytes=harness_result.MAX_BYTES)
    return (scratch / "result.json").read_bytes()


def accept(job: Mapping[str, Any], done: Completed, fetch: Callable[[], bytes]) -> dict[str, Any]:
    """A harness's result, when it is one of this job and the run went well.

    Args:
        done: how the harness's process ended.
        fetch: gives the result file's bytes.

    Raises:
        HarnessError: the harness crashed, or its engine failed.
        RejectedResultError: what came back is not the result of this job.
    """
    if done.cut:
        raise RejectedResultError("the harness printed more than a harness does: its output is garbage")
    if not harness_result.ended(done.stdout, job["id"]):
        raise HarnessError(f"the harness ended without its end-of-run marker ({_how(done)})")
    result = harness_result.parse(fetch(), job)
    if result["status"] != "ok":
        raise HarnessError(f"the engine failed: {result['error']['stage']}: {result['error']['message'][:300]}")
    if done.code != 0:
        raise RejectedResultError(f"the harness says it measured, but ended with {_how(done)}")
    return result


def _how(done: Completed) -> str:
    # A shell gives 128 + n for a program that signal n ended; adbd may give -n as an unsigned byte.
    how = f"signal {done.code - 128}" if 128 < done.code < 160 else f"exit code {done.code}"
    lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
    return f"{how}: {lines[-1][:200]}" if lines else how


def _outputs(
    device: Device, job: Mapping[str, Any], artifact: Artifact, data: Data, remote: str, scratch: Path
) -> dict[str, dict[str, Array]]:
    most = max(output_bytes(artifact, call.sizes) for call in data.calls)
    local = scratch / "outputs.safetensors"
    device.pull(remote, local, max_bytes=harness_result.max_output_bytes(job, most))
    return harness_result.read_outputs(local, job)


def output_bytes(artifact: Artifact, sizes: Mapping[str, int]) -> int:
    """An upper bound of the bytes of all outputs of a call; a size that depends on the values counts as 4096."""
    import numpy as np

    total = 0
    for spec in artifact.record.signature.outputs:
        count = 1
        for dim in spec.shape:
            if isinstance(dim, DynamicDim):
                count *= dim.scale * sizes[dim.symbol] + dim.offset if dim.symbol in sizes else dim.hi or 4096
            else:
                count *= dim if isinstance(dim, int) else 4096
        total += count * np.dtype(spec.dtype).itemsize
    return total
