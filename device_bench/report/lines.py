"""Plots of one device: sweeps, long runs, temperature and clock. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from device_bench.report.data import Moment, Row
from device_bench.report.scale import Scale, fitting, linear, logarithmic
from device_bench.report.svg import Frame, Safe, el, line, marker, number, picture, polyline, text, x_axis, y_axis
from device_bench.report.text import count, milliseconds, significant
from device_bench.statistics import nearest_rank

WIDTH, HEIGHT = 400.0, 230.0
_FRAME = Frame(left=52, top=34, right=388, bottom=186)
#: a loop that lasts so long is drawn over time.
LONG_SECONDS = 60.0
_WINDOWS = 60
_SERIES = 6


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One artifact at several settings on one device.

    Attributes:
        axis: ``batch`` or ``threads``, what the lines run over; each line is one value of the other.
    """

    label: str
    model: str
    axis: str
    rows: tuple[Row, ...]


def sweeps(rows: Sequence[Row]) -> list[Sweep]:
    """Every artifact of these rows that was measured at several settings."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row.measured and row.measured.p95_ms is not None:
            name = (row.model, row.target, row.precision, row.measured.variant)
            groups.setdefault(name, []).append(row)
    found = []
    for (model, target, precision, variant), points in groups.items():
        for axis, other in (("batch", "threads"), ("threads", "batch")):
            # A call whose batch nobody chose belongs to no sweep of batches.
            kept = [p for p in points if axis == "threads" or _at(p, "batch") is not None]
            lines = {_at(p, other): {_at(q, axis) for q in kept if _at(q, other) == _at(p, other)} for p in kept}
            kept = [p for p in kept if len(lines[_at(p, other)]) > 1]
            if kept:
                label = f"{target} {precision}" + (f", {variant}" if variant else "")
                found.append(Sweep(label=label, model=model, axis=axis, rows=tuple(kept)))
                break
    return found


def _at(row: Row, axis: str) -> int | None:
    assert row.measured is not None
    return row.measured.batch if axis == "batch" else row.measured.threads


def sweep(one: Sweep, *, key: str, figure: str) -> Safe | None:
    """``p95_ms`` or ``per_second`` over the sweep's axis; None when it is not known."""
    other = "threads" if one.axis == "batch" else "batch"
    lines: dict[int | None, list[tuple[int, float]]] = {}
    for row in one.rows:
        value = getattr(row.measured, figure)
        at = _at(row, one.axis)
        if value is not None and value > 0 and at is not None:
            lines.setdefault(_at(row, other), []).append((at, value))
    if not lines:
        return None
    values = [v for points in lines.values() for _, v in points]
    places = sorted({p for points in lines.values() for p, _ in points})
    x = _steps(places, _FRAME.left + 14, _FRAME.right - 62)
    y = fitting(values, _FRAME.bottom, _FRAME.top)
    title = "p95 latency, ms" if figure == "p95_ms" else "examples per second"
    parts: list[str] = [*y_axis(_FRAME, y, title + (", logarithmic" if y.log else "")), *x_axis(_FRAME, x, one.axis)]
    ends: list[float] = []
    for index, (one_of, points) in enumerate(sorted(lines.items(), key=lambda item: item[0] or 0)):
        name = _series(other, one_of)
        shown = [(x(p), y(v)) for p, v in sorted(points)]
        kind = f"c{index % _SERIES}"
        parts.append(polyline(shown, f"series {kind} d{index % _SERIES}"))
        parts += [
            marker(
                index % _SERIES, px, py, 3.6, f"m {kind}", f"{one.axis} {p}, {_series(other, value)}: {significant(v)}"
            )
            for (px, py), (p, v) in zip(shown, sorted(points), strict=True)
        ]
        end = shown[-1][1] + 4
        while any(abs(end - e) < 12 for e in ends):
            end += 12 if end < (_FRAME.top + _FRAME.bottom) / 2 else -12
        ends.append(end)
        parts.append(text(shown[-1][0] + 8, end, name, kind="t dot strong"))
    whole = f"{one.model} {one.label}: {title} over {one.axis}"
    best = min(values) if figure == "p95_ms" else max(values)
    said = f"{count(len(values), 'point')}; {'least' if figure == 'p95_ms' else 'most'} {significant(best)}."
    return picture(WIDTH, HEIGHT, *parts, key=key, title=whole, description=said)


def _series(other: str, value: int | None) -> str:
    if other == "threads":
        return f"{value} thread" + ("" if value == 1 else "s")
    return "own batch" if value is None else f"batch {value}"


def _steps(places: Sequence[int], start: float, end: float) -> Scale:
    """A logarithmic scale that marks exactly the settings that were tried."""
    scale = logarithmic([float(p) for p in places], start, end)
    return Scale(low=places[0], high=places[-1], start=scale.start, end=scale.end, log=True,
                 ticks=tuple(map(float, places)))  # fmt: skip


def long_runs(rows: Sequence[Row]) -> list[tuple[Row, tuple[int, ...]]]:
    """Timed loops of a minute or more."""
    return [
        (row, samples)
        for row in rows
        if row.measured
        for samples in row.measured.samples_ns
        if sum(samples) >= LONG_SECONDS * 1e9
    ]


def timeline(row: Row, samples: Sequence[int], *, key: str) -> Safe:
    """p50 and p95 of windows of equal length over a long loop. Requests are taken to follow each other."""
    total = sum(samples) / 1e9
    windows: list[list[int]] = [[] for _ in range(_WINDOWS)]
    at = 0.0
    for s in samples:
        windows[min(int(at / total * _WINDOWS), _WINDOWS - 1)].append(s)
        at += s / 1e9
    kept = [(total * (i + 0.5) / _WINDOWS, sorted(w)) for i, w in enumerate(windows) if w]
    middle = [(t, nearest_rank(w, 50) / 1e6) for t, w in kept]
    tail = [(t, nearest_rank(w, 95) / 1e6) for t, w in kept]
    x = linear([0, total], _FRAME.left, _FRAME.right, zero=True)
    x = Scale(low=0, high=total, start=x.start, end=x.end, log=False, ticks=tuple(t for t in x.ticks if t <= total))
    y = linear([0.0, *(v for _, v in tail)], _FRAME.bottom, _FRAME.top, zero=True, count=4)
    band = [(x(t), y(v)) for t, v in tail] + [(x(t), y(v)) for t, v in reversed(middle)]
    d = "M" + "L".join(f"{number(px)},{number(py)}" for px, py in band) + "Z"
    name = f"{row.model} {row.label}: latency over {total:.0f} s"
    said = (
        f"{count(len(samples), 'sample')}, in windows of {total / _WINDOWS:.1f} s. p50 begins at "
        f"{milliseconds(middle[0][1], unit=True)} and ends at {milliseconds(middle[-1][1], unit=True)}."
    )
    parts = [
        *y_axis(_FRAME, y, "latency, ms: line p50, band up to p95"),
        *x_axis(_FRAME, x, "seconds into the loop"),
        el("path", d=d, class_="band c0"),
        polyline([(x(t), y(v)) for t, v in middle], "series c0 d0"),
    ]
    return picture(WIDTH, HEIGHT, *parts, key=key, title=name, description=said)


def conditions(moments: Sequence[Moment], *, key: str, device: str) -> list[tuple[str, Safe]]:
    """Temperature and clock over the order of measuring, where a device tells them."""
    found = []
    for figure, title, before, after in (
        ("temperature", "°C", lambda m: m.celsius_before, lambda m: m.celsius_after),
        ("clock", "fastest core, MHz", lambda m: m.mhz_before, lambda m: m.mhz_after),
    ):
        image = _over_order(moments, before, after, key=f"{key}-{figure}", title=title, name=f"{device}: {figure}")
        found += [(f"{figure}, measurement by measurement", image)] if image is not None else []
    return found


def _over_order(
    moments: Sequence[Moment],
    before: Callable[[Moment], float | None],
    after: Callable[[Moment], float | None],
    *,
    key: str,
    title: str,
    name: str,
) -> Safe | None:
    known = [
        (i, b, a) for i, m in enumerate(moments, 1) if (b := before(m)) is not None and (a := after(m)) is not None
    ]
    if len(known) < 2 or len({v for _, b, a in known for v in (b, a)}) < 2:
        return None
    values = [v for _, b, a in known for v in (b, a)]
    x = linear([1, len(moments)], _FRAME.left + 6, _FRAME.right - 6)
    y = linear(values, _FRAME.bottom, _FRAME.top, count=4)
    bars = "".join(f"M{number(x(i))},{number(y(b))}V{number(y(a))}" for i, b, a in known)
    ends = "".join(f"M{number(x(i))},{number(y(a))}h0" for i, _, a in known)
    parts = [
        *y_axis(_FRAME, y, f"{title}: from before to after (dot)"),
        *x_axis(_FRAME, x, "measurement, in the order taken"),
        line(_FRAME.left, _FRAME.bottom, _FRAME.right, _FRAME.bottom, "axis"),
        el("path", d=bars, class_="stem c0"),
        el("path", d=ends, class_="ends c0"),
    ]
    said = f"{count(len(known), 'measurement')}, from {significant(min(values))} to {significant(max(values))}."
    return picture(WIDTH, HEIGHT, *parts, key=key, title=name, description=said)
