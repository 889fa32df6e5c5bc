"""Our harness against OpenVINO's own ``benchmark_app``: same file, hint, threads, shape and CPU, in turns.

``benchmark_app`` gives the median of the runtime's own timestamps, rounded to 10 µs. The harness times around the call
from Python (latency), and keeps the runtime's timestamps beside it: both ratios are shown.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from build import envs, shell
from build.log import say
from device_bench.artifacts import Artifact
from device_bench.contract import Task
from device_bench.job import Data, Settings, make_data
from device_bench.platforms.pc import PcHarness
from device_bench.statistics import summarise
from targets.contract import DynamicDim

AIM = (0.95, 1.05)
_API = {"latency": "sync", "throughput": "async"}


@dataclass(frozen=True, kw_only=True)
class PcComparison:
    """p50 in ms of each round, and ratios of their medians.

    Attributes:
        runtime_ratio: of the runtime's own timestamps in our harness to those in benchmark_app.
        quiet_ratio: of the smallest p50 of each: what remains when other load is left out.
        least_ratio: of the fastest single inference of each.
        ours_per_second: and theirs: medians of the rounds.
    """

    model: str
    hint: str
    threads: int
    batch: int
    ours_ms: tuple[float, ...]
    theirs_ms: tuple[float, ...]
    ratio: float
    runtime_ratio: float
    quiet_ratio: float
    least_ratio: float
    ours_per_second: float
    theirs_per_second: float

    def text(self) -> str:
        """One line."""
        word = "within" if AIM[0] <= self.ratio <= AIM[1] else "outside"
        return (
            f"{self.model} openvino {self.hint}, {self.threads} threads, batch {self.batch}: ours "
            f"{statistics.median(self.ours_ms):.4f} ms, benchmark_app {statistics.median(self.theirs_ms):.4f} ms: "
            f"ratio {self.ratio:.3f}, {word} {AIM[0]}..{AIM[1]}; of the quietest rounds {self.quiet_ratio:.3f}, of "
            f"the fastest inferences {self.least_ratio:.3f}; by the runtime's own clock {self.runtime_ratio:.3f}; "
            f"per second {self.ours_per_second:.1f} and {self.theirs_per_second:.1f}"
        )


def app(
    artifact: Artifact, shapes: str, *, hint: str, threads: int, runs: int, cpus: str
) -> tuple[float, float, float]:
    """Median and least latency in ms, and inferences per second, by ``benchmark_app``."""
    program = envs.ensure("openvino").python.parent / "benchmark_app"
    with tempfile.TemporaryDirectory() as folder:
        # Its own -nthreads cannot be combined with a hint; a configuration can.
        config = {"CPU": {"INFERENCE_NUM_THREADS": str(threads), "INFERENCE_PRECISION_HINT": "f32"}}
        (Path(folder) / "config.json").write_text(json.dumps(config))
        command = ["taskset", "-c", cpus, str(program), "-m", str(artifact.file), "-d", "CPU", "-hint", hint]
        command += ["-api", _API[hint], "-load_config", f"{folder}/config.json", "-niter", str(runs)]
        command += ["-data_shape", shapes, "-json_stats", "-report_type", "no_counters", "-report_folder", folder]
        shell.run(command)
        found = json.loads((Path(folder) / "benchmark_report.json").read_text())["execution_results"]
    return float(found["latency (ms)"]), float(found["min latency"]), float(found["throughput"])


def _shapes(artifact: Artifact, data: Data) -> str:
    """``image[1,3,224,224]``: the timed call's shapes, as benchmark_app reads them."""
    found = []
    for spec in artifact.record.signature.inputs:
        sizes = [
            d.scale * data.timed_sizes[d.symbol] + d.offset if isinstance(d, DynamicDim) else d for d in spec.shape
        ]
        found.append(f"{spec.name}[{','.join(map(str, sizes))}]")
    return ",".join(found)


def compare(
    artifact: Artifact, out: Path, *, hint: str, threads: int, batch: int, rounds: int, runs: int, cpus: Sequence[int]
) -> PcComparison:
    """Take turns, ``rounds`` times."""
    data = make_data(out, artifact.record, artifact.program_folder, batch)
    settings = Settings(
        threads=threads, affinity=tuple(cpus), min_runs=runs, min_seconds=0.0, max_seconds=600.0, batch=batch
    )
    harness, shapes = PcHarness("CPU"), _shapes(artifact, data)
    ours: list[float] = []
    inside: list[float] = []
    theirs: list[float] = []
    rates: list[tuple[float, float]] = []
    least: list[tuple[float, float]] = []
    for number in range(rounds):
        say(f"{artifact.label}, {hint}: round {number + 1} of {rounds}")
        our_rate = their_rate = our_least = their_least = 0.0
        for turn in ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours"):
            if turn == "ours":
                run = harness.measure(Task(artifact=artifact, data=data, settings=settings, variant=hint))
                samples = run.result["samples_ns"]
                ours.append(summarise(samples).p50_ms)
                our_least = min(samples) / 1e6
                own = run.details["runtime_p50_ms"]
                inside.append(float(own) if own is not None else ours[-1])
                our_rate = len(samples) * batch * 1e9 / run.result["loop_ns"]
            else:
                found, their_least, their_rate = app(
                    artifact, shapes, hint=hint, threads=threads, runs=runs, cpus=",".join(map(str, cpus))
                )
                theirs.append(found)
        rates.append((our_rate, their_rate))
        least.append((our_least, their_least))
    middle = statistics.median(theirs)
    return PcComparison(
        model=artifact.model,
        hint=hint,
        threads=threads,
        batch=batch,
        ours_ms=tuple(ours),
        theirs_ms=tuple(theirs),
        ratio=round(statistics.median(ours) / middle, 4),
        runtime_ratio=round(statistics.median(inside) / middle, 4),
        quiet_ratio=round(min(ours) / min(theirs), 4),
        least_ratio=round(min(o for o, _ in least) / min(t for _, t in least), 4),
        ours_per_second=statistics.median(r[0] for r in rates),
        theirs_per_second=statistics.median(r[1] for r in rates),
    )
