"""Between a checked measurement and a row of the index, and back. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from device_bench.advice import throttled
from device_bench.statistics import summarise
from device_bench.store.rows import Facts, Key, Measurement

KEY = ("model", "target", "precision", "device", "threads", "batch", "variant")
FIGURES = ("min_ms", "p50_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms", "mean_ms", "stdev_ms", "spread", "drift")
_TEXT, _WHOLE, _REAL = "TEXT", "INTEGER", "REAL"
#: column -> SQL type, in the order of a Measurement's fields; ``path`` and ``facts`` come on top.
COLUMNS: dict[str, str] = {
    "run": _TEXT,
    **dict.fromkeys(KEY, _TEXT),
    **dict.fromkeys(("threads", "batch", "repeat", "ok"), _WHOLE),
    "error": _TEXT,
    "emulated": _WHOLE,
    **dict.fromkeys(("started", "finished", "sha256"), _TEXT),
    "bytes": _WHOLE,
    **dict.fromkeys(("key", "program"), _TEXT),
    **dict.fromkeys(("load_ms", "first_ms", "peak_mb"), _REAL),
    "samples": _WHOLE,
    **dict.fromkeys((*FIGURES, "per_second"), _REAL),
    "metric_name": _TEXT,
    **dict.fromkeys(("metric_value", "metric_reference", "max_abs_diff"), _REAL),
    **dict.fromkeys(("decisions", "changed_decisions", "near_ties", "host_identical"), _WHOLE),
    **dict.fromkeys(("doubts", "warnings", "details"), _TEXT),
}
_AT = {name: i for i, name in enumerate(COLUMNS)}
_KEY = slice(_AT["model"], _AT["variant"] + 1)
_PLAIN = slice(_AT["started"], _AT["metric_name"])
_AT_REPEAT = _AT["repeat"]
_OTHERS = tuple(
    _AT[name]
    for name in (
        *("ok", "error", "emulated", "metric_name", "metric_value", "metric_reference"),
        *("host_identical", "doubts", "warnings", "details"),
    )
)
_COUNTS = slice(_AT["max_abs_diff"], _AT["host_identical"])


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
    return tuple(row[_KEY])


def from_row(path: str, row: Sequence[Any], key: Key, facts: Facts) -> Measurement:
    """A measurement from its columns. They are in the order of its fields: a hundred thousand are made at once."""
    ok, error, emulated, metric, value, reference, identical, doubts, warnings, details = (row[i] for i in _OTHERS)
    return Measurement._make(
        (
            path,
            row[0],
            key,
            row[_AT_REPEAT],
            bool(ok),
            None if error is None else json.loads(error),
            bool(emulated),
            *row[_PLAIN],
            None if metric is None else (metric, value, reference),
            *row[_COUNTS],
            None if identical is None else bool(identical),
            _parse(doubts),
            _parse(warnings),
            {} if details == "{}" else json.loads(details),
            facts,
        )
    )


def _parse(text: str) -> tuple[Any, ...]:
    return () if text == "[]" else tuple(json.loads(text))
