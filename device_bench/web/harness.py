"""One measurement in a page: make the job, let a browser take it, check what it sends back."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

from build.errors import HarnessError, InputError, RejectedResultError
from device_bench import harness_result
from device_bench.artifacts import Artifact
from device_bench.contract import HarnessRun, Task
from device_bench.devices.base import Place
from device_bench.job import Data, Settings, job_text, make_job
from device_bench.session import output_bytes
from device_bench.web import page
from device_bench.web.pictures import picture_json
from device_bench.web.runtime import Runtime, runtime
from device_bench.web.server import Server
from device_bench.web.ticket import Limits, Ticket
from targets.contract import DynamicDim, Signature

if TYPE_CHECKING:
    from targets.contract import Array

#: seconds beyond the timed loop's bound that a page may say nothing: for loading, warm-up, one call.
_MARGIN = 240.0
#: browsers slow a hidden page down: whatever it says that it measured, it is not taken.
_HIDDEN = "the page was hidden during the measurement: bring it to the front (and keep the phone's screen on)"


class Browser(Place, Protocol):
    """A place where pages are opened."""

    server: Server
    #: whether a person, or a phone, takes the jobs one after the other.
    follows: bool

    def show(self, ticket: Ticket, limits: Limits) -> None:
        """Have the page opened and wait until it has answered.

        Raises:
            HarnessError: the page crashed, hung, was closed or said why it gave up.
            DeviceLostError: nobody is there to open it any more.
        """
        ...


class WebHarness:
    """See :class:`device_bench.contract.Harness`."""

    arch = "wasm"

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.version = page.version()

    def measure(self, task: Task) -> HarnessRun:
        """See :class:`device_bench.contract.Harness`."""
        artifact, data, settings = task.artifact, task.data, task.settings
        engine = runtime(artifact.target, task.variant, settings.threads)
        job = web_job(
            artifact, data, settings, engine, task.variant, evaluate=task.evaluate, follow=self._browser.follows
        )
        most = max(output_bytes(artifact, c.sizes) for c in data.calls)
        uploads = {"result": harness_result.MAX_BYTES, "outputs": harness_result.max_output_bytes(job, most)}
        with TemporaryDirectory(prefix="edgeport-web-") as name:
            ticket = Ticket(files=job_files(artifact, data, engine, job), uploads=uploads, folder=Path(name))
            server = self._browser.server
            server.offer(ticket, queue=self._browser.follows)
            try:
                self._browser.show(ticket, Limits(silence=settings.max_seconds + _MARGIN, whole=task.timeout))
            finally:
                server.withdraw(ticket)
            return _answer(job, ticket, evaluate=task.evaluate)


def web_job(
    artifact: Artifact,
    data: Data,
    settings: Settings,
    engine: Runtime,
    provider: str,
    *,
    evaluate: bool,
    follow: bool = False,
) -> dict[str, Any]:
    """The job as for any harness, and in ``web`` what a page needs beyond it."""
    record = artifact.record
    main = artifact.file.parent
    paths = {
        "artifact": f"artifact/{artifact.file.name}",
        "tensors": "tensors.safetensors",
        "result": "result",
        "outputs": "outputs",
    }
    job = make_job(artifact, data, settings, job_id=uuid.uuid4().hex, paths=paths, evaluate=evaluate)
    pictures = _pictures(artifact)
    sizes = {c.id: c.sizes for c in data.calls} | {job["timed"]["id"]: data.timed_sizes}
    if pictures["picture"] is not None:
        sizes["picture"] = pictures["picture"]["sizes"]
    threads = f", {settings.threads} threads" if provider == "wasm" and settings.threads != 1 else ""
    job["web"] = {
        "engine": artifact.target.replace("ort_web", "ort"),
        "provider": provider,
        "runtime": engine.to_json(),
        "version": page.version(),
        "external": [[f, f"artifact/{f}"] for f in _beside(artifact, main)],
        "output_shapes": {call: _output_shapes(record.signature, s) for call, s in sizes.items()},
        "timed_batch": data.timed_batch,
        "model": artifact.model,
        "sha256": {f["path"]: f["sha256"] for f in artifact.manifest["files"]},
        "file": artifact.file.name,
        "words": f"{artifact.target}, {artifact.precision}, {engine.name} {engine.version} on {provider}{threads}",
        **pictures,
        "follow": follow,
    }
    return job


def _pictures(artifact: Artifact) -> dict[str, Any]:
    """See :func:`picture_json`; with the entry point for one picture, which may be another than the timed call's."""
    found = picture_json(artifact.record)
    if found["picture"] is None:
        return found
    try:
        entry = artifact.entry(found["picture"]["sizes"])
    except InputError:
        return {"picture": None, "no_picture": "No pictures here: this artifact takes none alone."}
    return {**found, "picture": {**found["picture"], "entry": entry}}


def _beside(artifact: Artifact, folder: Path) -> list[str]:
    """Weights that lie beside the model's file."""
    names = [f["path"] for f in artifact.manifest["files"] if f["path"] != artifact.file.name]
    return [n for n in names if (folder / n).is_file()]


def _output_shapes(signature: Signature, sizes: Mapping[str, int]) -> dict[str, list[int] | None]:
    """Output -> its sizes in a call; None where they depend on values."""
    found: dict[str, list[int] | None] = {}
    for spec in signature.outputs:
        shape: list[int] | None = []
        for dim in spec.shape:
            if isinstance(dim, DynamicDim) and dim.symbol in sizes:
                dim = dim.scale * sizes[dim.symbol] + dim.offset
            shape = [*shape, dim] if isinstance(dim, int) and shape is not None else None
        found[spec.name] = shape
    return found


def job_files(artifact: Artifact, data: Data, engine: Runtime, job: Mapping[str, Any]) -> dict[str, Path | bytes]:
    """Everything that the job's page may ask for: path -> file or content."""
    folder = artifact.file.parent
    external = {file: folder / path for path, file in job["web"]["external"]}
    return {
        **page.bench(artifact.target),
        **engine.files,
        **external,
        job["artifact"]: artifact.file,
        job["tensors"]: data.file,
        "job.json": job_text(job).encode(),
    }


def _answer(job: Mapping[str, Any], ticket: Ticket, *, evaluate: bool) -> HarnessRun:
    result = harness_result.parse((ticket.folder / "result").read_bytes(), job)
    details = result.get("details", {})
    problem = result["error"]
    if (problem is None and details.get("hidden")) or (problem is not None and problem["message"] == _HIDDEN):
        raise HarnessError(_HIDDEN)
    if problem is not None:
        raise HarnessError(f"the engine failed: {problem['stage']}: {problem['message'][:300]}")
    outputs: Mapping[str, Mapping[str, Array]] | None = None
    if evaluate:
        if "outputs" not in ticket.received:
            raise RejectedResultError("the page sent no outputs")
        outputs = harness_result.read_outputs(ticket.folder / "outputs", job)
    software = f"the GPU is emulated in software ({details.get('adapter')})" if details.get("software_gpu") else None
    return HarnessRun(result=result, outputs=outputs, details=details, emulated=software)
