"""Devices as the report shows them: what they say of themselves, and how they were doing. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from device_bench.report.data import Device, LongRun, Moment, Row
from device_bench.report.measured import Stored
from device_bench.report.text import NAME_LIMIT, clean, message
from device_bench.sustained import analyse

_FACTS = (
    ("kind", "reached by"),
    ("manufacturer", "maker"),
    ("model", "model"),
    ("soc", "SoC"),
    ("os", "system"),
    ("abi", "ABI"),
    ("machine", "machine"),
    ("arch", "harness"),
    ("serial", "serial"),
)
#: scalars of ``details`` that are listed.
_DETAILS = 12


def device_of(name: str, stored: Sequence[Stored], lasting: Sequence[Stored], rows: Sequence[Row]) -> Device:
    """One device, from the measurements that are shown of it (the newest tells the facts).

    Args:
        lasting: its long runs.
    """
    ordered = sorted(stored, key=lambda o: (o.value["started"], o.value["settings"]["position"], o.path))
    newest = ordered[-1].value
    good = [o for o in ordered if o.value["status"] == "ok"]
    return Device(
        name=clean(name),
        kind=clean(newest["device"]["kind"]),
        emulated=any(o.value["emulated"] for o in ordered),
        why_emulated=message(next((v for o in ordered if (v := o.value["device"]["why_emulated"])), "")),
        facts=tuple(_facts(newest, [o.value for o in good])),
        conditions=tuple(_conditions([o.value for o in good])),
        moments=tuple(_moment(o) for o in good),
        rows=tuple(rows),
        long_runs=tuple(_long_run(o) for o in lasting if o.value["status"] == "ok" and not o.value["emulated"]),
    )


def _facts(newest: Mapping[str, Any], good: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    facts = newest["device"]
    found = [(label, clean(facts[name], 120)) for name, label in _FACTS if facts[name]]
    if facts["cores"]:
        found.append(("cores", str(facts["cores"])))
    if facts["memory_mb"]:
        found.append(("memory", f"{facts['memory_mb'] / 1024:.1f} GiB"))
    cpu = next((m for v in good if (m := v["cpu"]["models"])), ())
    found += [("CPU", clean(", ".join(dict.fromkeys(map(str, cpu))), 120))] if cpu else []
    found += _listed("kernel", (v["cpu"]["kernel"] for v in good))
    found += _listed("runtime", (f"{v['runtime']['name']} {v['runtime']['version']}" for v in good))
    found += _listed("harness version", (v["harness"]["version"] for v in good if v["harness"]))
    found += _listed("clock", (v["clock"] for v in good))
    details: dict[str, set[str]] = {}
    for value in good:
        for name, one in (value.get("details") or {}).items():
            if one is not None and not isinstance(one, float):
                details.setdefault(clean(name), set()).add(clean(one, 160))
    # What differs from measurement to measurement is no fact of the device.
    return found + [(k, next(iter(v))) for k, v in sorted(details.items()) if len(v) == 1][:_DETAILS]


def _listed(label: str, values: Iterable[Any]) -> list[tuple[str, str]]:
    distinct = list(dict.fromkeys(clean(v) for v in values if v))
    return [(label, ", ".join(distinct[:8]))] if distinct else []


def _range(label: str, values: Iterable[float | None], unit: str) -> list[tuple[str, str]]:
    known = [v for v in values if v is not None]
    if not known:
        return []
    low, high = min(known), max(known)
    text = f"{low:.4g}" if f"{low:.4g}" == f"{high:.4g}" else f"{low:.4g} to {high:.4g}"
    return [(label, f"{text} {unit}".rstrip())]


def _conditions(good: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    if not good:
        return []
    sides = [v["conditions"][side] for v in good for side in ("before", "after")]
    gates = [v["conditions"]["gate"] for v in good]
    sensors = [s["sensor"] for s in sides if s["sensor"]]
    found = _range("temperature", (s["celsius"] for s in sides), "°C") or [("temperature", "no sensor")]
    found += _listed("sensor", sensors)
    found += _range("gate opens at", (g["limit"] for g in gates), "°C")
    if any(g["limit"] is not None for g in gates):
        waited = sum(g["waited_seconds"] for g in gates)
        found.append(("waited to cool", f"{waited:.0f} s in all, timed out {sum(g['timed_out'] for g in gates)} times"))
    found += _range("battery", (s["battery_percent"] for s in sides), "%")
    charging = {s["charging"] for s in sides if s["charging"] is not None}
    found += [("charging", " and ".join("yes" if c else "no" for c in sorted(charging)))] if charging else []
    found += _listed("governor", (g for s in sides for g in s["governors"]))
    found += _range("load before", (v["conditions"]["before"]["load1"] for v in good), "")
    found += _range("threads asked for", (v["settings"]["threads"] for v in good), "")
    retried = sum(v["attempts"] > 1 for v in good)
    return found + [("taken again after a lost connection", f"{retried} of {len(good)}")] * bool(retried)


def _moment(one: Stored) -> Moment:
    value = one.value
    before, after = value["conditions"]["before"], value["conditions"]["after"]
    return Moment(
        label=f"{one.label}, repeat {value['measurement']['repeat']}",
        started=clean(value["started"]),
        celsius_before=before["celsius"],
        celsius_after=after["celsius"],
        mhz_before=_mhz(value["conditions"]["harness_before"]),
        mhz_after=_mhz(value["conditions"]["harness_after"]),
    )


def _long_run(one: Stored) -> LongRun:
    value = one.value
    return LongRun(
        model=clean(one.key.model),
        label=clean(f"{one.key.target} {one.key.precision}, {one.key.settings}", 2 * NAME_LIMIT),
        samples_ns=tuple(value["samples_ns"]),
        found=analyse(value["samples_ns"], loop_ns=value["loop_ns"]),
    )


def _mhz(side: Mapping[str, Any]) -> float | None:
    return max((c["khz"] / 1000 for c in side["cpus"]), default=None)
