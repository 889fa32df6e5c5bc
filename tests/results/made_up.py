"""Made-up measurements of made-up devices; see ``full_run``."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from device_bench.statistics import summarise


@dataclass(frozen=True)
class Place:
    """A made-up device: which targets run there and how much slower it is."""

    name: str
    kind: str
    targets: tuple[str, ...]
    slower: float
    variants: tuple[str, ...] = ("",)
    emulated: bool = False
    celsius: float | None = None


PLACES = (
    Place("local-workstation", "local", ("executorch", "litert", "openvino"), 1.0, celsius=48.0),
    Place("web-chromium", "browser", ("ort_web",), 1.0, variants=("wasm", "webgpu")),
    Place("adb-emulated-0", "adb", ("executorch", "litert"), 25.0, emulated=True, celsius=31.0),
)


def measurement(
    built: Mapping[str, Any],
    place: Place,
    *,
    repeat: int = 1,
    threads: int = 1,
    batch: int | None = None,
    variant: str = "",
    samples_ns: Sequence[int] = (),
    position: int = 0,
    **changes: Any,
) -> dict[str, Any]:
    """A measurement that keeps to its schema, of an artifact that was built."""
    samples = list(samples_ns) or [1_000_000] * 200
    drop = built["metric"]["reference"] - built["metric"]["value"]
    start = datetime(2026, 3, 1, 9) + timedelta(minutes=2 * position)
    khz = [{"id": i, "khz": 2_400_000, "max_khz": 2_400_000, "governor": "performance"} for i in range(4)]
    warm = None if place.celsius is None else place.celsius + 4 * math.sin(position / 3)
    condition: dict[str, Any] = {
        "celsius": warm,
        "sensor": None if warm is None else "battery" if place.emulated else "x86_pkg_temp",
        "battery_percent": 80.0 if place.emulated else None,
        "charging": False if place.emulated else None,
        "load1": 0.4,
        "governors": ["performance"],
        "khz": {},
    }
    side = {"load1": 0.4, "cpus": [] if place.kind == "browser" else khz, "thermal": []}
    accuracy = {
        "calls": 60,
        "metric": built["metric"],
        "max_abs_diff": 0.01,
        "worst": {"call": "example", "output": "logits"},
        "outputs": {},
        "decisions": built["verification"]["decisions"],
        "changed_decisions": round(drop * built["verification"]["decisions"]),
        "near_ties": 0,
        "changed": [],
        "nonfinite": 0,
    }
    settings = {"threads": threads, "affinity": [], "warmup_runs": 5, "warmup_seconds": 0.5, "min_runs": 50}
    settings |= {"min_seconds": 1.0, "max_runs": 1_000_000, "max_seconds": 60.0, "batch": batch, "seed": 7}
    rss = int(40e6 + 2.2 * built["bytes"])
    memory = {"rss_before_load": 2**24, "rss_after_load": rss, "peak_rss": rss, "peak_rss_end": rss, "samples_bytes": 0}
    loop = sum(samples)
    value = {
        "schema_version": 1,
        "measurement": {
            "device": place.name,
            "model": built["model"],
            "target": built["target"],
            "precision": built["precision"],
            "threads": threads,
            "batch": batch,
            "variant": variant,
            "repeat": repeat,
        },
        "artifact": {
            "sha256": built["files"][0]["sha256"],
            "bytes": built["bytes"],
            "key": built["key"],
            "program": built["program"],
            "toolchain": built["toolchain"],
        },
        "device": {
            "kind": place.kind,
            "serial": place.name,
            "arch": "x86_64",
            "machine": "x86_64",
            "manufacturer": None,
            "model": "A made-up machine",
            "soc": None,
            "os": "Linux",
            "abi": None,
            "cores": 4,
            "memory_mb": 8192,
            "emulated": place.emulated,
            "why_emulated": "its CPU is emulated by qemu" if place.emulated else None,
        },
        "emulated": place.emulated,
        "harness": {"version": "0f1e2d3c4b5a", "arch": "x86_64"},
        "settings": {**settings, "position": position},
        "attempts": 1,
        "started": f"{start:%Y-%m-%dT%H:%M:00Z}",
        "finished": f"{start:%Y-%m-%dT%H:%M:50Z}",
        "status": "ok",
        "error": None,
        "warnings": [],
        "runtime": {"name": built["target"], "version": "1.0"},
        "load_ms": 3.0,
        "first_ms": 2.0,
        "statistics": {**summarise(samples).to_json(), "per_second": len(samples) * (batch or 1) * 1e9 / loop},
        "details": {"provider": variant} if variant else {},
        "memory": {**memory, "peak_mb": rss / 2**20},
        "threads": {"alive": threads, "busy": threads, "runtime": None},
        "timer_cost_ns": 30,
        "clock": "CLOCK_MONOTONIC",
        "warmup": {"runs": 5, "ns": 5},
        "loop_ns": loop,
        "cpu": {"arch": "x86_64", "kernel": "6.1", "online": 4, "affinity": [0], "models": ["A made-up CPU"],
                "parts": [], "features": []},
        "conditions": {
            "gate": {"celsius": warm, "sensor": condition["sensor"], "limit": 60.0 if warm else None,
                     "waited_seconds": 0.0, "timed_out": False},
            "before": condition,
            "after": {**condition, "celsius": None if warm is None else warm + 2.5},
            "harness_before": side,
            "harness_after": side,
        },
        "accuracy": accuracy if repeat == 1 else None,
        "host": None,
        "samples_ns": samples,
        "end": "edgeport-measurement",
    }  # fmt: skip
    return value | changes


def failed_measurement(value: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The same measurement, had it failed."""
    kept = [
        "schema_version",
        "measurement",
        "artifact",
        "device",
        "emulated",
        "harness",
        "settings",
        "started",
        "finished",
        "warnings",
        "end",
    ]
    error = {"code": "harness-failed", "message": text, "op": None, "source": None, "remedy": "Try a smaller batch."}
    return {k: value[k] for k in kept} | {"status": "failed", "error": error}


def samples(seed: str, ms: float, count: int, *, noise: float = 0.03) -> list[int]:
    """Latencies in ns: a bell, a tail, and a few interruptions."""
    dice = random.Random(seed)
    found = []
    for _ in range(count):
        one = ms * math.exp(dice.gauss(0, noise)) + (ms * dice.expovariate(6) if dice.random() < 0.12 else 0)
        found.append(round(1e6 * (one * (1.8 if dice.random() < 0.004 else 1))))
    return found


def heating(ms: float, seconds: float) -> list[int]:
    """A long run: after a third of it the device gets hot and slows down by 30 %."""
    dice = random.Random(3)
    found: list[int] = []
    at = 0.0
    while at < seconds:
        hot = min(max((at - seconds / 3) / 20, 0), 1)
        one = ms * (1 + 0.3 * hot) * math.exp(dice.gauss(0, 0.02))
        at += one / 1000
        found.append(round(1e6 * one))
    return found
