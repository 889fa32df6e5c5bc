"""This host's own outputs for an ONNX artifact: native ONNX Runtime, in that target's environment."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from build import envs
from build.cache import ROOT, key_of
from build.errors import DeviceError
from build.protocol import Worker
from device_bench.accuracy import Outputs
from device_bench.artifacts import Artifact
from device_bench.contract import HarnessRun
from device_bench.harness_result import read_outputs
from device_bench.host import computed_once
from device_bench.job import Data
from targets import registry
from targets.checks import signature_to_json


def host_outputs(out: Path, artifact: Artifact, data: Data) -> Outputs:
    """The outputs of every call, computed once for an artifact, its data and a runtime.

    Raises:
        DeviceError: the artifact does not run here.
        MissingToolError: the target's environment cannot be made.
    """
    (target,) = registry.select([artifact.target])
    environment = envs.ensure(target.group)
    version = key_of(**environment.versions(target.packages))
    return computed_once(out, artifact, data, version, lambda: _run(environment.python, artifact, data))


def _others(artifact: Artifact) -> list[str]:
    return [f["path"] for f in artifact.manifest["files"] if f["path"] != artifact.file.name]


def _run(python: Path, artifact: Artifact, data: Data) -> HarnessRun:
    with TemporaryDirectory(prefix="edgeport-") as name:
        file = Path(name) / "outputs"
        job = {
            "label": artifact.label,
            "target": artifact.target,
            "folder": str(artifact.file.parent),
            "files": [artifact.file.name, *_others(artifact)],
            "signature": json.loads(signature_to_json(artifact.record.signature)),
            "data": str(data.file),
            "calls": [c.id for c in data.calls],
            "file": str(file),
        }
        command: list[str | Path] = [python, "-m", "device_bench.web.host_worker"]
        worker = Worker(command, log=Path(name) / "log", env={"PYTHONPATH": str(ROOT)}, name="host-outputs")
        try:
            answer = worker.submit(job, lambda stage: None)
        finally:
            worker.close()
        error = answer.get("error")
        if error is not None:
            raise DeviceError(f"{artifact.label} does not run on this host: {error['message']}")
        wanted = {
            "calls": [{"id": c.id} for c in data.calls],
            "outputs": [s.name for s in artifact.record.signature.outputs],
        }
        return HarnessRun(result=answer["result"], outputs=read_outputs(file, wanted))
