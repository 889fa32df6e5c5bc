"""An IR on one of OpenVINO's devices, under a performance hint.

Latency: one request, timed around the call. Throughput: as many requests at a time as the device says is best, each
timed by the runtime itself from its start to its completion.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.errors import EdgeportError
from device_bench.harness.python.engine import Failure, Loop, Plan, Scalar
from device_bench.harness.python.measure import CLOCK, sequential
from targets.contract import Signature

if TYPE_CHECKING:
    from targets.contract import Array

HINTS = {"latency": "LATENCY", "throughput": "THROUGHPUT"}
#: what a compiled model is asked about, where its device knows the property.
_ASKED = {
    "hint": "PERFORMANCE_HINT",
    "streams": "NUM_STREAMS",
    "inference_threads": "INFERENCE_NUM_THREADS",
    "optimal_requests": "OPTIMAL_NUMBER_OF_INFER_REQUESTS",
    "inference_precision": "INFERENCE_PRECISION_HINT",
    "loaded_from_cache": "LOADED_FROM_CACHE",
    "execution_devices": "EXECUTION_DEVICES",
    "cpu_pinning": "ENABLE_CPU_PINNING",
}
_QUEUE_CLOCK = "std::chrono in openvino, from a request's start to its completion"


class OpenVinoEngine:
    """See :class:`device_bench.harness.python.engine.Engine`."""

    def __init__(self) -> None:
        import openvino as ov

        self._ov = ov
        self.runtime = "openvino"
        self.version = ov.__version__.split("-")[0]
        self.clock = CLOCK
        self.concurrent = 1
        self.plain = True
        self._latencies: list[int] = []
        self._requests: list[Any] = []
        self._queue: Any = None

    def load(self, artifact: Path, signature: Signature, threads: int, options: Mapping[str, Any]) -> None:
        """See the Protocol. Options: ``device``, ``hint``, and ``cache_dir`` for the model cache."""
        from targets.openvino_ir.runner import OpenVinoRunner

        device, hint = options["device"], HINTS[options["hint"]]
        # float32 arithmetic even where a device prefers less: what is measured is what was verified.
        wanted: dict[str, Any] = {"PERFORMANCE_HINT": hint, "INFERENCE_PRECISION_HINT": "f32"}
        if device == "CPU":
            wanted["INFERENCE_NUM_THREADS"] = threads
        try:
            core = self._ov.Core()
            if options.get("cache_dir"):
                core.set_property({"CACHE_DIR": options["cache_dir"]})
            model = core.read_model(artifact)
            compiled = core.compile_model(model, device, wanted)
            if OpenVinoRunner(model, compiled, self.runtime).signature() != signature:
                raise Failure("load", f"{artifact.name} declares another signature than the program's")
            self._prepare_requests(compiled, options["hint"])
        except EdgeportError as error:
            raise Failure("load", error.message) from error
        except RuntimeError as error:
            raise Failure("load", f"OpenVINO refuses {artifact.name} on {device}: {_first_line(error)}") from error
        self._compiled, self._signature, self._device = compiled, signature, device
        self._full_name = str(core.get_property(device, "FULL_DEVICE_NAME"))

    def _prepare_requests(self, compiled: Any, hint: str) -> None:
        if hint == "throughput":
            self._queue = self._ov.AsyncInferQueue(compiled, 0)  # 0: the optimal number
            self._requests = list(self._queue)
            self.clock = _QUEUE_CLOCK
            self.plain = False
        else:
            self._requests = [compiled.create_infer_request()]
        self.concurrent = len(self._requests)

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """See the Protocol."""
        import numpy as np

        for request in self._requests:
            for i, spec in enumerate(self._signature.inputs):
                # Each request reads a copy of its own, as an app's requests would.
                request.set_input_tensor(i, self._ov.Tensor(np.array(inputs[spec.name], order="C")))

    def run(self) -> None:
        """See the Protocol."""
        try:
            if self._queue is None:
                self._requests[0].infer()
                return
            for _ in self._requests:
                self._queue.start_async()
            self._queue.wait_all()
        except RuntimeError as error:
            raise Failure("run", f"OpenVINO failed: {_first_line(error)}") from error

    def loop(self, plan: Plan) -> Loop:
        """See the Protocol."""
        try:
            return self._overlapping(plan) if self._queue is not None else self._one_by_one(plan)
        except RuntimeError as error:
            raise Failure("run", f"OpenVINO failed: {_first_line(error)}") from error

    def _one_by_one(self, plan: Plan) -> Loop:
        """Timed around the call; what the runtime itself says of each call is kept beside it."""
        request = self._requests[0]
        latencies = array("d", bytes(8 * len(plan.samples)))

        def note(run: int) -> None:
            if run == len(latencies):
                latencies.frombytes(bytes(8 * run))
            latencies[run] = request.latency

        done = sequential(partial(request.infer, share_outputs=True), plan, note)
        self._latencies = [int(ms * 1e6) for ms in latencies[: done.runs]]
        return done

    def _overlapping(self, plan: Plan) -> Loop:
        """Keep every request busy; a sample is taken when its request is idle again."""
        queue, samples, room, max_runs = self._queue, plan.samples, len(plan.samples), plan.max_runs
        clock, started, runs = time.perf_counter_ns, set[int](), 0
        begin = now = clock()
        while runs + len(started) < max_runs:
            elapsed = now - begin
            if elapsed >= plan.max_ns or (runs >= plan.min_runs and elapsed >= plan.min_ns):
                break
            if runs + len(started) >= room:
                room = plan.grow()
            idle = queue.get_idle_request_id()
            if idle in started:
                samples[runs] = int(queue[idle].latency * 1e6)
                runs += 1
            else:
                started.add(idle)
            queue.start_async()
            now = clock()
        queue.wait_all()
        end = clock()
        for idle in started:
            samples[runs] = int(queue[idle].latency * 1e6)
            runs += 1
        return Loop(runs=runs, ns=end - begin)

    def spoil(self, pattern: int) -> None:
        """See the Protocol."""
        import numpy as np

        for request in self._requests:
            for i in range(len(self._signature.outputs)):
                data = request.get_output_tensor(i).data
                if data.size:
                    data.reshape(-1).view(np.uint8)[:] = pattern

    def outputs(self) -> list[Mapping[str, Array]]:
        """See the Protocol."""
        return [
            {spec.name: request.get_output_tensor(i).data.copy() for i, spec in enumerate(self._signature.outputs)}
            for request in self._requests
        ]

    def threads(self) -> int | None:
        """See the Protocol."""
        found = self._ask("INFERENCE_NUM_THREADS")
        return found if isinstance(found, int) else None

    def details(self) -> dict[str, Scalar]:
        """See the Protocol."""
        told = {name: self._ask(prop) for name, prop in _ASKED.items()}
        inside = sorted(self._latencies)
        return {
            "device": self._device,
            "device_name": self._full_name,
            "requests": self.concurrent,
            # Nearest rank, as the lab's own p50: what Python's part of the call is not in.
            "runtime_p50_ms": inside[(len(inside) - 1) // 2] / 1e6 if inside else None,
            **told,
        }

    def _ask(self, name: str) -> Scalar:
        """A property of the compiled model; None where its device has none of that name."""
        try:
            value = self._compiled.get_property(name)
        except RuntimeError:
            return None
        if isinstance(value, (list, tuple)):
            return ",".join(map(str, value))
        if isinstance(value, self._ov.Type):
            return str(value.get_type_name())
        return value if isinstance(value, (bool, int, float, str)) else getattr(value, "name", str(value))


def devices() -> dict[str, str]:
    """The devices that OpenVINO finds here, and their names."""
    import openvino as ov

    core = ov.Core()
    return {d: str(core.get_property(d, "FULL_DEVICE_NAME")) for d in core.available_devices}


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:250]
