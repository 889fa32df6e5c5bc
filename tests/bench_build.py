"""``nox -s bench-build``: a full build against hand-written converter scripts, an unchanged rebuild, peak memory.

Whole processes, wall clock, one run after the other on this machine; the scripts start from the program that capture
wrote, so a build's own capture counts against it. It prints what it finds, whether or not the aim is met.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from build import envs
from targets.registry import all_targets

ROOT = Path(__file__).resolve().parent.parent
#: Compiled modules are kept, as Python does by default: without, half of an unchanged rebuild is compiling them anew.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPATH": str(ROOT)}


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One process: wall seconds, peak resident MiB of the process itself, exit code."""

    seconds: float
    peak_mb: float
    code: int


def timed(command: Sequence[str | Path], *, log: Path) -> Timed:
    """Run to the end and measure."""
    started = time.monotonic()
    with log.open("ab") as stream:
        process = subprocess.Popen(
            [str(c) for c in command],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=stream,
            stderr=stream,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return Timed(
        seconds=time.monotonic() - started, peak_mb=usage.ru_maxrss / 1024, code=os.waitstatus_to_exitcode(status)
    )


def _nox(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "nox", *arguments]


def measure(model: str, folder: Path, rounds: int) -> dict[str, Any]:
    """All figures of one run."""
    log = folder / "bench.log"
    for facts in all_targets().values():
        envs.ensure(facts.group)
    envs.ensure("models")
    print(f"full build of {model} on {len(all_targets())} targets …", file=sys.stderr, flush=True)
    out = folder / "out"
    build = ["-s", "build", "--", "--model", model, "--out", str(out)]
    # The first build pays for trained weights and warm files; it is not counted, and it makes the scripts' program.
    warm = timed(_nox(*build), log=log)
    program = folder / "program.pt2"
    shutil.copy(out / model / "program" / "program.pt2", program)
    shutil.rmtree(out / model)
    full = timed(_nox(*build), log=log)
    bare: dict[str, Timed] = {}
    for name, facts in all_targets().items():
        print(f"the bare {name} converter …", file=sys.stderr, flush=True)
        place = folder / f"bare-{name}"
        place.mkdir()
        python = envs.ensure(facts.group).python
        bare[name] = timed([python, "-m", "tests.bare_converters", name, program, place], log=log)
    rebuilds = [timed(_nox(*build), log=log).seconds for _ in range(rounds)]
    lists = [timed(_nox("-l"), log=log).seconds for _ in range(rounds)]
    manifests = {n: json.loads((out / model / n / "fp32" / "manifest.json").read_text()) for n in all_targets()}
    return {
        "model": model,
        "cores": os.cpu_count(),
        "exit_codes": {"build": [warm.code, full.code], **{n: t.code for n, t in bare.items()}},
        "full_build_seconds": full.seconds,
        "bare": {n: asdict(t) for n, t in bare.items()},
        "bare_seconds": sum(t.seconds for t in bare.values()),
        "rebuild_seconds": statistics.median(rebuilds),
        "nox_list_seconds": statistics.median(lists),
        "lowering_peak_mb": {n: m["lowering_peak_mb"] for n, m in manifests.items() if "lowering_peak_mb" in m},
        "status": {n: m["status"] for n, m in manifests.items()},
    }


def report(v: dict[str, Any]) -> str:
    """The figures beside their aims."""
    ratio = v["full_build_seconds"] / v["bare_seconds"]
    again = v["rebuild_seconds"] / v["nox_list_seconds"]
    lines = [
        f"{v['model']}, {v['cores']} cores; statuses: " + ", ".join(f"{n} {s}" for n, s in v["status"].items()),
        f"full build, verified   {v['full_build_seconds']:7.1f} s",
        *(f"bare {n:<16} {t['seconds']:9.1f} s  exit {t['code']}" for n, t in v["bare"].items()),
        f"bare, sum              {v['bare_seconds']:7.1f} s",
        f"build / bare sum       {ratio:7.2f}    (aim: at most 0.75: {'met' if ratio <= 0.75 else 'not met'})",
        f"unchanged rebuild      {v['rebuild_seconds']:7.2f} s",
        f"nox -l                 {v['nox_list_seconds']:7.2f} s",
        f"rebuild / nox -l       {again:7.2f}    (aim: at most 3: {'met' if again <= 3 else 'not met'})",
    ]
    for name, peak in v["lowering_peak_mb"].items():
        base = v["bare"][name]["peak_mb"]
        times = peak / base
        lines.append(
            f"peak {name:<12} {peak:7.0f} MiB, bare {base:5.0f} MiB: {times:.2f} times "
            f"(aim: at most 1.25: {'met' if times <= 1.25 else 'not met'})"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Measure and print; exit 0 whatever the figures are, 1 when something failed to run."""
    parser = argparse.ArgumentParser(prog="nox -s bench-build --", description=__doc__)
    parser.add_argument("--model", default="efficientnet_lite0")
    parser.add_argument("--rounds", type=int, default=5, help="unchanged rebuilds and listings; the median counts")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="edgeport-bench-") as folder:
        values = measure(options.model, Path(folder), options.rounds)
        failed = [n for n, c in values["exit_codes"].items() if (c if isinstance(c, int) else max(c))]
        if failed:
            print((Path(folder) / "bench.log").read_text()[-3000:], file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps(values, indent=1) + "\n")
    print(report(values))
    if failed:
        print(f"failed to run: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
