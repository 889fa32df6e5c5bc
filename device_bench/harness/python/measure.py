"""One measurement: load, first inference, warm-up, the timed loop. Nothing of ours allocates or prints in the loop."""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from build.errors import VerificationError
from device_bench.harness.python import system
from device_bench.harness.python.engine import Engine, Failure, Loop, Plan
from device_bench.harness.python.job import Job, Tensors
from targets.checks import check_outputs

if TYPE_CHECKING:
    from targets.contract import Array

CLOCK = "time.perf_counter_ns"
#: how far the same inference may move from run to run, relative to its largest value: threads add in any order.
_REPEATABLE = 1e-3
#: what outputs' bytes are set to before a run. Two, since a model may compute one of them.
_PATTERNS = (0xA5, 0x5A)


def sequential(run: Callable[[], Any], plan: Plan, note: Callable[[int], None] | None = None) -> Loop:
    """The timed loop of an engine that runs one inference at a time.

    Args:
        note: called after each, outside of its sample, with its number.
    """
    clock, samples, room = time.perf_counter_ns, plan.samples, len(plan.samples)
    min_runs, min_ns, max_runs, max_ns = plan.min_runs, plan.min_ns, plan.max_runs, plan.max_ns
    runs = 0
    began = end = clock()
    while runs < max_runs:
        elapsed = end - began
        if elapsed >= max_ns or (runs >= min_runs and elapsed >= min_ns):
            break
        if runs == room:
            room = plan.grow()
        start = clock()
        run()
        end = clock()
        samples[runs] = end - start
        if note is not None:
            note(runs)
        runs += 1
    return Loop(runs=runs, ns=end - began)


def measure(job: Job, engine: Engine, tensors: Tensors) -> dict[str, Any]:
    """The measured part of a result.

    Raises:
        Failure: at which stage, and why.
    """
    settings = job.settings
    inputs, sizes = tensors.of(job.timed)
    rss_before = system.rss_bytes()
    start = time.perf_counter_ns()
    engine.load(job.artifact, job.signature, settings["threads"], job.options)
    load_ns = time.perf_counter_ns() - start
    rss_after = system.rss_bytes()

    engine.prepare(inputs)
    first_ns = _timed(engine)
    first = checked(job, engine, sizes)
    _probe(job, engine, sizes, first[0])
    warm_runs, warm_ns, fastest = _warm_up(engine, settings, first_ns)

    peak = system.peak_rss_bytes()
    min_ns, max_ns = _ns(settings["min_seconds"]), _ns(settings["max_seconds"])
    # Room for four times as many as the fastest run so far suggests.
    expected = 4 * engine.concurrent * min_ns // max(fastest, 1) + 1
    room = min(max(settings["min_runs"], expected), settings["max_runs"])
    plan = Plan(
        samples=array("q", bytes(8 * room)),
        min_runs=settings["min_runs"],
        min_ns=min_ns,
        max_runs=settings["max_runs"],
        max_ns=max_ns,
    )
    before = system.thread_times()
    gc.collect()
    gc.disable()
    try:
        loop = engine.loop(plan)
    finally:
        gc.enable()
    after = system.thread_times()
    busy = system.busy_threads(before, after)
    peak_end = system.peak_rss_bytes()
    checked(job, engine, sizes)
    _probe(job, engine, sizes, first[0])
    return {
        "load_ns": load_ns,
        "first_ns": first_ns,
        "warmup": {"runs": warm_runs, "ns": warm_ns},
        "samples_ns": plan.samples[: loop.runs].tolist(),
        "loop_ns": loop.ns,
        "memory": {
            "rss_before_load": rss_before,
            "rss_after_load": rss_after,
            "peak_rss": peak,
            "peak_rss_end": peak_end,
            "samples_bytes": 8 * len(plan.samples),
        },
        "threads": {
            "alive": len(after),
            # Threads that hand requests out and take results back are busy too: only a plain loop can be told apart.
            "busy": busy if engine.plain else None,
            "runtime": engine.threads(),
        },
        "details": {**engine.details(), "busy_threads_with_dispatch": None if engine.plain else busy},
    }


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def _timed(engine: Engine) -> int:
    start = time.perf_counter_ns()
    engine.run()
    return time.perf_counter_ns() - start


def _warm_up(engine: Engine, settings: Mapping[str, Any], fastest: int) -> tuple[int, int, int]:
    runs = spent = 0
    while runs < settings["warmup_runs"] or spent < _ns(settings["warmup_seconds"]):
        one = _timed(engine)
        fastest = min(fastest, one)
        spent += one
        runs += 1
        if spent > _ns(settings["max_seconds"]):
            break
    return runs, spent, fastest


def checked(job: Job, engine: Engine, sizes: Mapping[str, int]) -> list[Mapping[str, Array]]:
    """The newest outputs, which have the shapes and dtypes that the inputs imply.

    A runtime can swallow its own exception and leave an empty or an earlier result behind.

    Raises:
        Failure: they have not.
    """
    found = engine.outputs()
    for outputs in found:
        try:
            check_outputs(job.signature, dict(sizes), dict(outputs), engine.runtime)
        except VerificationError as error:
            raise Failure("run", error.message) from error
    return found


def fresh_run(job: Job, engine: Engine, sizes: Mapping[str, int]) -> Mapping[str, Array]:
    """One inference whose outputs are known to be its own: their buffers are spoilt before it.

    Raises:
        Failure: a buffer was not written.
    """
    for pattern in _PATTERNS:
        engine.spoil(pattern)
        engine.run()
        found = checked(job, engine, sizes)
        stale = [name for outputs in found for name, value in outputs.items() if _is_filled(value, pattern)]
        if not stale:
            return found[0]
    raise Failure("run", f"{engine.runtime} returned without an error, and did not write output '{stale[0]}'")


def _is_filled(value: Array, pattern: int) -> bool:
    import numpy as np

    # Of contiguous memory: outputs are copies.
    return value.size > 0 and bool((np.frombuffer(value.tobytes(), np.uint8) == pattern).all())


def _probe(job: Job, engine: Engine, sizes: Mapping[str, int], first: Mapping[str, Array]) -> None:
    """Run once more: the same inputs must give the first run's outputs again.

    Raises:
        Failure: they do not.
    """
    import numpy as np

    for name, again in fresh_run(job, engine, sizes).items():
        want = first[name]
        if want.dtype.kind == "f":
            top = float(np.abs(want[np.isfinite(want)]).max(initial=0.0))
            same = np.allclose(again, want, rtol=0.0, atol=_REPEATABLE * max(top, 1e-30), equal_nan=True)
        else:
            same = np.array_equal(again, want)
        if not same:
            raise Failure("run", f"{engine.runtime} gives another '{name}' for the same inputs")


def evaluate(job: Job, engine: Engine, tensors: Tensors) -> dict[str, int | str]:
    """Run the evaluation calls, and write their outputs.

    Raises:
        Failure: a call failed, or the file cannot be written.
    """
    from safetensors.numpy import save_file

    outputs: dict[str, Array] = {}
    for call in job.calls:
        inputs, sizes = tensors.of(call)
        engine.prepare(inputs)
        try:
            found = fresh_run(job, engine, sizes)
        except Failure as failure:
            raise Failure(failure.stage, f"call '{call}': {failure}") from failure
        outputs |= {f"{call}/out/{name}": value for name, value in found.items()}
    part = job.outputs_file.with_suffix(".part")
    try:
        save_file(outputs, part)
        part.replace(job.outputs_file)
    except Exception as error:  # safetensors wraps a full disk in an exception of its own
        raise Failure("write", f"cannot write the outputs: {error}") from error
    return {"file": str(job.outputs_file), "bytes": job.outputs_file.stat().st_size, "calls": len(job.calls)}
