"""What stands out on each device: what passes its budget fastest and smallest, and the Pareto fronts."""

from __future__ import annotations

from dataclasses import dataclass

from device_bench.report.data import Report, Row
from device_bench.report.marks import usual
from device_bench.report.pareto import front


@dataclass(frozen=True, kw_only=True)
class Best:
    """One model on one device.

    Attributes:
        passing, judged: rows that pass, of those with a budget.
        fastest: of those that pass, and whose times count; None when there is none.
        smallest: None when none passes.
    """

    model: str
    device: str
    emulated: bool
    passing: int
    judged: int
    fastest: Row | None
    smallest: Row | None


def best(report: Report) -> list[Best]:
    """Every model on every device that a budget applies to."""
    found = []
    for model in report.models:
        for device in report.devices:
            judged = [r for r in device.rows if r.model == model and r.verdict is not None]
            good = [r for r in judged if r.verdict == "PASS"]
            if judged:
                fastest = min((r for r in good if r.times_count), key=_speed, default=None)
                found.append(
                    Best(
                        model=model,
                        device=device.name,
                        emulated=device.emulated,
                        passing=len(good),
                        judged=len(judged),
                        fastest=fastest,
                        smallest=min(good, key=lambda r: (r.size or 0, *_speed(r)), default=None),
                    )
                )
    return found


def _speed(row: Row) -> tuple[float, int]:
    m = row.measured
    return (m.p95_ms if m and m.p95_ms is not None else float("inf"), row.size or 0)


@dataclass(frozen=True, kw_only=True)
class Front:
    """The Pareto front of one model on one device: rows by ascending p95."""

    model: str
    device: str
    rows: tuple[Row, ...]


def fronts(report: Report) -> list[Front]:
    """Of every model on every real device, where the metric is known and the latency is sure."""
    found = []
    for model in report.models:
        for device in report.devices:
            rows = [r for r in usual([r for r in device.rows if r.model == model]) if r.metric and r.times_sure]
            points = [(_speed(r)[0], r.metric.value if r.metric else 0.0) for r in rows]
            if rows and not device.emulated:
                found.append(Front(model=model, device=device.name, rows=tuple(rows[i] for i in front(points))))
    return found
