"""The report as JSON. Schema: ``report.schema.json``. Raw samples stay in the files that are named."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from device_bench.report.best import best, fronts
from device_bench.report.data import Build, Device, Measured, Report, Row

SCHEMA = Path(__file__).with_name("report.schema.json")
SCHEMA_VERSION = 1


def to_json(report: Report) -> dict[str, Any]:
    """As JSON values. Every number in it is finite."""
    found = {
        "schema_version": SCHEMA_VERSION,
        "models": list(report.models),
        "targets": list(report.targets),
        "precisions": list(report.precisions),
        "runs": list(report.runs),
        "measured": {"first": report.first, "last": report.last, "taken": report.taken, "failed": report.failed},
        "verdicts": report.verdicts(),
        "passing": [
            {
                "model": b.model,
                "device": b.device,
                "passing": b.passing,
                "judged": b.judged,
                "fastest": None if b.fastest is None else b.fastest.label,
                "smallest": None if b.smallest is None else b.smallest.label,
            }
            for b in best(report)
        ],
        "fronts": [
            {"model": f.model, "device": f.device, "artifacts": [r.label for r in f.rows]} for f in fronts(report)
        ],
        "rows": [_row(r) for r in report.rows],
        "builds": [_build(b) for b in report.builds],
        "devices": [_device(d) for d in report.devices],
        "findings": [asdict(f) for f in report.findings],
        "problems": [asdict(p) for p in report.problems],
        "toolchains": [asdict(t) for t in report.toolchains],
    }
    value: dict[str, Any] = json.loads(json.dumps(found, allow_nan=False))  # tuples become lists
    return value


def render(report: Report) -> str:
    """As text."""
    return json.dumps(to_json(report), indent=1) + "\n"


def _row(row: Row) -> dict[str, Any]:
    return {
        "model": row.model,
        "target": row.target,
        "precision": row.precision,
        "artifact": row.label,
        "bytes": row.size,
        "metric": None if row.metric is None else asdict(row.metric),
        "changed_decisions": row.changed,
        "decisions": row.decisions,
        "measured": None if row.measured is None else _measured(row.measured),
        "limits": [asdict(limit) for limit in row.limits],
        "verdict": row.verdict,
        "reasons": list(row.reasons),
        "notes": list(row.notes),
        "times_count": row.times_count,
    }


def _measured(m: Measured) -> dict[str, Any]:
    kept = asdict(m)
    del kept["samples_ns"], kept["metric"], kept["changed"], kept["decisions"], kept["bytes"]
    return {**kept, "samples": m.samples}


def _build(build: Build) -> dict[str, Any]:
    return {**asdict(build), "ok": build.ok}


def _device(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "kind": device.kind,
        "emulated": device.emulated,
        "why_emulated": device.why_emulated,
        "facts": [{"name": n, "value": v} for n, v in device.facts],
        "conditions": [{"name": n, "value": v} for n, v in device.conditions],
        "moments": [asdict(m) for m in device.moments],
        "long_runs": [{"model": r.model, "artifact": r.label, **r.found.to_json()} for r in device.long_runs],
    }
