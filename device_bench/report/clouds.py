"""Latency distributions: the density, the samples behind it in the order they were taken, p50 and p95.

Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from device_bench.report.data import Row
from device_bench.report.marks import look
from device_bench.report.scale import Scale, fitting
from device_bench.report.svg import Frame, Safe, el, line, marker, number, picture, text, x_axis
from device_bench.report.text import milliseconds

WIDTH = 400.0
#: samples that are drawn of each row, at most.
DRAWN = 240
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


def clouds(rows: Sequence[Row], *, key: str, title: str) -> tuple[Safe, int, int] | None:
    """One row per artifact and setting, the fastest first.

    Returns:
        The picture, how many samples it draws, and of how many; None when there is nothing to draw.
    """
    found = sorted(
        ((m.p50_ms, row) for row in rows if (m := row.measured) and m.p50_ms is not None), key=lambda f: f[0]
    )
    if not found:
        return None
    everything = [s / 1e6 for _, row in found if row.measured for one in row.measured.samples_ns for s in one]
    x = fitting([max(min(everything), 1e-6), max(everything)], _LEFT + 6, _RIGHT - 6)
    bottom = _TOP + _ROW * len(found)
    frame = Frame(left=_LEFT, top=_TOP, right=_RIGHT, bottom=bottom)
    parts: list[str] = list(x_axis(frame, x, "latency, ms" + (", logarithmic" if x.log else "")))
    drawn = 0
    for place, (_, row) in enumerate(found):
        marks, count = _row(row, x, _TOP + _ROW * place)
        parts += marks
        drawn += count
    slowest, fastest = found[-1][1], found[0][1]
    description = (
        f"{len(found)} artifacts. Fastest by p50: {_said(fastest)}; slowest: {_said(slowest)}. "
        "All figures are in the decision table."
    )
    image = picture(WIDTH, bottom + 36, *parts, key=key, title=title, description=description)
    return image, drawn, len(everything)


def _said(row: Row) -> str:
    m = row.measured
    return f"{row.label} ({milliseconds(m.p50_ms if m else None, unit=True)})"


def _row(row: Row, x: Scale, top: float) -> tuple[list[Safe], int]:
    m = row.measured
    assert m is not None
    index = look(row.target)
    colour = f"c{index}" + (" emulated" if m.emulated else "")
    samples = [s for one in m.samples_ns for s in one]
    base = top + 14 + _CLOUD
    picked = chosen(samples)
    figures = f"{milliseconds(m.p50_ms)} / {milliseconds(m.p95_ms)} ms"
    room = 60 - len(figures)
    label = row.label if len(row.label) <= room else f"{row.label[: room - 1]}…"
    parts = [
        marker(index, _LEFT + 5, top + 8, 4, f"m c{index}" + (" hollow" if m.emulated else "")),
        text(_LEFT + 14, top + 12, label, kind="t label"),
        text(_RIGHT, top + 12, figures, kind="t label num", anchor="end"),
        _density(samples, x, base, f"cloud {colour}"),
        _strip(samples, picked, x, base + 2, f"strip {colour}"),
    ]
    if m.p50_ms is not None and m.p95_ms is not None:
        parts.append(line(x(m.p50_ms), base - _CLOUD + 2, x(m.p50_ms), base + _STRIP + 3, "p50"))
        parts.append(line(x(m.p95_ms), base - _CLOUD + 2, x(m.p95_ms), base + _STRIP + 3, "p95"))
    title = (
        f"{row.label}: p50 {milliseconds(m.p50_ms)}, p95 {milliseconds(m.p95_ms)} ms; {len(samples)} samples of "
        f"{m.repeats} repeats, {len(picked)} drawn, from {milliseconds(min(samples) / 1e6)} to "
        f"{milliseconds(max(samples) / 1e6)} ms"
    )
    hit = el("rect", el("title", title), x=0, y=top, width=WIDTH, height=_ROW, class_="hit")
    return [*parts, hit], len(picked)


def _density(samples: Sequence[int], x: Scale, base: float, kind: str) -> Safe:
    """A kernel density over pixels, from all samples; Silverman's width, no narrower than a pixel."""
    places = [x(s / 1e6) for s in samples]
    count = len(places)
    mean = sum(places) / count
    spread = math.sqrt(sum((p - mean) ** 2 for p in places) / count)
    ordered = sorted(places)
    quartiles = (ordered[(3 * count) // 4] - ordered[count // 4]) / 1.34
    width = max(0.9 * min(spread, quartiles or spread) * count**-0.2, 1.2)
    bins: dict[int, int] = {}
    for p in places:
        bins[round(p / _STEP)] = bins.get(round(p / _STEP), 0) + 1
    reach = math.ceil(3 * width / _STEP)
    heights: dict[int, float] = {}
    for at, number_of in bins.items():
        for k in range(-reach, reach + 1):
            heights[at + k] = heights.get(at + k, 0) + number_of * math.exp(-0.5 * (k * _STEP / width) ** 2)
    top = max(heights.values())
    runs: list[list[int]] = []
    for at in sorted(a for a, h in heights.items() if h / top > _FAINT):
        if runs and runs[-1][-1] == at - 1:
            runs[-1].append(at)
        else:
            runs.append([at])
    outlines = []
    for run in runs:
        inner = "L".join(f"{number(at * _STEP)},{number(base - (_CLOUD - 2) * heights[at] / top)}" for at in run)
        left, right = number(run[0] * _STEP), number(run[-1] * _STEP)
        outlines.append(f"M{left},{number(base)}L{inner}L{right},{number(base)}Z")
    return el("path", d="".join(outlines), class_=kind)


def _strip(samples: Sequence[int], picked: Sequence[int], x: Scale, top: float, kind: str) -> Safe:
    """The samples themselves; the first that was taken on top, so that a device that slows down shows as a slant."""
    step = _STRIP / max(len(samples) - 1, 1)
    dots = "".join(f"M{number(x(samples[i] / 1e6))},{number(top + step * i)}h0" for i in picked)
    return el("path", d=dots, class_=kind)
