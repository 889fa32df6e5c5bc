"""Accuracy against cost, with the Pareto front. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from device_bench.report.data import Build, Metric, Row
from device_bench.report.marks import code, look, usual
from device_bench.report.pareto import front
from device_bench.report.scale import Scale, fitting, linear
from device_bench.report.svg import Frame, Safe, line, marker, picture, polyline, text, x_axis, y_axis
from device_bench.report.text import milliseconds, significant, size

WIDTH, HEIGHT = 400.0, 288.0
_FRAME = Frame(left=48, top=26, right=388, bottom=250)
#: where a label may stand beside its point: dx, dy, anchor
_PLACES = ((8, 4, "start"), (-8, 4, "end"), (0, -9, "middle"), (0, 17, "middle"), (7, -6, "start"), (-7, -6, "end"),
           (7, 14, "start"), (-7, 14, "end"))  # fmt: skip
Box = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class Dot:
    """One artifact: what it costs (ms or bytes) and what it is worth (its metric)."""

    cost: float
    worth: float
    target: str
    label: str
    title: str
    failed: bool = False
    believed: bool = True


def latency(rows: Sequence[Row], *, key: str, model: str, device: str, emulated: bool) -> Safe | None:
    """Metric against p95 on one device; None when no artifact of the model has both."""
    base = usual(rows)
    variants = [m.variant for r in base if (m := r.measured)]
    dots, metric, limit = [], None, None
    for row in base:
        m, found = row.measured, row.metric
        if m is None or m.p95_ms is None or found is None:
            continue
        metric = metric or found
        limit = limit or next((one.allowed for one in row.limits if one.name == "p95_ms"), None)
        extra = f" {m.variant}" if m.variant and m.variant != variants[0] else ""
        title = (
            f"{row.label}: {found.name} {found.value:.4f}, p95 {milliseconds(m.p95_ms, unit=True)}, "
            f"{size(row.size)}, {row.verdict or 'no budget'}" + ("" if row.times_sure else "; its time is in doubt")
        )
        dots.append(
            Dot(
                cost=m.p95_ms,
                worth=found.value,
                target=row.target,
                label=code(row.precision) + extra,
                title=title,
                failed=row.verdict == "FAIL",
                believed=row.times_sure and not emulated,
            )
        )
    if not dots or metric is None:
        return None
    return _plot(
        dots, metric, key=key, limit=limit, x_title="p95 latency, ms" + (" (emulated)" if emulated else ""),
        title=f"{model} on {device}: {metric.name} against p95 latency", unit="ms",
        without="Times were taken on an emulated CPU and mean nothing" if emulated else "No time here is sure",
    )  # fmt: skip


def sizes(builds: Sequence[Build], *, key: str, model: str) -> Safe | None:
    """Metric against size, for every artifact that was built; None when there is none."""
    good = [b for b in builds if b.ok and b.size and b.metric is not None]
    metric = next((b.metric for b in good), None)
    if metric is None:
        return None
    unit, scale = ("MB", 1e6) if max(b.size or 0 for b in good) >= 1e6 else ("kB", 1e3)
    dots = [
        Dot(
            cost=b.size / scale,
            worth=b.metric.value,
            target=b.target,
            label=code(b.precision),
            title=f"{b.label}: {b.metric.name} {b.metric.value:.4f}, {size(b.size)}",
        )
        for b in good
        if b.size and b.metric
    ]
    title = f"{model}: {metric.name} against size"
    return _plot(dots, metric, key=key, limit=None, x_title=f"size, {unit}", title=title, unit=unit)


def _plot(
    dots: Sequence[Dot], metric: Metric, *, key: str, limit: float | None, x_title: str, title: str, unit: str,
    without: str = "",
) -> Safe:  # fmt: skip
    x = fitting([d.cost for d in dots], _FRAME.left + 14, _FRAME.right - 14)
    y = _worth([*(d.worth for d in dots), metric.reference])
    sure = [i for i, d in enumerate(dots) if d.believed]
    best = [sure[i] for i in front([(dots[i].cost, dots[i].worth) for i in sure])]
    parts: list[str] = [
        *y_axis(_FRAME, y, metric.name),
        *x_axis(_FRAME, x, x_title + (", logarithmic" if x.log else "")),
        *_reference(y, metric.reference),
        *_budget(x, limit),
    ]
    if len(best) > 0:
        parts.append(polyline(_steps([dots[i] for i in best], x, y), "front"))
    # The front is drawn last, so that nothing hides it, and is labelled first, so that it finds room.
    order = [i for i in range(len(dots)) if i not in best] + best
    for i in order:
        d, index = dots[i], look(dots[i].target)
        kind = "hollow" if not d.believed else "best" if i in best else "other"
        parts.append(marker(index, x(d.cost), y(d.worth), 5, f"m c{index} {kind}", d.title))
        if d.failed:
            px, py = x(d.cost), y(d.worth)
            parts.append(line(px - 7, py + 7, px + 7, py - 7, "strike"))
    parts += _labels(dots, best, x, y)
    return picture(
        WIDTH, HEIGHT, *parts, key=key, title=title, description=_describe(dots, best, metric, unit, without)
    )


def _worth(values: Sequence[float]) -> Scale:
    """The axis of the metric; where all values are shares, it ends at 1."""
    y = linear(values, _FRAME.bottom - 8, _FRAME.top + 8, count=4)
    if y.high > 1 >= max(values):
        return replace(y, high=1.0, ticks=tuple(t for t in y.ticks if t <= 1 + 1e-9))
    return y


def _reference(y: Scale, value: float) -> list[Safe]:
    at = y(value)
    return [
        line(_FRAME.left, at, _FRAME.right, at, "reference"),
        text(_FRAME.right, _FRAME.top - 11, f"- - PyTorch {significant(value, 4)}", kind="t note", anchor="end"),
    ]


def _budget(x: Scale, limit: float | None) -> list[Safe]:
    if limit is None or not x.low <= limit <= x.high:
        return []
    return [
        line(x(limit), _FRAME.top, x(limit), _FRAME.bottom, "limit"),
        text(x(limit) - 4, _FRAME.bottom - 6, f"budget {significant(limit)}", kind="t note", anchor="end"),
    ]


def _steps(best: Sequence[Dot], x: Scale, y: Scale) -> list[tuple[float, float]]:
    """What can be had for a cost: it stays until the next point of the front."""
    points = [(x(best[0].cost), _FRAME.bottom)]
    for d in best:
        points += [(x(d.cost), points[-1][1]), (x(d.cost), y(d.worth))]
    return [*points, (_FRAME.right, points[-1][1])]


def _labels(dots: Sequence[Dot], best: Sequence[int], x: Scale, y: Scale) -> list[Safe]:
    """Labels where there is room; a point without room keeps its title."""
    taken: list[Box] = [(x(d.cost) - 5, y(d.worth) - 5, x(d.cost) + 5, y(d.worth) + 5) for d in dots]
    parts = []
    for i in [*best, *(i for i in range(len(dots)) if i not in best)]:
        d, width = dots[i], 6.6 * len(dots[i].label)
        for dx, dy, anchor in _PLACES:
            px, py = x(d.cost) + dx, y(d.worth) + dy
            left = px - (0 if anchor == "start" else width if anchor == "end" else width / 2)
            box = (left, py - 9, left + width, py + 1)
            inside = box[0] >= _FRAME.left and box[2] <= _FRAME.right + 8 and box[3] <= _FRAME.bottom
            if inside and not any(_meet(box, other) for other in taken):
                taken.append(box)
                parts.append(text(px, py, d.label, kind="t dot" + (" strong" if i in best else ""), anchor=anchor))
                break
    return parts


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _describe(dots: Sequence[Dot], best: Sequence[int], metric: Metric, unit: str, without: str) -> str:
    said = f"{len(dots)} artifacts; PyTorch reaches {metric.reference:.4f}."
    if not best:
        return f"{said} {without}, so there is no Pareto front."
    named = "; ".join(
        f"{dots[i].target} {dots[i].label} with {dots[i].worth:.4f} at {significant(dots[i].cost)} {unit}" for i in best
    )
    return f"{said} On the Pareto front: {named}."
