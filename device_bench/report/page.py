"""The report as one HTML file: nothing is loaded from anywhere, and nothing runs but the script written here."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from device_bench.report import text
from device_bench.report.bars import shares
from device_bench.report.best import best
from device_bench.report.clouds import DRAWN, clouds
from device_bench.report.data import Build, Device, Report, Row
from device_bench.report.lines import conditions, summary, sweep, sweeps, timeline
from device_bench.report.marks import code, legend, swatch, usual
from device_bench.report.scatter import latency, sizes
from device_bench.report.svg import Safe

TEMPLATES = Path(__file__).with_name("templates")
#: long runs that are drawn, per device.
_TIMELINES = 12


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture (None: there is nothing to draw) with what stands above and below it."""

    title: str
    image: Safe | None
    note: str = ""
    badge: str = ""


@dataclass(frozen=True, kw_only=True)
class Covered:
    """One artifact's nodes.

    Attributes:
        left: to the fallback.
        note: how they were counted, as far as that differs from the target's other artifacts: some list their ops.
    """

    model: str
    build: Build
    left: int
    bar: Safe
    note: str


def render(report: Report) -> str:
    """The page."""
    import jinja2

    engine = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    engine.filters.update(
        ms=text.milliseconds,
        size=text.size,
        mib=text.mebibytes,
        swatch=swatch,
        code=code,
        sig=text.significant,
        rate=text.rate,
        percent=text.percent,
    )
    style, script = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    targets, precisions = legend(report)
    context: dict[str, Any] = {
        "report": report,
        "style": Safe(style),
        "script": Safe(script),
        "policy": policy(style, script),
        "verdicts": report.verdicts(),
        "best": best(report) if any(r.verdict for r in report.rows) else [],
        "verdict_bar": _verdict_bar(report),
        "targets": targets,
        "precisions": precisions,
        "scatters": [(m, _scatters(report, m)) for m in report.models],
        "sizes": [f for m in report.models if (f := _sizes(report, m)).image is not None],
        "clouds": [(m, figures) for m in report.models if (figures := _clouds(report, m))],
        "most_drawn": DRAWN,
        "coverage": _coverage(report),
        "devices": [(d, _device_figures(i, d)) for i, d in enumerate(report.devices)],
        "count": text.count,
        "moment": text.moment,
        "NONE": text.NONE,
    }
    return engine.get_template("report.html.j2").render(context)


def policy(style: str, script: str) -> str:
    """The content security policy: this very style and script, and nothing else from anywhere."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'"
    )


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _verdict_bar(report: Report) -> Safe | None:
    found = report.verdicts()
    if not sum(found.values()):
        return None
    said = ", ".join(f"{n} {'without a budget' if w == 'none' else w}" for w, n in found.items() if n)
    return shares([(f"v-{w.lower()}", n) for w, n in found.items()], label=f"Verdicts: {said}", kind="bar tall")


def _of(rows: Sequence[Row], model: str, device: Device) -> list[Row]:
    return [r for r in rows if r.model == model and r.measured and r.measured.device == device.name]


def _scatters(report: Report, model: str) -> list[Figure]:
    found = []
    for index, device in enumerate(report.devices):
        rows = _of(device.rows, model, device)
        if not rows:
            continue
        key = f"s{report.models.index(model)}-{index}"
        image = latency(rows, key=key, model=model, device=device.name, emulated=device.emulated)
        note = "" if image else "No artifact of this model has both a metric and a latency here."
        found.append(Figure(title=device.name, image=image, note=note, badge="emulated" if device.emulated else ""))
    return found


def _sizes(report: Report, model: str) -> Figure:
    builds = [b for b in report.builds if b.model == model]
    return Figure(title=model, image=sizes(builds, key=f"z{report.models.index(model)}", model=model))


def _clouds(report: Report, model: str) -> list[Figure]:
    found = []
    for index, device in enumerate(report.devices):
        rows = usual(_of(device.rows, model, device))
        key = f"d{report.models.index(model)}-{index}"
        made = clouds(rows, key=key, title=f"{model} on {device.name}: latency distributions")
        if made is not None:
            note = f"{made.drawn:,} of {text.count(made.total, 'sample')} drawn."
            if made.beyond:
                verb = "lies" if made.beyond == 1 else "lie"
                note += f" {made.beyond:,} {verb} beyond the right edge (▸), "
                note += f"the largest at {text.milliseconds(made.largest_ms, unit=True)}."
            badge = "emulated" if device.emulated else ""
            found.append(Figure(title=device.name, image=made.image, note=note, badge=badge))
    return found


def _coverage(report: Report) -> list[tuple[str, str, list[Covered]]]:
    """Target, how its nodes were counted, and its artifacts."""
    found = []
    for target in report.targets:
        builds = [b for b in report.builds if b.target == target and b.delegated is not None]
        method = _common([b.coverage_method for b in builds])
        lines = []
        for b in builds:
            left = sum(b.fallback.values())
            bar = shares([("deleg", b.delegated or 0), ("fall", left)], label=f"{b.delegated} delegated, {left} left")
            note = b.coverage_method.removeprefix(method).strip(" :;,")
            lines.append(Covered(model=b.model, build=b, left=left, bar=bar, note=note))
        if lines:
            found.append((target, method.rstrip(" :;,"), lines))
    return found


def _common(texts: Sequence[str]) -> str:
    """What all texts begin with, cut where a clause ends."""
    low, high = min(texts, default=""), max(texts, default="")  # what these two share, all do
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    if low == high:
        return low
    return low[: max(low.rfind(": ", 0, same), low.rfind("; ", 0, same)) + 1]


def _device_figures(index: int, device: Device) -> list[Figure]:
    found = []
    for number, one in enumerate(sweeps(device.rows)):
        for figure, name in (("p95_ms", "p95 latency"), ("per_second", "throughput")):
            image = sweep(one, key=f"w{index}-{number}-{figure}", figure=figure)
            if image is not None:
                found.append(Figure(title=f"{one.model} {one.label}: {name} over {one.axis}", image=image))
    for number, run in enumerate(device.long_runs[:_TIMELINES]):
        image = timeline(run, key=f"t{index}-{number}")
        found.append(Figure(title=f"{run.model} {run.label}: over time", image=image, note=summary(run)))
    for title, image in conditions(device.moments, key=f"c{index}", device=device.name):
        found.append(Figure(title=title, image=image))
    return found
