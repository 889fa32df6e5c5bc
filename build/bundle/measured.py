"""Measurements that a bundle encloses: those of its own bytes, summarised and judged per device."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from build.cache import sha256_file
from build.errors import RejectedResultError
from device_bench import measurement
from device_bench.verdict import Verdict, judge

RUN_RECORD = "run.json"
_FACTS = ("kind", "machine", "manufacturer", "model", "soc", "os", "abi", "arch", "cores", "memory_mb", "emulated")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The newest run of one artifact on one device, at one number of threads and one way of running.

    Attributes:
        values: its measurements, one per repeat.
        sha256: of each measurement's file, in the same order.
        repeats: how many there should be.
    """

    device: str
    values: tuple[Mapping[str, Any], ...]
    sha256: tuple[str, ...]
    repeats: int

    @property
    def label(self) -> str:
        """Maker and model, or the kind of machine: no serial number."""
        facts = self.values[0]["device"]
        return " ".join(str(facts[k]) for k in ("manufacturer", "model") if facts[k]) or str(facts["machine"])

    @property
    def artifact(self) -> str:
        """sha256 of the bytes that were measured."""
        return str(self.values[0]["artifact"]["sha256"])

    @property
    def started(self) -> str:
        """When the newest of them began, UTC."""
        return max(str(v["started"]) for v in self.values)

    def verdict(self, p95_ms: float | None = None, peak_mb: float | None = None) -> Verdict:
        """PASS, FAIL or INCONCLUSIVE against limits."""
        return judge(self.values, repeats=self.repeats, p95_ms=p95_ms, peak_mb=peak_mb)

    def to_json(self) -> dict[str, Any]:
        """For the manifest: facts and figures, no serial numbers."""
        good = [v for v in self.values if v["status"] == "ok"]
        verdict = self.verdict()
        first = good[0] if good else self.values[0]
        return {
            "device": {k: first["device"][k] for k in _FACTS},
            "runtime": first.get("runtime"),
            "threads": first["settings"]["threads"],
            "batch": first["settings"]["batch"],
            "variant": first["measurement"]["variant"],
            "started": min(str(v["started"]) for v in self.values),
            "finished": max(str(v["finished"]) for v in self.values),
            "repeats": len(good),
            "samples": verdict.samples,
            "p50_ms": verdict.p50_ms,
            "p95_ms": verdict.p95_ms,
            "peak_mb": verdict.peak_mb,
            "emulated": any(v["emulated"] for v in self.values),
            "doubts": list(verdict.reasons),
            "files": list(self.sha256),
        }


def newest(folder: Path, model: str) -> tuple[dict[tuple[str, str], list[Measured]], list[str]]:
    """Every artifact's newest run on each device. A sweep over batches is left out: no budget speaks of its points.

    Returns:
        ``(target, precision)`` -> runs by device's name; and what is wrong with files that can't be used.
    """
    groups: dict[tuple[str, str, str, Path], dict[tuple[int, str], list[tuple[Mapping[str, Any], str]]]] = {}
    problems = []
    for path in sorted(folder.rglob("*.json")):
        if path.name == RUN_RECORD or not _is_one(path):
            continue
        try:
            value = measurement.read(path)
        except RejectedResultError as error:
            problems.append(error.message)
            continue
        who = value["measurement"]
        if who["model"] == model and not _sweeps_batches(path.parent):
            points = groups.setdefault((who["target"], who["precision"], who["device"], path.parent), {})
            points.setdefault((who["threads"], who["variant"]), []).append((value, sha256_file(path)))
    found: dict[tuple[str, str], dict[str, list[Measured]]] = {}
    for (target, precision, device, place), points in groups.items():
        runs = [_run(device, place, points[point]) for point in sorted(points)]
        devices = found.setdefault((target, precision), {})
        if device not in devices or runs[0].started > devices[device][0].started:
            devices[device] = runs
    return {key: [run for d in sorted(devices) for run in devices[d]] for key, devices in found.items()}, problems


def _run(device: str, place: Path, rows: Sequence[tuple[Mapping[str, Any], str]]) -> Measured:
    rows = sorted(rows, key=lambda r: (r[0]["measurement"]["repeat"], r[1]))
    return Measured(
        device=device,
        values=tuple(r[0] for r in rows),
        sha256=tuple(r[1] for r in rows),
        repeats=_repeats(place, len(rows)),
    )


def _is_one(path: Path) -> bool:
    """Whether a JSON file means to be a measurement; a run's summary and a stranger's file do not."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return True  # cut short: for the strict reader to say
    return isinstance(value, dict) and "measurement" in value


def _repeats(place: Path, found: int) -> int:
    repeats = _record(place).get("repeats")
    return repeats if isinstance(repeats, int) else found


def _sweeps_batches(place: Path) -> bool:
    points = _record(place).get("points")
    return isinstance(points, list) and len({str(p.get("batch")) for p in points if isinstance(p, dict)}) > 1


@cache
def _record(place: Path) -> Mapping[str, Any]:
    """The record of the run that a folder of measurements belongs to; empty where there is none."""
    for folder in (place, place.parent):
        try:
            value = json.loads((folder / RUN_RECORD).read_text())
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return {}


def figures(
    runs: Sequence[Measured], p95_ms: float | None, peak_mb: float | None
) -> tuple[dict[str, float], list[str]]:
    """The worst ``p95_ms`` and ``peak_mb`` over devices, of measurements that count; and why others do not."""
    values: dict[str, float] = {}
    doubts = []
    for run in runs:
        verdict = run.verdict(p95_ms, peak_mb)
        if verdict.word == "INCONCLUSIVE":
            doubts += [f"{run.label}: {reason}" for reason in verdict.reasons]
            continue
        for name, value in (("p95_ms", verdict.p95_ms), ("peak_mb", verdict.peak_mb)):
            if value is not None:
                values[name] = max(values.get(name, 0.0), value)
    return values, doubts
