"""Between a checked measurement and a row of the index, and back. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from device_bench.advice import throttled
from device_bench.statistics import summarise
from device_bench.store.rows import Facts, Key, Measurement

_TEXTS = "run device model target precision variant started finished sha256 key program"
_WHOLE = "threads batch repeat ok emulated bytes samples decisions changed_decisions near_ties host_identical"
FIGURES = ("min_ms", "p50_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms", "mean_ms", "stdev_ms", "spread", "drift")
_REALS = ("load_ms", "first_ms", "peak_mb", *FIGURES, "per_second", "metric_value", "metric_reference", "max_abs_diff")
_OTHERS = ("metric_name", "error", "doubts", "warnings", "details")
#: column -> SQL type; ``path`` and ``facts`` come on top.
COLUMNS: dict[str, str] = {
    **dict.fromkeys(_TEXTS.split(), "TEXT NOT NULL"),
    **dict.fromkeys(_WHOLE.split(), "INTEGER"),
    **dict.fromkeys(_REALS, "REAL"),
    **dict.fromkeys(_OTHERS, "TEXT"),
}
KEY = ("model", "target", "precision", "device", "threads", "batch", "variant")
_KEY = tuple(list(COLUMNS).index(name) for name in KEY)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def facts_of(value: Mapping[str, Any]) -> str:
    """What many measurements have in common, as JSON that is equal for equal facts."""
    conditions = value.get("conditions") or {}
    return _text(
        {
            "device": value["device"],
            "settings": {k: v for k, v in value["settings"].items() if k not in ("seed", "position")},
            "toolchain": {k: str(v) for k, v in value["artifact"]["toolchain"].items()},
            "harness": value["harness"],
            "runtime": value.get("runtime"),
            "governors": sorted(set((conditions.get("before") or {}).get("governors") or ())),
            "clock": value.get("clock"),
        }
    )


def read_facts(text: str) -> Facts:
    """Back from :func:`facts_of`."""
    return Facts(**json.loads(text))


def to_row(run: str, value: Mapping[str, Any]) -> tuple[Any, ...]:
    """The columns of a checked measurement, in the order of :data:`COLUMNS`."""
    identity, artifact, ok = value["measurement"], value["artifact"], value["status"] == "ok"
    accuracy = (value.get("accuracy") or {}) if ok else {}
    metric = accuracy.get("metric") or {}
    host = (value.get("host") or {}) if ok else {}
    told = value["statistics"] if ok else {}
    figures = summarise(value["samples_ns"]).to_json() if ok else {}
    cells: dict[str, Any] = {
        "run": run,
        **{name: identity[name] for name in ("device", "model", "target", "precision", "threads", "repeat")},
        "batch": identity.get("batch") or 0,
        "variant": identity.get("variant") or "",
        "started": value["started"],
        "finished": value["finished"],
        "sha256": artifact["sha256"],
        "bytes": artifact["bytes"],
        "key": artifact["key"],
        "program": artifact["program"],
        "ok": int(ok),
        "emulated": int(value["emulated"]),
        "load_ms": value.get("load_ms") if ok else None,
        "first_ms": value.get("first_ms") if ok else None,
        "peak_mb": value["memory"]["peak_mb"] if ok else None,
        "samples": figures.get("samples", 0),
        **{name: figures.get(name) for name in FIGURES},
        "per_second": told.get("per_second"),
        "metric_name": metric.get("name"),
        "metric_value": metric.get("value"),
        "metric_reference": metric.get("reference"),
        **{name: accuracy.get(name) for name in ("max_abs_diff", "decisions", "changed_decisions", "near_ties")},
        "host_identical": None if "identical" not in host else int(host["identical"]),
        "error": _text(value["error"]) if value["error"] else None,
        "doubts": _text(doubts(value)),
        "warnings": _text(value["warnings"]),
        "details": _text(value.get("details") or {}),
    }
    return tuple(cells[name] for name in COLUMNS)


def doubts(value: Mapping[str, Any]) -> list[str]:
    """Why a measurement's times do not count, whatever they are: what the lab's verdict looks at in one repeat."""
    found = []
    if value["emulated"]:
        found.append(f"emulated: {value['device']['why_emulated']}")
    if value["status"] != "ok":
        return found
    conditions = value["conditions"]
    if conditions["gate"]["timed_out"]:
        found.append("the temperature gate timed out")
    if conditions["before"]["charging"]:
        found.append("the device was charging")
    if not value["emulated"]:
        harness = {"before": conditions["harness_before"], "after": conditions["harness_after"]}
        slow = throttled(harness, summarise(value["samples_ns"]))
        found += [f"throttled: {slow}"] if slow is not None else []
    return found


def key_of(row: Sequence[Any]) -> tuple[Any, ...]:
    """What :class:`Key` is made of, in its order."""
    return tuple(row[i] for i in _KEY)


def from_row(path: str, row: Sequence[Any], key: Key, facts: Facts) -> Measurement:
    """A measurement from its columns."""
    found = dict(zip(COLUMNS, row, strict=True))
    name = found["metric_name"]
    return Measurement(
        path=path,
        run=found["run"],
        key=key,
        repeat=found["repeat"],
        ok=bool(found["ok"]),
        error=None if found["error"] is None else json.loads(found["error"]),
        emulated=bool(found["emulated"]),
        started=found["started"],
        finished=found["finished"],
        artifact_sha256=found["sha256"],
        artifact_bytes=found["bytes"],
        artifact_key=found["key"],
        program=found["program"],
        load_ms=found["load_ms"],
        first_ms=found["first_ms"],
        peak_mb=found["peak_mb"],
        samples=found["samples"],
        min_ms=found["min_ms"],
        p50_ms=found["p50_ms"],
        p90_ms=found["p90_ms"],
        p95_ms=found["p95_ms"],
        p99_ms=found["p99_ms"],
        max_ms=found["max_ms"],
        mean_ms=found["mean_ms"],
        stdev_ms=found["stdev_ms"],
        spread=found["spread"],
        drift=found["drift"],
        per_second=found["per_second"],
        metric=None if name is None else (name, found["metric_value"], found["metric_reference"]),
        max_abs_diff=found["max_abs_diff"],
        decisions=found["decisions"],
        changed_decisions=found["changed_decisions"],
        near_ties=found["near_ties"],
        host_identical=None if found["host_identical"] is None else bool(found["host_identical"]),
        doubts=_parse(found["doubts"]),
        warnings=_parse(found["warnings"]),
        details={} if found["details"] == "{}" else json.loads(found["details"]),
        facts=facts,
    )


def _parse(text: str) -> tuple[Any, ...]:
    return () if text == "[]" else tuple(json.loads(text))
