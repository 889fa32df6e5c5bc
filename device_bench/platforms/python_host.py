"""What the platforms have in common whose runtime has a Python package: this machine, and a process per measurement."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from build import envs, manifest, shell
from build.cache import ROOT, code_hash
from build.errors import DeviceError, HarnessError, RejectedResultError
from build.log import say
from device_bench import harness_result
from device_bench.accuracy import Outputs
from device_bench.artifacts import Artifact
from device_bench.contract import HarnessRun, Scalar, Task
from device_bench.devices.base import Conditions, Facts, safe_name
from device_bench.devices.local import completed, local_device
from device_bench.harness.build import host_arch
from device_bench.host import computed_once
from device_bench.job import OUTPUTS_ONLY, Data, job_text, make_job
from device_bench.session import accept
from targets.checks import signature_to_json

#: seconds beyond the timed loop's bound for imports, loading, warm-up and the evaluation set.
_MARGIN = 240.0
_MODULE = "device_bench.harness.python"
#: places on one machine share it: one measurement at a time.
_MACHINE = threading.Lock()


class HostPlace:
    """A device of this machine (its CPU, its GPU, …) as a :class:`device_bench.devices.base.Place`.

    Args:
        kind: of place: ``pc``, ``mac``.
        missing: why it cannot be measured on; None: it is there.
        why_emulated: why times mean nothing here; None: they do.
    """

    def __init__(
        self,
        out: Path,
        kind: str,
        device: str,
        *,
        missing: DeviceError | None = None,
        why_emulated: str | None = None,
    ) -> None:
        self._machine = local_device(out / "bench" / "local")
        self._kind = kind
        self.device = device
        self._missing = missing
        self._why_emulated = why_emulated
        self.name = safe_name("-".join(w for w in (kind, self._machine.unknown().serial, device.lower()) if w))

    def facts(self) -> Facts:
        """See the Protocol."""
        if self._missing is not None:
            raise self._missing
        found = replace(self._machine.facts(), kind=self._kind)
        if self._why_emulated is None:
            return found
        return replace(found, emulated=True, why_emulated=self._why_emulated)

    def unknown(self) -> Facts:
        """See the Protocol."""
        return replace(self._machine.unknown(), kind=self._kind)

    def conditions(self) -> Conditions:
        """See the Protocol."""
        return self._machine.conditions()

    def wait(self, timeout: float) -> bool:
        """We are always here."""
        return True

    def close(self) -> None:
        """Nothing to let go of."""


class PythonHarness:
    """A harness process in the environment of a target.

    Args:
        engine: of ``device_bench.harness.python``.
        group: whose environment it runs in.
        options: variant -> options for the engine.
    """

    def __init__(self, engine: str, group: str, options: Callable[[str], Mapping[str, Scalar]]) -> None:
        self._engine = engine
        self._environment = envs.ensure(group)
        self._options = options
        self.version = code_hash(["device_bench/harness/python"])[:12]
        self.arch = host_arch()

    def measure(self, task: Task, more: Mapping[str, Scalar] | None = None) -> HarnessRun:
        """See :class:`device_bench.contract.Harness`. ``more``: further options for the engine."""
        artifact, data = task.artifact, task.data
        folder = artifact.file.parent
        if not manifest.intact(folder, artifact.manifest):
            raise DeviceError(f"{artifact.label}: its files changed since the run began", remedy="Build again.")
        job_id = uuid4().hex
        with TemporaryDirectory(prefix="edgeport-") as name:
            scratch = Path(name)
            paths = {
                "artifact": str(artifact.file),
                "tensors": str(data.file),
                "result": str(scratch / "result.json"),
                "outputs": str(scratch / "outputs.safetensors"),
            }
            job = make_job(artifact, data, task.settings, job_id=job_id, paths=paths, evaluate=task.evaluate)
            job["signature"] = signature_to_json(artifact.record.signature)
            job["options"] = {**self._options(task.variant), **(more or {}), "harness": self.version}
            (scratch / "job.json").write_text(job_text(job))
            with _MACHINE:
                done = self._run([str(scratch / "job.json")], task.timeout or task.settings.max_seconds + _MARGIN)
            result = accept(job, completed(done), lambda: _read(scratch / "result.json"))
            outputs = harness_result.read_outputs(scratch / "outputs.safetensors", job) if task.evaluate else None
        details = result.get("details", {})
        if details.get("fake") and not task.emulated:
            raise RejectedResultError(f"{result['runtime']['name']} is a stand-in: its times are no measurement")
        return HarnessRun(result=result, outputs=outputs, details=details)

    def ask(self, what: str) -> Any:
        """What the engine answers to a question (``devices``), from JSON.

        Raises:
            HarnessError: it does not answer.
        """
        done = completed(self._run([what], _MARGIN))
        lines = done.stdout.strip().splitlines()
        if done.code != 0 or not lines:
            words = done.stderr.strip().splitlines() or ["it printed nothing"]
            raise HarnessError(f"the {self._engine} harness does not answer '{what}': {words[-1][:200]}")
        return json.loads(lines[-1])

    def command(self, arguments: list[str]) -> list[str | Path]:
        """The command line of the harness process."""
        return [self._environment.python, "-m", _MODULE, self._engine, *arguments]

    def _run(self, arguments: list[str], timeout: float) -> object:
        try:
            return shell.transfer(self.command(arguments), env={"PYTHONPATH": str(ROOT)}, timeout=timeout)
        except TimeoutError as error:
            raise HarnessError(f"the {self._engine} harness was still running after {timeout:g} s") from error

    def reference(self, out: Path, artifact: Artifact, data: Data, variant: str) -> Outputs | None:
        """This host's outputs for an artifact, computed once; None where it does not run: each measurement says why."""
        task = Task(artifact=artifact, data=data, settings=OUTPUTS_ONLY, variant=variant, evaluate=True)
        try:
            return computed_once(out, artifact, data, self.version, partial(self.measure, task))
        except DeviceError as error:
            say(f"{artifact.label}: no outputs of this host to compare with: {error}")
            return None


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > harness_result.MAX_BYTES:
            raise RejectedResultError(f"the result has more than {harness_result.MAX_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise RejectedResultError(f"the result cannot be read: {error.strerror or error}") from error
