"""One measurement: the JSON that a run leaves behind. Schema: ``measurement.schema.json``."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.cache import write_atomic
from build.errors import EdgeportError, RejectedResultError
from build.manifest import failure
from build.protocol import error_to_json
from device_bench.advice import find_warnings
from device_bench.artifacts import Artifact
from device_bench.contract import Harness, HarnessRun
from device_bench.devices.base import Conditions, Facts
from device_bench.gate import Gate
from device_bench.harness_result import schema_problem
from device_bench.job import Settings
from device_bench.points import Point
from device_bench.result_json import read_json
from device_bench.statistics import summarise

SCHEMA = Path(__file__).with_name("measurement.schema.json")
SCHEMA_VERSION = 1
END = "edgeport-measurement"
MAX_BYTES = 32 << 20


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measurement to take: what, where, and the how-manieth repeat (from 1)."""

    device: str
    artifact: Artifact
    repeat: int
    point: Point

    @property
    def group(self) -> str:
        """What all repeats have in common, for people: ``digits_cnn litert fp32, 2 threads``."""
        return f"{self.artifact.label}{self.point.text}"

    @property
    def file(self) -> str:
        """Path below the run's folder."""
        a = self.artifact
        return f"{self.device}/{a.model}.{a.target}.{a.precision}.{self.point.slug}.r{self.repeat}.json"

    def identity(self) -> dict[str, Any]:
        """What names the measurement."""
        a = self.artifact
        return {
            "device": self.device,
            "model": a.model,
            "target": a.target,
            "precision": a.precision,
            "threads": self.point.threads,
            "batch": self.point.batch,
            "variant": self.point.variant,
            "repeat": self.repeat,
        }


def begin(
    cell: Cell, harness: Harness | None, facts: Facts, settings: Settings, *, seed: int, position: int
) -> dict[str, Any]:
    """What a measurement says before it was tried.

    Args:
        harness: None when the device could not even be asked which harness it runs.
        settings: of every cell; the cell's own point decides threads and batch.
        position: where in the device's shuffled order it stood.
    """
    a = cell.artifact
    settings = cell.point.applied(settings)
    return {
        "schema_version": SCHEMA_VERSION,
        "measurement": cell.identity(),
        "artifact": {
            "sha256": a.sha256,
            "bytes": a.bytes,
            "key": a.manifest["key"],
            "program": a.record.sha256,
            "toolchain": a.manifest["toolchain"],
        },
        "device": facts.to_json(),
        "emulated": facts.emulated,
        "harness": None if harness is None else {"version": harness.version, "arch": harness.arch},
        "settings": {**settings.for_harness(), "batch": settings.batch, "seed": seed, "position": position},
        "started": _now(),
        "finished": "",
        "status": "failed",
        "error": None,
        "warnings": [],
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def complete(
    value: dict[str, Any],
    run: HarnessRun,
    gate: Gate,
    before: Conditions,
    after: Conditions,
    *,
    batch: int,
    accuracy: Mapping[str, Any] | None,
    host: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The measurement of a run that ended well.

    Args:
        batch: examples in the timed call.
    """
    result = run.result
    if run.emulated is not None and not value["emulated"]:
        device = {**value["device"], "emulated": True, "why_emulated": run.emulated}
        value = {**value, "emulated": True, "device": device}
    samples = result["samples_ns"]
    statistics = summarise(samples)
    # Requests may overlap: what counts is the time of the whole loop, where the harness says it.
    loop = max(result["loop_ns"], 1)
    return {
        **value,
        "status": "ok",
        "runtime": result["runtime"],
        "load_ms": result["load_ns"] / 1e6,
        "first_ms": result["first_ns"] / 1e6,
        "statistics": {**statistics.to_json(), "per_second": round(len(samples) * batch * 1e9 / loop, 3)},
        "details": dict(run.details),
        "memory": {**result["memory"], "peak_mb": _mebibytes(result["memory"]["peak_rss"])},
        "threads": result["threads"],
        "timer_cost_ns": result["timer_cost_ns"],
        "timer_step_ns": result.get("timer_step_ns"),
        "clock": result["clock"],
        "warmup": result["warmup"],
        "loop_ns": result["loop_ns"],
        "cpu": result["cpu"],
        "conditions": {
            "gate": gate.to_json(),
            "before": before.to_json(),
            "after": after.to_json(),
            "harness_before": result["before"],
            "harness_after": result["after"],
        },
        "accuracy": accuracy,
        "host": host,
        "warnings": find_warnings(value, result, statistics, before, gate),
        "samples_ns": samples,
    }


def _mebibytes(count: int | None) -> float | None:
    """Of bytes; None where the harness could not know them (a browser shows none; -1 where a kernel shows none)."""
    return None if count is None or count < 0 else round(count / 2**20, 3)


def failed(value: dict[str, Any], error: EdgeportError) -> dict[str, Any]:
    """The measurement of a run that did not."""
    return {**value, "status": "failed", "error": failure(error_to_json(error))}


def write(folder: Path, cell: Cell, value: Mapping[str, Any]) -> Path:
    """Write it: whole or not at all.

    Raises:
        RejectedResultError: it does not keep to its schema.
        StorageError: the disk is full.
    """
    text = json.dumps({**value, "finished": _now(), "end": END}, allow_nan=False)
    whole = json.loads(text)  # as a reader will see it: tuples are lists there
    problem = schema_problem(whole, SCHEMA)
    if problem is not None:
        raise RejectedResultError(f"a measurement does not keep to its schema: {problem}")
    path = folder / cell.file
    write_atomic(path, text + "\n")
    return path


def read(path: Path) -> dict[str, Any]:
    """Read a measurement.

    Raises:
        RejectedResultError: too large, not whole, another schema version, or not what the schema says.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise RejectedResultError(f"{path.name} has more than {MAX_BYTES} bytes")
        content = path.read_bytes()
    except OSError as error:
        raise RejectedResultError(f"{path.name} cannot be read: {error.strerror or error}") from error
    value = read_json(content, path.name)
    if not isinstance(value, dict) or value.get("schema_version") != SCHEMA_VERSION:
        version = value.get("schema_version") if isinstance(value, dict) else None
        raise RejectedResultError(f"{path.name} has schema version {version!r}, this lab reads {SCHEMA_VERSION}")
    if value.get("end") != END:
        raise RejectedResultError(f"{path.name} has no end marker")
    problem = schema_problem(value, SCHEMA)
    if problem is not None:
        raise RejectedResultError(f"{path.name} does not keep to its schema: {problem}")
    return value


def settled(folder: Path, cell: Cell, harness: Harness) -> dict[str, Any] | None:
    """The measurement of this cell, when it was taken from these very bytes with this harness; None: to be taken."""
    path = folder / cell.file
    if not path.is_file():
        return None
    try:
        value = read(path)
    except RejectedResultError:
        return None
    same = (
        value["status"] == "ok"
        and value["artifact"]["sha256"] == cell.artifact.sha256
        and value["harness"]["version"] == harness.version
        and value["measurement"] == cell.identity()
    )
    return value if same else None


def is_ok(folder: Path, cell: Cell) -> bool:
    """Whether a measurement that was taken lies there, of whatever bytes."""
    try:
        return bool(read(folder / cell.file)["status"] == "ok")
    except RejectedResultError:
        return False


def ordered(cells: Sequence[Cell], seed: int) -> list[Cell]:
    """Cells of one device in the order in which they are measured: repeat by repeat, shuffled within each."""
    import random

    found: list[Cell] = []
    for repeat in sorted({c.repeat for c in cells}):
        group = sorted((c for c in cells if c.repeat == repeat), key=lambda c: c.file)
        device = group[0].device
        random.Random(f"{seed}/{device}/{repeat}").shuffle(group)
        found += group
    return found
