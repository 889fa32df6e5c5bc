"""Whether two cells may be compared: what must be equal, and what is only worth a note. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from device_bench.store.rows import Cell, Measurement
from device_bench.store.text import plain

#: of a device: with another of these it is another device, whatever it is called.
_DEVICE = ("kind", "arch", "machine", "manufacturer", "model", "soc", "cores")
#: of the settings: what is measured. How long and how often only decides how exact it is.
_SETTINGS = ("threads", "affinity", "batch")
#: of ``details``: what decides which code runs, under the names that the harnesses give it.
_DETAILS = (
    *("provider", "adapter", "software_gpu", "threads_used", "cross_origin_isolated"),  # of a page
    *("device", "hint", "streams", "requests", "inference_precision", "execution_devices"),  # of OpenVINO
    "compute_units",  # of Core ML
)


def obstacles(a: Cell, b: Cell, *, other_device: bool) -> list[str]:
    """Why the two cannot be compared; empty when they can.

    Args:
        other_device: two devices are compared: that their facts differ is the point.
    """
    found = [*_one_sided(a, b)]
    emulated = next((m for m in (*a.measurements, *b.measurements) if m.emulated), None)
    if emulated is not None:
        found.append(f"times mean nothing on an emulated device: {plain(emulated.facts.device['why_emulated'])}")
    found += _differences(a, b, "runtime", lambda m: {"name": (m.facts.runtime or {}).get("name")})
    found += _differences(a, b, "settings", lambda m: {k: m.facts.settings.get(k) for k in _SETTINGS})
    found += _differences(a, b, "details", lambda m: {k: m.details.get(k) for k in _DETAILS})
    if not other_device:
        found += _differences(a, b, "device", lambda m: {k: m.facts.device.get(k) for k in _DEVICE})
        found += _differences(a, b, "conditions", lambda m: {"governors": list(m.facts.governors) or None})
    charging = [any("charging" in d for m in c.good for d in m.doubts) for c in (a, b)]
    if charging[0] != charging[1]:
        found.append(f"the device was charging in {'A' if charging[0] else 'B'} only")
    return list(dict.fromkeys(found))


def notes(a: Cell, b: Cell, *, other_device: bool) -> list[str]:
    """What else differs: often what the comparison is about."""
    found = []
    if not a.good or not b.good:
        return []
    one, two = a.good[0], b.good[0]
    if one.program != two.program:
        found.append("another program")
    elif one.artifact_sha256 != two.artifact_sha256:
        found.append("another artifact of the same program")
    names: list[tuple[str, Callable[[Measurement], Any]]] = [
        ("runtime", lambda m: (m.facts.runtime or {}).get("version")),
        ("browser", lambda m: m.details.get("browser")),
        ("harness", lambda m: ((m.facts.harness or {}).get("version") or "")[:12]),
    ]
    names += (
        []
        if other_device
        else [("OS", lambda m: m.facts.device.get("os")), ("serial", lambda m: m.facts.device.get("serial"))]
    )
    tools = sorted({*one.facts.toolchain, *two.facts.toolchain})
    names += [(tool, lambda m, t=tool: m.facts.toolchain.get(t)) for tool in tools]  # type: ignore[misc]
    for name, of in names:
        if of(one) != of(two):
            found.append(f"{plain(name, 40)} {_show(of(one))} → {_show(of(two))}")
    for name in ("warmup_runs", "warmup_seconds", "min_runs", "min_seconds", "max_seconds"):
        if one.facts.settings.get(name) != two.facts.settings.get(name):
            found.append(f"{name} {_show(one.facts.settings.get(name))} → {_show(two.facts.settings.get(name))}")
    if len(a.good) == 1 and len(b.good) == 1:
        found.append("one repeat on each side: how much runs differ is not in the interval")
    return found


def _one_sided(a: Cell, b: Cell) -> Iterator[str]:
    for name, cell in (("A", a), ("B", b)):
        if not cell.good:
            error = cell.measurements[0].error or {}
            yield f"it failed in {name}: {plain(error.get('code', 'unknown'), 40)}: {plain(error.get('message', ''))}"


def _differences(a: Cell, b: Cell, what: str, of: Callable[[Measurement], Mapping[str, Any]]) -> list[str]:
    sides = [_distinct(of(m) for m in cell.good) for cell in (a, b)]
    for name, side in zip("AB", sides, strict=True):
        if len(side) > 1:
            (one, two) = side[:2]
            return [f"the repeats of {name} differ in {what}: {', '.join(_pairs(one, two))}"]
    if not sides[0] or not sides[1]:
        return []
    return [f"{what}: {pair}" for pair in _pairs(sides[0][0], sides[1][0])]


def _distinct(values: Any) -> Sequence[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    return [f"{name} {_show(a[name])} → {_show(b[name])}" for name in a if a[name] != b[name]]


def _show(value: Any) -> str:
    return "none" if value in (None, "", []) else plain(value, 60)
