"""Plots of one device: sweeps, long runs, temperature and clock. Standard library only."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from device_bench.report.clouds import chosen
from device_bench.report.data import LongRun, Moment, Row
from device_bench.report.scale import Scale, fitting, linear, logarithmic
from device_bench.report.svg import Frame, Safe, el, line, marker, number, picture, polyline, text, x_axis, y_axis
from device_bench.report.text import count, milliseconds, percent, significant
from device_bench.statistics import nearest_rank

WIDTH, HEIGHT = 400.0, 230.0
_FRAME = Frame(left=52, top=34, right=388, bottom=186)
#: samples of a long run that are drawn, at most.
_DOTS = 600
#: the axis of a long run ends at the largest sample, or at so many times its p99 when that is less.
_REACH = 1.4
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


def timeline(run: LongRun, *, key: str) -> Safe:
    """Samples and the median of each window over time, with the peak, the steady state and where throttling began."""
    found = run.found
    loop, total = found.seconds, max(sum(run.samples_ns), 1)
    picked = set(chosen(run.samples_ns, _DOTS))
    x = linear([0, loop], _FRAME.left, _FRAME.right, zero=True)
    x = Scale(low=0, high=loop, start=x.start, end=x.end, log=False, ticks=tuple(t for t in x.ticks if t <= loop))
    ordered = sorted(run.samples_ns)
    usual = max(nearest_rank(ordered, 99) / 1e6, *(w.p50_ms for w in found.windows))
    y = linear([0.0, min(ordered[-1] / 1e6, _REACH * usual)], _FRAME.bottom, _FRAME.top, zero=True, count=4)
    beyond = len(ordered) - bisect_right(ordered, y.high * 1e6)
    at, dots = 0, []
    for i, sample in enumerate(run.samples_ns):
        at += sample
        if i in picked:
            dots.append(f"M{number(x(at / total * loop))},{number(y(sample / 1e6))}h0")
    widths = [b.start_s - a.start_s for a, b in itertools.pairwise(found.windows)] or [loop]
    middle = [(x(w.start_s + min(widths) / 2), y(w.p50_ms)) for w in found.windows]
    parts = [
        *y_axis(_FRAME, y, "latency, ms"),
        *x_axis(_FRAME, x, "seconds into the loop"),
        el("path", d="".join(dots), class_="strip c0"),
        polyline(middle, "series c1"),
        *(line(_FRAME.left, y(s.p50_ms), _FRAME.right, y(s.p50_ms), "reference") for s in (found.peak, found.steady)),
    ]
    if found.throttled_at_s is not None:
        where = x(found.throttled_at_s)
        parts += [
            line(where, _FRAME.top, where, _FRAME.bottom, "limit"),
            text(where + 4, _FRAME.bottom - 6, f"throttled from {found.throttled_at_s:.0f} s", kind="t note"),
        ]
    name = f"{run.model} {run.label}: latency over {loop:.0f} s"
    said = f"{count(found.samples, 'sample')}, {len(picked)} drawn, {beyond} beyond the top. {summary(run)}"
    if beyond:
        parts.append(
            text(
                _FRAME.right,
                _FRAME.top - 11,
                f"▴ {count(beyond, 'sample')} beyond, up to {milliseconds(ordered[-1] / 1e6)} ms",
                kind="t note",
                anchor="end",
            )
        )
    return picture(WIDTH, HEIGHT, *parts, key=key, title=name, description=said)


def summary(run: LongRun) -> str:
    """A long run in one sentence."""
    found = run.found
    throttled = {True: f"throttled from {found.throttled_at_s or 0:.0f} s", False: "not throttled", None: "too short"}
    return (
        f"Peak p50 {milliseconds(found.peak.p50_ms, unit=True)}, steady state {milliseconds(found.steady.p50_ms)} ms "
        f"({percent(found.slowdown, sign=True)}): {throttled[found.throttled]}."
    )


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
