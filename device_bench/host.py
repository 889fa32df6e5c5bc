"""This host's own outputs for an artifact, from the same harness and the same bytes: what devices are compared with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from build.cache import key_of, sha256_file, staging
from build.log import say
from device_bench.accuracy import Outputs, as_program
from device_bench.artifacts import Artifact
from device_bench.contract import HarnessRun
from device_bench.devices.local import local_device
from device_bench.harness import build as harness
from device_bench.job import OUTPUTS_ONLY, Data
from device_bench.session import run_harness


def host_outputs(out: Path, artifact: Artifact, data: Data) -> Outputs:
    """The outputs of every call in the native harness.

    Raises:
        DeviceError: the artifact does not run here either.
    """
    bundle = harness.ensure(harness.host_arch())
    device = local_device(out / "bench" / "local")
    run = partial(run_harness, device, bundle, artifact, data, OUTPUTS_ONLY, evaluate=True)
    return computed_once(out, artifact, data, bundle.version, run)


def computed_once(
    out: Path, artifact: Artifact, data: Data, version: str, measure: Callable[[], HarnessRun]
) -> Outputs:
    """The outputs of every call, computed once for an artifact, its data and a harness."""
    from safetensors.numpy import load_file, save_file

    key = key_of(artifact=artifact.sha256, data=sha256_file(data.file), harness=version)
    file = out / "bench" / "host" / f"{artifact.model}-{artifact.target}-{artifact.precision}-{key[:16]}.safetensors"
    if not file.is_file():
        say(f"{artifact.label}: computing this host's outputs")
        run = measure()
        assert run.outputs is not None
        outputs = as_program(artifact.record, run.outputs)
        flat = {f"{call}/out/{name}": value for call, values in outputs.items() for name, value in values.items()}
        file.parent.mkdir(parents=True, exist_ok=True)
        with staging(out) as folder:
            save_file(flat, folder / "outputs")
            (folder / "outputs").replace(file)
    tensors = load_file(file)
    names = [s.name for s in artifact.record.signature.outputs]
    return {c.id: {name: tensors[f"{c.id}/out/{name}"] for name in names} for c in data.calls}
