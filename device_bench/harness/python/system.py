"""What this process and its machine say of themselves: Linux in full, macOS as far as it tells."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from device_bench.harness.python.engine import Failure

_PROC = Path("/proc/self")
_CPUS = Path("/sys/devices/system/cpu")
_ZONES = Path("/sys/class/thermal")
#: a thread that was on a CPU for at least one part in this many of the busiest one's time took part in the work.
_BUSY_SHARE = 20
#: the kernel's accounts lag behind by up to a tick, 10 ms at most: of a shorter loop they say nothing.
_LEAST_ACCOUNTED = 20_000_000


def timer_cost_ns() -> int:
    """What one reading of the clock takes: the median of 101 batches of 64."""
    clock = time.perf_counter_ns
    costs = []
    for _ in range(101):
        start = clock()
        for _ in range(63):
            clock()
        costs.append((clock() - start) // 64)
    return sorted(costs)[50]


def set_affinity(cpus: Sequence[int]) -> None:
    """Pin this process and the threads that it will start.

    Raises:
        Failure: a CPU that is not there, or a system that cannot pin.
    """
    if not cpus:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise Failure("job", f"cannot pin to CPUs on {platform.system()}")
    try:
        os.sched_setaffinity(0, cpus)
    except (OSError, ValueError) as error:
        raise Failure("job", f"cannot pin to the wanted CPUs: {error}") from error


def cpu_facts() -> dict[str, Any]:
    """``cpu`` of a result."""
    name = platform.uname()
    models, parts, features = set(), set(), set()
    for line in _lines(Path("/proc/cpuinfo")):
        key, _, value = (word.strip() for word in line.partition(":"))
        if key in ("model name", "Hardware"):
            models.add(value)
        elif key == "CPU part":
            parts.add(value)
        elif key in ("Features", "flags"):
            features.update(value.split())
    if not models and name.processor:
        models.add(name.processor)
    affinity = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return {
        "arch": name.machine,
        "kernel": name.release,
        "online": os.cpu_count() or 1,
        "affinity": affinity,
        "models": sorted(models),
        "parts": sorted(parts),
        "features": sorted(features),
    }


def conditions() -> dict[str, Any]:
    """``before`` and ``after`` of a result."""
    try:
        load = os.getloadavg()[0]
    except OSError:
        load = None
    return {"load1": load, "cpus": _clocks(), "thermal": _temperatures()}


def _clocks() -> list[dict[str, Any]]:
    found = []
    for folder in sorted(_CPUS.glob("cpu[0-9]*"), key=lambda p: int(p.name[3:])):
        khz = _number(folder / "cpufreq" / "scaling_cur_freq")
        if khz is not None:
            governor = _lines(folder / "cpufreq" / "scaling_governor")
            found.append(
                {
                    "id": int(folder.name[3:]),
                    "khz": khz,
                    "max_khz": _number(folder / "cpufreq" / "cpuinfo_max_freq"),
                    "governor": governor[0] if governor else None,
                }
            )
    return found


def _temperatures() -> list[dict[str, Any]]:
    found = []
    for folder in sorted(_ZONES.glob("thermal_zone*")):
        milli = _number(folder / "temp")
        if milli is not None:
            kind = _lines(folder / "type")
            found.append({"zone": folder.name, "type": kind[0] if kind else "", "celsius": milli / 1000})
    return found


def rss_bytes() -> int:
    """Resident memory now; -1: the system does not say."""
    return _status("VmRSS:")


def peak_rss_bytes() -> int:
    """The largest resident memory so far; -1: the system does not say."""
    if _PROC.exists():
        # The kernel notes the peak late: it can lie below the present value.
        return max(_status("VmHWM:"), rss_bytes())
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes on macOS, KiB elsewhere (getrusage(2))


def thread_times() -> dict[int, int]:
    """Thread id -> time on a CPU in ns (Documentation/scheduler/sched-stats.rst); empty: the system does not say."""
    found = {}
    for folder in _PROC.glob("task/*"):
        spent = _number(folder / "schedstat")
        if spent is not None:
            found[int(folder.name)] = spent
    return found


def busy_threads(before: dict[int, int], after: dict[int, int]) -> int | None:
    """How many threads did a real share of the work between two readings; None: it was too short to tell."""
    spent = [ns - before.get(thread, 0) for thread, ns in after.items()]
    most = max(spent, default=0)
    if most < _LEAST_ACCOUNTED:
        return None
    return sum(ns * _BUSY_SHARE >= most for ns in spent)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    lines = _lines(path)
    words = lines[0].split() if lines else []
    return int(words[0]) if words and words[0].lstrip("-").isdigit() else None


def _status(field: str) -> int:
    line = next((text for text in _lines(_PROC / "status") if text.startswith(field)), None)
    return -1 if line is None else int(line.split()[1]) * 1024
