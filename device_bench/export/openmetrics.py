"""OpenMetrics text (version 1.0.0), which Prometheus reads too: the newest run of each cell. Standard library only."""

from __future__ import annotations

import calendar
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from device_bench.store import Cell, Measurement, plain

_LONGEST = 1000
_QUANTILES = {"0.5": "p50_ms", "0.9": "p90_ms", "0.95": "p95_ms", "0.99": "p99_ms"}
Labels = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Gauge:
    """A figure of a cell; None: the cell has none."""

    name: str
    unit: str
    help: str
    of: Callable[[Cell], float | None]


def _worst(cell: Cell, name: str, factor: float = 1.0) -> float | None:
    values = [getattr(m, name) for m in cell.good if getattr(m, name) is not None]
    return max(values) * factor if values else None


GAUGES = (
    Gauge(name="load_seconds", unit="seconds", help="Loading the artifact", of=lambda c: _worst(c, "load_ms", 1e-3)),
    Gauge(
        name="first_inference_seconds", unit="seconds", help="First inference", of=lambda c: _worst(c, "first_ms", 1e-3)
    ),
    Gauge(name="peak_memory_bytes", unit="bytes", help="Peak memory", of=lambda c: _worst(c, "peak_mb", 2**20)),
    Gauge(
        name="artifact_bytes", unit="bytes", help="Size of the artifact", of=lambda c: c.measurements[0].artifact_bytes
    ),
    Gauge(
        name="inferences_per_second",
        unit="",
        help="Inferences per second, the batch counted",
        of=lambda c: min((m.per_second for m in c.good if m.per_second is not None), default=None),
    ),
    Gauge(
        name="changed_decisions",
        unit="",
        help="Decisions that differ from PyTorch's, ties not counted",
        of=lambda c: c.changed_decisions,
    ),
    Gauge(name="emulated", unit="", help="1 where times mean nothing", of=lambda c: float(c.emulated)),
    Gauge(name="failed_repeats", unit="", help="Repeats that failed", of=lambda c: len(c.measurements) - len(c.good)),
    Gauge(
        name="measured_timestamp_seconds",
        unit="seconds",
        help="When the last repeat ended",
        of=lambda c: max(_time(m) for m in c.measurements),
    ),
)


def to_openmetrics(cells: Sequence[Cell]) -> str:
    """One series per cell and figure. Of several repeats the worst counts, as in the lab's own table."""
    lines = [*_family("inference_seconds", "summary", "seconds", "Time of an inference, the worst of the repeats")]
    for cell in cells:
        lines += _summary(cell)
    for gauge in GAUGES:
        lines += _family(gauge.name, "gauge", gauge.unit, gauge.help)
        for cell in cells:
            value = gauge.of(cell)
            if value is not None:
                lines.append(_sample(gauge.name, _labels(cell), value))
    lines += _family("task_metric", "gauge", "", "The task's metric on the device's outputs")
    for cell in cells:
        if cell.metric is not None:
            lines.append(_sample("task_metric", {**_labels(cell), "metric": cell.metric[0]}, cell.metric[1]))
    lines += _family("result", "info", "", "What was measured")
    for cell in cells:
        first = cell.measurements[0]
        facts = {"run": cell.run, "artifact_sha256": first.artifact_sha256, "program": first.program}
        runtime = (first.facts.runtime or {}).get("version", "")
        lines.append(_sample("result_info", {**_labels(cell), **facts, "runtime_version": runtime}, 1))
    return "\n".join([*lines, "# EOF"]) + "\n"


def _family(name: str, kind: str, unit: str, text: str) -> Iterable[str]:
    yield f"# TYPE edgeport_{name} {kind}"
    if unit:
        yield f"# UNIT edgeport_{name} {unit}"
    yield f"# HELP edgeport_{name} {text}."


def _summary(cell: Cell) -> list[str]:
    if not cell.good:
        return []
    labels = _labels(cell)
    lines = []
    for quantile, name in _QUANTILES.items():
        value = _worst(cell, name, 1e-3)
        if value is not None:
            lines.append(_sample("inference_seconds", {**labels, "quantile": quantile}, value))
    total = sum((m.mean_ms or 0.0) * m.samples for m in cell.good) / 1e3
    lines.append(_sample("inference_seconds_count", labels, sum(m.samples for m in cell.good)))
    lines.append(_sample("inference_seconds_sum", labels, total))
    return lines


def _labels(cell: Cell) -> Labels:
    key = cell.key
    return {
        "model": key.model,
        "target": key.target,
        "precision": key.precision,
        "device": key.device,
        "threads": str(key.threads),
        "batch": str(key.batch or ""),
        "variant": key.variant,
    }


def _sample(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{k}="{_escape(v)}"' for k, v in labels.items())
    return f"edgeport_{name}{{{inside}}} {value!r}"


def _escape(value: str) -> str:
    return plain(value, _LONGEST).replace("\\", "\\\\").replace('"', '\\"')


def _time(measurement: Measurement) -> float:
    return float(calendar.timegm(time.strptime(measurement.finished, "%Y-%m-%dT%H:%M:%SZ")))
