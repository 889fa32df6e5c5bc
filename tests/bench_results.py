"""``python -m tests.bench_results [N]``: how long reading takes with N measurements (100,000) in a results folder.

Writes them as files, indexes them, and times a fresh process that filters and summarises: all of it, start included.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.conftest import ROOT, environment
from tests.results import measurements as made

_PER_RUN = 500
_READ = """
import sys, time
now = time.process_time
started = now()
from device_bench.store import Query, open_results
store = open_results(sys.argv[1])
opened = now()
cells = store.cells(Query(devices=("device-1",), targets=("litert", "executorch")))
medians = sorted(c.p50_ms for c in cells)
filtered = now()
newest = store.latest()
done = now()
print(f"of the CPU: open {opened - started:.2f} s; filter to {sum(len(c.measurements) for c in cells)} and summarise "
      f"{filtered - opened:.2f} s; newest of each of {len(newest)} cells out of all {done - filtered:.2f} s; "
      f"{len(store.problems())} problems")
"""


def write_many(place: Path, count: int) -> None:
    """Runs of 500 measurements: 5 devices, 4 targets, 5 precisions, 5 repeats each."""
    samples = [made.normal(60, seed=s) for s in range(20)]
    templates = [made.measurement(s) for s in samples]
    for number in range(count):
        run, within = divmod(number, _PER_RUN)
        value = templates[number % len(templates)]
        value["measurement"] |= {
            "device": f"device-{within // 100}",
            "target": ("executorch", "litert", "openvino", "ort_web")[within // 25 % 4],
            "precision": ("fp32", "fp16", "int8-weight", "int8-dynamic", "int8-static")[within // 5 % 5],
            "repeat": within % 5 + 1,
        }
        day = f"2026-{run // 28 % 12 + 1:02}-{run % 28 + 1:02}T10:00:00Z"
        made.write(place, f"run-{run:06}", {**value, "started": day, "finished": day})


def main(count: int) -> int:
    """Write, index, read; print the times."""
    with tempfile.TemporaryDirectory(prefix="edgeport-") as folder:
        place = Path(folder)
        write_many(place, count)
        size = sum(p.stat().st_size for p in place.rglob("*.json"))
        print(f"{count} measurements, {size / 1e6:.0f} MB of JSON", flush=True)
        from device_bench.store import open_results

        started = time.monotonic()
        open_results(place).close()
        index = (place / ".index.sqlite").stat().st_size
        print(f"first index: {time.monotonic() - started:.0f} s, {index / 1e6:.0f} MB", flush=True)
        for _ in range(3):
            started = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-c", _READ, folder],
                cwd=ROOT,
                env=environment(),
                check=True,
                capture_output=True,
                text=True,
            )
            print(f"whole process {time.monotonic() - started:.2f} s: {done.stdout.strip()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
