"""Latency distributions: the density, the samples behind it in the order they were taken, p50 and p95.

Standard library only.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from device_bench.report.data import Measured, Row
from device_bench.report.marks import look
from device_bench.report.scale import Scale, fitting
from device_bench.report.svg import Frame, Safe, el, line, marker, number, picture, text, x_axis
from device_bench.report.text import fitted, milliseconds
from device_bench.statistics import nearest_rank

WIDTH = 400.0
#: samples that are drawn of each row, at most.
DRAWN = 240
#: the axis ends at the largest sample, or at so many times the largest p99 when that is less.
REACH = 3.0
_ROW, _TOP, _LEFT, _RIGHT = 46.0, 8.0, 8.0, 392.0
_CLOUD, _STRIP = 14.0, 11.0
_STEP = 2.0
#: share of the density's peak below which it is not drawn: single samples show in the strip.
_FAINT = 0.02


def chosen(samples: Sequence[int], most: int = DRAWN) -> list[int]:
    """Indices of the samples to draw, ascending: by even steps of rank, so that the shape stays; with both extremes."""
    count = len(samples)
    if count <= most:
        return list(range(count))
    ranked = sorted(range(count), key=lambda i: samples[i])
    return sorted({ranked[round(k * (count - 1) / (most - 1))] for k in range(most)})


@dataclass(frozen=True, kw_only=True)
class Clouds:
    """The picture, and how many samples it draws, of how many; how many lie beyond its right edge, and the largest."""

    image: Safe
    drawn: int
    total: int
    beyond: int
    largest_ms: float


def clouds(rows: Sequence[Row], *, key: str, title: str) -> Clouds | None:
    """One line per artifact and setting, the fastest first; None when there is nothing to draw.

    One sample that was interrupted for long must not squeeze all others into a corner: the axis ends where
    :data:`REACH` says, and what lies beyond stands at its edge, marked.
    """
    found = sorted(
        ((m.p50_ms, row, m) for row in rows if (m := row.measured) and m.p50_ms is not None), key=lambda f: f[0]
    )
    if not found:
        return None
    ordered = [sorted(s for one in m.samples_ns for s in one) for _, _, m in found]
    low = max(min(o[0] for o in ordered) / 1e6, 1e-6)
    largest = max(o[-1] for o in ordered) / 1e6
    high = min(largest, REACH * max(nearest_rank(o, 99) for o in ordered) / 1e6)
    x = fitting([low, high], _LEFT + 6, _RIGHT - 12)
    bottom = _TOP + _ROW * len(found)
    frame = Frame(left=_LEFT, top=_TOP, right=_RIGHT, bottom=bottom)
    parts: list[str] = list(x_axis(frame, x, "latency, ms" + (", logarithmic" if x.log else "")))
    drawn = beyond = 0
    for place, ((_, row, m), values) in enumerate(zip(found, ordered, strict=True)):
        marks, count, over = _row(row, m, values, x, _TOP + _ROW * place)
        parts += marks
        drawn, beyond = drawn + count, beyond + over
    slowest, fastest = found[-1], found[0]
    description = (
        f"{len(found)} artifacts. Fastest by p50: {fastest[1].label} ({milliseconds(fastest[0], unit=True)}); "
        f"slowest: {slowest[1].label} ({milliseconds(slowest[0], unit=True)}). All figures are in the decision table."
    )
    return Clouds(
        image=picture(WIDTH, bottom + 36, *parts, key=key, title=title, description=description),
        drawn=drawn,
        total=sum(map(len, ordered)),
        beyond=beyond,
        largest_ms=largest,
    )


def _row(row: Row, m: Measured, ordered: Sequence[int], x: Scale, top: float) -> tuple[list[Safe], int, int]:
    """Its marks, how many samples they draw, and how many lie beyond the edge."""
    index = look(row.target)
    colour = f"c{index}" + (" emulated" if m.emulated else "")
    samples = [s for one in m.samples_ns for s in one]
    base = top + 14 + _CLOUD
    picked = chosen(samples)
    over = len(ordered) - bisect_right(ordered, x.high * 1e6)
    figures = f"{milliseconds(m.p50_ms)} / {milliseconds(m.p95_ms)} ms"
    label = fitted(row.label, 62 - len(figures))
    parts = [
        marker(index, _LEFT + 5, top + 8, 4, f"m c{index}" + (" hollow" if m.emulated else "")),
        text(_LEFT + 14, top + 12, label, kind="t label"),
        text(_RIGHT, top + 12, figures, kind="t label num", anchor="end"),
        _density(ordered, x, base, f"cloud {colour}"),
        _strip(samples, picked, x, base + 2, f"strip {colour}"),
    ]
    for figure, kind in ((m.p50_ms, "p50"), (m.p95_ms, "p95")):
        if figure is not None:
            parts.append(line(x(figure), base - _CLOUD + 2, x(figure), base + _STRIP + 3, kind))
    if over:
        edge, middle = _RIGHT - 6, base + 2 + _STRIP / 2
        d = f"M{number(edge)},{number(middle - 4)}l5,4l-5,4z"
        parts.append(el("path", d=d, class_=f"m c{index}"))
    title = (
        f"{row.label}: p50 {milliseconds(m.p50_ms)}, p95 {milliseconds(m.p95_ms)} ms; {len(samples)} samples of "
        f"{m.repeats} repeats, {len(picked)} drawn, from {milliseconds(ordered[0] / 1e6)} to "
        f"{milliseconds(ordered[-1] / 1e6)} ms" + (f", {over} beyond the edge" if over else "")
    )
    hit = el("rect", el("title", title), x=0, y=top, width=WIDTH, height=_ROW, class_="hit")
    return [*parts, hit], len(picked), over


def _density(ordered: Sequence[int], x: Scale, base: float, kind: str) -> Safe:
    """A kernel density over pixels, from all samples on the axis; Silverman's width, from the quartiles."""
    count = len(ordered)
    quartiles = x(ordered[(3 * count) // 4] / 1e6) - x(ordered[count // 4] / 1e6)
    width = max(0.9 * quartiles / 1.34 * count**-0.2, _STEP * 0.6)
    edges = [x.start + _STEP * i for i in range(math.ceil((x.end - x.start) / _STEP) + 1)]
    below = [bisect_right(ordered, x.value(edge) * 1e6) for edge in edges]
    reach = math.ceil(3 * width / _STEP)
    heights: dict[int, float] = {}
    for at, (before, after) in enumerate(itertools.pairwise(below)):
        for k in range(-reach, reach + 1) if after > before else ():
            bell = (after - before) * math.exp(-0.5 * (k * _STEP / width) ** 2)
            heights[at + k] = heights.get(at + k, 0) + bell
    top = max(heights.values(), default=1.0)
    runs: list[list[int]] = []
    for at in sorted(a for a, h in heights.items() if h / top > _FAINT):
        if runs and runs[-1][-1] == at - 1:
            runs[-1].append(at)
        else:
            runs.append([at])
    outlines = []
    for run in runs:
        points = [(x.start + (at + 0.5) * _STEP, base - (_CLOUD - 2) * heights[at] / top) for at in run]
        inner = "L".join(f"{number(px)},{number(py)}" for px, py in points)
        outlines.append(f"M{number(points[0][0])},{number(base)}L{inner}L{number(points[-1][0])},{number(base)}Z")
    return el("path", d="".join(outlines), class_=kind)


def _strip(samples: Sequence[int], picked: Sequence[int], x: Scale, top: float, kind: str) -> Safe:
    """The samples themselves; the first that was taken on top, so that a device that slows down shows as a slant."""
    step = _STRIP / max(len(samples) - 1, 1)
    dots = "".join(f"M{number(x(samples[i] / 1e6))},{number(top + step * i)}h0" for i in picked)
    return el("path", d=dots, class_=kind)
