"""The report as Markdown (GitHub's), for pull requests and files. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from device_bench.report import text
from device_bench.report.best import best, fronts
from device_bench.report.data import Device, Report, Row
from device_bench.report.lines import summary

_HARMLESS = re.compile(r"[A-Za-z0-9 .,:;%+=()/±≤–…°_-]*")
_ACTIVE = re.compile(r"(?:^|\s)_|_(?:\s|$)|//|www\.")


def escape(value: str) -> str:
    """Text that stays text: as it is when nothing in it can act, else as a code span, where nothing acts at all (no
    HTML, no links, no mentions of people)."""
    if _HARMLESS.fullmatch(value) and not _ACTIVE.search(value):
        return value
    longest = max((len(run) for run in re.findall("`+", value)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if value.startswith("`") or value.endswith("`") else ""
    # In tables a bar ends the cell even inside a code span; only there does a backslash before it vanish.
    return f"{fence}{pad}{value}{pad}{fence}".replace("|", r"\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> list[str]:
    """A table; ``numbers`` are the columns aligned at the right. Cells are escaped here."""
    lines = [
        f"| {' | '.join(head)} |",
        "|" + "|".join(" --: " if i in numbers else " --- " for i in range(len(head))) + "|",
    ]
    return [*lines, *(f"| {' | '.join(escape(c) if c else ' ' for c in row)} |" for row in rows), ""]


def render(report: Report) -> str:
    """The whole report."""
    found = report.verdicts()
    lines = ["# Edgeport report", ""]
    if report.first:
        lines += [f"Measured from {text.moment(report.first)} to {text.moment(report.last)}.", ""]
    good = sum(b.ok for b in report.builds)
    lines += [
        f"- {found['PASS']} PASS, {found['FAIL']} FAIL, {found['INCONCLUSIVE']} INCONCLUSIVE, "
        f"{found['none']} without a budget",
        f"- {good} of {text.count(len(report.builds), 'artifact')} built and verified",
        f"- {report.taken} of {text.count(report.taken + report.failed, 'measurement')} taken on "
        f"{text.count(len(report.devices), 'device')}",
        f"- {text.count(len(report.problems), 'file')} could not be read",
        "",
        *_passing(report),
        *_fronts(report),
        *_decisions(report),
        *_distributions(report),
        *_coverage(report),
    ]
    for device in report.devices:
        lines += _device(device)
    lines += [*_findings(report), *_toolchains(report)]
    return "\n".join(lines).rstrip() + "\n"


def _passing(report: Report) -> list[str]:
    rows = [
        (
            b.model,
            b.device,
            f"{b.passing} of {b.judged}",
            _artifact(b.fastest) if b.fastest else text.NONE,
            _artifact(b.smallest) if b.smallest else text.NONE,
        )
        for b in best(report)
    ]
    return ["## What passes", "", *table(("model", "device", "passing", "fastest", "smallest"), rows)] if rows else []


def _artifact(row: Row) -> str:
    p95 = row.measured.p95_ms if row.measured else None
    return f"{row.label} ({text.milliseconds(p95, unit=True)}, {text.size(row.size)})"


def _fronts(report: Report) -> list[str]:
    rows = [
        (f.model, f.device, r.label, f"{r.metric.value:.4f}", text.milliseconds(m.p95_ms), text.size(r.size))
        for f in fronts(report)
        for r in f.rows
        if (m := r.measured) and r.metric
    ]
    if not rows:
        return []
    head = ("model", "device", "artifact", "metric", "p95 ms", "size")
    return ["## Pareto front: accuracy against p95 latency", "", *table(head, rows, (3, 4, 5))]


def _decisions(report: Report) -> list[str]:
    rows = []
    for r in report.rows:
        m, metric = r.measured, r.metric
        rows.append(
            (
                r.model,
                r.label,
                (m.device + (" (emulated)" if m.emulated else "")) if m else "not measured",
                text.size(r.size),
                f"{metric.value:.4f} of {metric.reference:.4f}" if metric else text.NONE,
                text.NONE if r.changed is None else f"{r.changed} of {r.decisions}",
                text.milliseconds(m.p50_ms if m else None),
                text.milliseconds(m.p95_ms if m else None),
                text.mebibytes(m.peak_mb if m else None),
                r.verdict or "no budget",
                "; ".join((*r.reasons, *(f"note: {n}" for n in r.notes))),
            )
        )
    head = (
        "model",
        "artifact",
        "device",
        "size",
        "metric",
        "changed",
        "p50 ms",
        "p95 ms",
        "peak MiB",
        "verdict",
        "why",
    )
    return ["## Decision table", "", *table(head, rows, (3, 4, 5, 6, 7, 8))]


def _distributions(report: Report) -> list[str]:
    rows = [
        (
            m.device,
            r.model,
            r.label,
            f"{number} of {m.wanted}",
            f"{s.samples:,}",
            *map(text.milliseconds, (s.min_ms, s.p50_ms, s.p90_ms, s.p95_ms, s.p99_ms, s.max_ms)),
            text.percent(s.spread),
        )
        for r in report.rows
        if (m := r.measured)
        for number, s in enumerate(m.statistics, 1)
    ]
    if not rows:
        return []
    head = ("device", "model", "artifact", "repeat", "samples", "min ms", "p50", "p90", "p95", "p99", "max", "spread")
    return ["## Latency distributions", "", *table(head, rows, range(4, 12))]


def _coverage(report: Report) -> list[str]:
    rows = [
        (
            b.target,
            b.model,
            b.precision,
            str(b.delegated),
            str(sum(b.fallback.values())),
            ", ".join(f"{op} × {n}" for op, n in b.fallback.items()),
        )
        for target in report.targets
        for b in report.builds
        if b.target == target and b.delegated is not None
    ]
    head = ("target", "model", "precision", "delegated", "left", "ops left to the fallback")
    return ["## Coverage by op", "", *table(head, rows, (3, 4))] if rows else []


def _device(device: Device) -> list[str]:
    lines = [f"## Device {escape(device.name)}", ""]
    if device.emulated:
        lines += [f"Emulated, times mean nothing here: {escape(device.why_emulated)}", ""]
    lines += table(("fact", "value"), (*device.facts, *device.conditions))
    rows = []
    for r in device.rows:
        m = r.measured
        if m is not None:
            figures = (text.milliseconds(m.load_ms), text.milliseconds(m.first_ms), text.rate(m.per_second))
            rows.append((r.model, r.label, *figures, f"{m.repeats} of {m.wanted}", m.host or text.NONE))
    head = ("model", "artifact", "load ms", "first ms", "per second", "repeats", "outputs against this host")
    lines += table(head, rows, (2, 3, 4))
    if device.long_runs:
        lines += table(
            ("long run", "what it came to"), [(f"{r.model} {r.label}", summary(r)) for r in device.long_runs]
        )
    return lines


def _findings(report: Report) -> list[str]:
    lines = ["## Refused, failed, missing, inconclusive", ""]
    rows = [(f.kind, f.message, f.remedy, "; ".join(f.what[:20]) + _more(len(f.what) - 20)) for f in report.findings]
    lines += table(("what", "why", "what to do", "where"), rows) if rows else ["Nothing.", ""]
    lines += ["## Files that could not be read", ""]
    problems = [(p.path, p.message) for p in report.problems]
    return lines + (table(("file", "why"), problems) if problems else ["None.", ""])


def _more(number: int) -> str:
    return f"; and {number} more" if number > 0 else ""


def _toolchains(report: Report) -> list[str]:
    rows = [(t.where, t.package, ", ".join(t.versions)) for t in report.toolchains]
    return ["## Toolchains", "", *table(("where", "package", "version"), rows)] if rows else []
