"""Synthetic results that keep to their schemas: measurements, runs, summaries, manifests, with known samples."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_bench.measurement import END
from device_bench.statistics import summarise
from device_bench.store import ResultStore

STARTED = "2026-11-01T10:00:00Z"
LATER = "2026-11-02T10:00:00Z"
#: two runs, a day apart.
OLD, NEW = "run-20261101-100000-aaaaaa", "run-20261102-100000-bbbbbb"
#: what a terminal, a page, a spreadsheet or XML might act on; a folder may be called so, as a device's has to be.
HOSTILE = "=cmd|' \\C calc'!A1\x1b[31m<script>alert(1)<script>\n]]>\u202e\"'&\x01,;"

_OF_RUNS_THAT_ENDED_WELL = (
    *("attempts", "runtime", "load_ms", "first_ms", "statistics", "details", "memory", "threads", "timer_cost_ns"),
    *("clock", "warmup", "loop_ns", "cpu", "conditions", "accuracy", "host", "samples_ns"),
)

#: the cell that is measured here unless a test says otherwise.
CELL: dict[str, Any] = {
    "device": "pixel-7",
    "model": "digits_cnn",
    "target": "litert",
    "precision": "fp32",
    "threads": 1,
    "batch": None,
    "variant": "",
}


def normal(count: int = 200, ms: float = 10.0, noise: float = 0.03, seed: int = 0) -> list[int]:
    """Samples in ns around a median, normally distributed, independent."""
    drawn = np.random.default_rng(seed).normal(ms, noise * ms, count)
    return [max(int(s), 1) for s in drawn * 1e6]


def drawn(seed: int, ms: float = 10.0, **options: Any) -> NDArray[np.int64]:
    """:func:`normal` as an array."""
    return np.array(normal(seed=seed, ms=ms, **options), dtype=np.int64)


def bimodal(count: int = 200, ms: float = 10.0, apart: float = 0.25, noise: float = 0.03, seed: int = 0) -> list[int]:
    """Samples in ns of which half are slower by ``apart``, in random order."""
    rng = np.random.default_rng(seed)
    centres = np.where(rng.random(count) < 0.5, ms, ms * (1 + apart))
    return [max(int(s), 1) for s in rng.normal(centres, noise * centres) * 1e6]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def conditions(**changes: Any) -> dict[str, Any]:
    """How a cool device is doing that is not charging."""
    value: dict[str, Any] = {"celsius": 30.0, "sensor": "battery", "battery_percent": 80.0, "charging": False}
    return {**value, "load1": 0.1, "governors": ["performance"], "khz": {}, **changes}


def measurement(samples_ns: Sequence[int] | None = None, **changes: Any) -> dict[str, Any]:
    """A measurement that ended well, but for the changes.

    Args:
        changes: of its identity (``device``, ``model``, ``threads``, ``repeat``, …), or whole members of the JSON,
            which are merged into what is there where both are objects.
    """
    samples = list(samples_ns) if samples_ns is not None else normal()
    figures = summarise(samples).to_json()
    harness: dict[str, Any] = {"load1": 0.1, "cpus": [], "thermal": []}
    value: dict[str, Any] = {
        "schema_version": 1,
        "measurement": {
            **CELL,
            "repeat": 1,
        },
        "artifact": {
            "sha256": _digest("artifact"),
            "bytes": 68_000,
            "key": _digest("key"),
            "program": _digest("program"),
            "toolchain": {"ai-edge-litert": "2.3.0", "torch": "2.13.0"},
        },
        "device": {
            "kind": "adb",
            "serial": "R58M",
            "arch": "aarch64",
            "machine": "aarch64",
            "manufacturer": "Google",
            "model": "Pixel 7",
            "soc": "Tensor G2",
            "os": "Android 15",
            "abi": "arm64-v8a",
            "cores": 8,
            "memory_mb": 8192,
            "emulated": False,
            "why_emulated": None,
        },
        "emulated": False,
        "harness": {"version": "a1b2c3d4", "arch": "aarch64"},
        "settings": {
            "threads": 1,
            "affinity": [],
            "warmup_runs": 5,
            "warmup_seconds": 0.5,
            "min_runs": 50,
            "min_seconds": 1.0,
            "max_runs": 1_000_000,
            "max_seconds": 20.0,
            "batch": None,
            "seed": 7,
            "position": 0,
        },
        "status": "ok",
        "error": None,
        "attempts": 1,
        "warnings": [],
        "runtime": {"name": "litert", "version": "2.3.0"},
        "load_ms": 3.5,
        "first_ms": 12.25,
        "statistics": {**figures, "per_second": 0.0},
        "details": {},
        "memory": {
            **dict.fromkeys(("rss_before_load", "rss_after_load", "peak_rss", "peak_rss_end"), 20 << 20),
            "samples_bytes": 8 * len(samples),
            "peak_mb": 20.0,
        },
        "threads": {"alive": 1, "busy": 1, "runtime": 1},
        "timer_cost_ns": 40,
        "clock": "steady",
        "warmup": {"runs": 5, "ns": 500_000_000},
        "loop_ns": sum(samples),
        "cpu": {
            "arch": "aarch64",
            "kernel": "6.1",
            "online": 8,
            "affinity": [0],
            "models": [],
            "parts": [],
            "features": [],
        },
        "conditions": {
            "gate": {"celsius": 30.0, "sensor": "battery", "limit": 38.0, "waited_seconds": 0.0, "timed_out": False},
            "before": conditions(),
            "after": conditions(),
            "harness_before": harness,
            "harness_after": harness,
        },
        "accuracy": accuracy(),
        "host": None,
        "samples_ns": samples,
        "started": STARTED,
        "finished": STARTED,
        "end": END,
    }
    identity = value["measurement"]
    for name, change in changes.items():
        if name != "threads" and name in value and isinstance(value[name], dict) and isinstance(change, dict):
            value[name] = {**value[name], **change}
        elif name in identity and not (name in ("device", "threads") and isinstance(change, dict)):
            identity[name] = change
            if name in ("threads", "batch"):
                value["settings"][name] = change
        else:
            value[name] = change
    if "statistics" not in changes:
        runs = len(samples) * 1e9 / max(value["loop_ns"], 1)
        value["statistics"]["per_second"] = round(runs * (identity["batch"] or 1), 3)
    if value["emulated"] and not value["device"]["emulated"]:
        value["device"] = {**value["device"], "emulated": True, "why_emulated": "the kernel is not aarch64"}
    return value


def accuracy(changed: Sequence[dict[str, Any]] = (), value: float = 0.98) -> dict[str, Any]:
    """What the lab found against PyTorch, with these changed decisions."""
    return {
        "calls": 360,
        "metric": {"name": "top1_accuracy", "value": value, "reference": 0.98},
        "max_abs_diff": 1e-5,
        "worst": {"call": "eval-0", "output": "logits"},
        "outputs": {},
        "decisions": 360,
        "changed_decisions": sum(not d["tie"] for d in changed),
        "near_ties": sum(bool(d["tie"]) for d in changed),
        "changed": list(changed),
        "nonfinite": 0,
    }


def failed(message: str = "the connection broke", **changes: Any) -> dict[str, Any]:
    """A measurement that did not come about."""
    value = measurement(**changes)
    for name in _OF_RUNS_THAT_ENDED_WELL:
        del value[name]
    error = {"code": "device-lost", "message": message, "op": None, "source": None, "remedy": None}
    return {**value, "status": "failed", "error": error}


def write(results: Path, run: str, value: dict[str, Any], name: str | None = None) -> Path:
    """Write a measurement where the lab would, and ``run.json`` where it is missing."""
    m = value["measurement"]
    words = [m["model"], m["target"], m["precision"], f"t{m['threads']}", f"b{m['batch']}" if m["batch"] else ""]
    file = name or ".".join(w for w in (*words, m["variant"], f"r{m['repeat']}", "json") if w)
    folder = results / run / m["device"]
    folder.mkdir(parents=True, exist_ok=True)
    if not (results / run / "run.json").exists():
        write_record(results, run, started=value["started"])
    path = folder / file.replace("/", "_").replace("\0", "_")
    path.write_text(json.dumps(value))
    return path


def write_record(results: Path, run: str, *, started: str = STARTED, **changes: Any) -> Path:
    """Write a run's ``run.json``."""
    value = {
        "schema_version": 1,
        "session": "bench-android",
        "started": started,
        "seed": 7,
        "models": ["digits_cnn"],
        "targets": ["litert"],
        "precisions": ["fp32"],
        "repeats": 3,
        "settings": {"threads": 1},
        "devices": ["pixel-7"],
        **changes,
    }
    (results / run).mkdir(parents=True, exist_ok=True)
    path = results / run / "run.json"
    path.write_text(json.dumps(value))
    return path


def write_repeats(results: Path, run: str, samples: Sequence[Sequence[int]], **changes: Any) -> None:
    """Write one cell: a repeat for each set of samples."""
    for number, one in enumerate(samples, 1):
        write(results, run, measurement(one, repeat=number, **copy.deepcopy(changes)))


def summary(run: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A run's ``summary.json``."""
    return {"schema_version": 1, "session": "bench-android", "run": run, "seed": 7, "repeats": 3, "rows": list(rows)}


def summary_row(word: str | None = "PASS", reasons: Sequence[str] = (), **changes: Any) -> dict[str, Any]:
    """A row of it, of the cell that :func:`measurement` measures."""
    verdict = {"word": word, "reasons": list(reasons), "p50_ms": 10.0, "p95_ms": 10.5, "peak_mb": 20.0}
    return {
        **CELL,
        "artifact_sha256": _digest("artifact"),
        "platform": "android",
        "device_class": "*",
        "counts": word == "PASS",
        "emulated": False,
        "limits": {"p95_ms": 12.0, "peak_mb": None},
        "verdict": {**verdict, "samples": 600, "repeats": 3},
        "accuracy": accuracy(),
        "host": None,
        "errors": [],
        "warnings": [],
        "files": [],
        "missing": [],
        **changes,
    }


def manifest(**changes: Any) -> dict[str, Any]:
    """An artifact's manifest."""
    file = {"path": "model.tflite", "bytes": 10, "sha256": "c" * 64}
    value: dict[str, Any] = {"schema_version": 1, "model": "digits_cnn", "target": "litert", "precision": "fp32"}
    value |= {"key": "a" * 64, "program": "d" * 64, "toolchain": {"litert-torch": "0.10.0"}, "calibration": None}
    value |= {"inputs": [], "outputs": [], "warnings": [], "licence": "MIT", "status": "ok", "error": None}
    value |= {"files": [file], "bytes": 10, "metric": None, "seconds": 1.0, "peak_mb": 1.0, "main": "model.tflite"}
    value |= {"entry_points": [], "coverage": {"delegated": 1, "fallback": {}, "delegated_share": 1.0, "method": "ops"}}
    counts = dict.fromkeys(("calls", "max_abs_diff", "decisions", "changed_decisions", "near_ties"), 0)
    value |= {
        "verification": {"runtime": "litert", "sizes": [], "outputs": {}, "changed": [], "problems": [], **counts}
    }
    return value | changes


def reasons(store: ResultStore) -> dict[str, str]:
    """Path -> why it was skipped."""
    return {p.path: p.reason for p in store.problems()}
