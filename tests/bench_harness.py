"""``nox -s bench-harness``: our harness against other tools on this machine: same artifact, one thread, one CPU.

LiteRT: the benchmark tool of the ``ai-edge-litert`` wheel. ExecuTorch: a bare C++ loop around ``Module::forward``.
OpenVINO: its ``benchmark_app``, under the latency and the throughput hint (``tests/bench_openvino.py``). The tools take
turns, so that what else the machine does falls on both; the figure is the ratio of the medians of their p50.
It prints what it finds, whether or not the aim is met.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from build import envs, shell
from build.cache import write_atomic
from build.errors import EdgeportError
from build.log import fail, say
from device_bench import artifacts
from device_bench.devices.local import local_device
from device_bench.harness import build as harness
from device_bench.job import Settings, make_data
from device_bench.session import run_harness
from device_bench.statistics import summarise
from tests import bench_openvino

AIM = (0.97, 1.03)
#: ns that timing may add to an inference.
TIMER_AIM = 1000


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """p50 in ms of each round, and the ratio ours / theirs of their medians.

    Attributes:
        quiet_ratio: of the smallest p50 of each: what remains when other load is left out.
    """

    model: str
    target: str
    batch: int
    peer: str
    ours_ms: tuple[float, ...]
    theirs_ms: tuple[float, ...]
    ratio: float
    quiet_ratio: float
    timer_ns: int


#: prints the batch that the file holds: the tool runs at that, and cannot be told another.
_OWN_BATCH = (
    "import sys; from ai_edge_litert.interpreter import Interpreter; "
    "print('batch', Interpreter(sys.argv[1]).get_input_details()[0]['shape'][0])"
)


def own_batch(file: Path) -> int:
    """The batch at which LiteRT's tool runs a file."""
    printed = shell.run([envs.ensure("litert").python, "-c", _OWN_BATCH, file]).stdout
    return int(next(line.split()[1] for line in printed.splitlines() if line.startswith("batch ")))


def litert_tool(file: Path, runs: int, cpu: int) -> float:
    """p50 in ms by LiteRT's own tool, which rounds it to 10 µs."""
    python = envs.ensure("litert").python
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = ["taskset", "-c", str(cpu), str(python), "-m", "ai_edge_litert.tools.benchmark_litert_model"]
        command += [f"--model={file}", f"--num_runs={runs}", f"--warmup_runs={max(runs // 5, 5)}", "--num_threads=1"]
        shell.run([*command, f"--result_json={result}"])
        return float(json.loads(result.read_text())["latency"]["median_ms"])


def bare_loop(bundle: harness.Bundle, file: Path, shape: Sequence[int], runs: int, cpu: int) -> float:
    """p50 in ms by a bare C++ loop."""
    program = bundle.folder / "bare-executorch"
    done = shell.run(["taskset", "-c", str(cpu), program, file, str(runs), "1", *map(str, shape)])
    return float(done.stdout.split()[0]) / 1e6


def compare(artifact: artifacts.Artifact, out: Path, *, rounds: int, runs: int, cpu: int) -> Comparison:
    """Take turns, ``rounds`` times."""
    bundle = harness.ensure(harness.host_arch())
    batch = own_batch(artifact.file) if artifact.target == "litert" else 1
    data = make_data(out, artifact.record, artifact.program_folder, batch)
    settings = Settings(affinity=(cpu,), min_runs=runs, min_seconds=0.0, max_seconds=600.0, batch=batch)
    device = local_device(out / "bench" / "local")
    first = artifact.record.signature.inputs[0]
    shape = [d if isinstance(d, int) else d.scale * data.timed_sizes[d.symbol] + d.offset for d in first.shape]
    ours, theirs, timers = [], [], []
    for number in range(rounds):
        say(f"{artifact.label}: round {number + 1} of {rounds}")
        turns = ["ours", "theirs"] if number % 2 == 0 else ["theirs", "ours"]
        for turn in turns:
            if turn == "ours":
                result = run_harness(device, bundle, artifact, data, settings, evaluate=False).result
                ours.append(summarise(result["samples_ns"]).p50_ms)
                timers.append(2 * int(result["timer_cost_ns"]))
            elif artifact.target == "litert":
                theirs.append(litert_tool(artifact.file, runs, cpu))
            else:
                theirs.append(bare_loop(bundle, artifact.file, shape, runs, cpu))
    return Comparison(
        model=artifact.model,
        target=artifact.target,
        batch=batch,
        peer="benchmark_litert_model" if artifact.target == "litert" else "bare C++ loop",
        ours_ms=tuple(ours),
        theirs_ms=tuple(theirs),
        ratio=round(statistics.median(ours) / statistics.median(theirs), 4),
        quiet_ratio=round(min(ours) / min(theirs), 4),
        timer_ns=max(timers),
    )


def table(found: Sequence[Comparison]) -> str:
    """One line per comparison, and whether the aims are met."""
    lines = []
    for c in found:
        word = "within" if AIM[0] <= c.ratio <= AIM[1] else "outside"
        lines.append(
            f"{c.model} {c.target} batch {c.batch}: ours {statistics.median(c.ours_ms):.4f} ms, {c.peer} "
            f"{statistics.median(c.theirs_ms):.4f} ms: ratio {c.ratio:.3f}, {word} {AIM[0]}..{AIM[1]}; "
            f"of the quietest rounds {c.quiet_ratio:.3f}; "
            f"timing costs {c.timer_ns} ns per inference ({'under' if c.timer_ns < TIMER_AIM else 'over'} {TIMER_AIM})"
        )
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Compare, print, and write JSON when asked to."""
    parser = argparse.ArgumentParser(
        prog="nox -s bench-harness --", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--model", default="efficientnet_lite0", help="one float input, built at fp32")
    parser.add_argument("--out", default="out", help="where the build put its artifacts")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--runs", type=int, default=100, help="inferences per round and tool")
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)), help="that everything is pinned to")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--targets", default="executorch,litert,openvino", help="comma-separated")
    parser.add_argument("--batch", type=int, default=1, help="of the OpenVINO comparison")
    options = parser.parse_args(argv)
    out = Path(options.out).resolve()
    try:
        targets = options.targets.split(",")
        native = [t for t in targets if t in artifacts.ENGINES]
        found: list[Comparison] = []
        pc: list[bench_openvino.PcComparison] = []
        if native:
            built = artifacts.find(
                out, models=[options.model], targets=native, precisions=["fp32"], build_session="build-android"
            )
            found = [compare(a, out, rounds=options.rounds, runs=options.runs, cpu=options.cpu) for a in built]
        if "openvino" in targets:
            (one,) = artifacts.find(
                out, models=[options.model], targets=["openvino"], precisions=["fp32"], build_session="build-pc"
            )
            how = {"rounds": options.rounds, "runs": options.runs, "batch": options.batch}
            pc = [
                bench_openvino.compare(one, out, hint=hint, threads=1, cpus=[options.cpu], **how)
                for hint in ("latency", "throughput")
            ]
    except EdgeportError as error:
        fail(error)
        return error.exit_code
    print("\n".join([*([table(found)] if found else []), *(c.text() for c in pc)]))
    if options.json:
        rows = [asdict(c) for c in found] + [asdict(p) for p in pc]
        write_atomic(Path(options.json), json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
