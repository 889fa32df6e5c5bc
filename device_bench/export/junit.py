"""JUnit XML: one suite per run, one case per cell. Standard library only.

FAIL is a failure, a measurement that failed or is missing an error, INCONCLUSIVE is skipped, and all else passes. The
shape is what Jenkins, GitLab and GitHub's reporters read (``testsuites/testsuite/testcase``).
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as xml

from device_bench.store import Cell, Key, ResultStore, plain

_LONGEST = 1000


def to_junit(store: ResultStore, cells: Sequence[Cell]) -> str:
    """The cells of each run, with the verdicts of its ``summary.json`` where there is one."""
    root = xml.Element("testsuites", name="edgeport")
    totals = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for run in dict.fromkeys(cell.run for cell in cells):
        suite = xml.SubElement(root, "testsuite", name=plain(run), timestamp=store.run(run).started.removesuffix("Z"))
        rows = {_key(r): r for r in (store.summary(run) or {"rows": []})["rows"]}
        counts = dict.fromkeys(totals, 0)
        seconds = 0.0
        for cell in (c for c in cells if c.run == run):
            kind, took = _case(suite, cell, rows.get(cell.key))
            counts["tests"] += 1
            seconds += took
            if kind:
                counts[kind] += 1
        suite.attrib.update({k: str(v) for k, v in counts.items()}, time=f"{seconds:.3f}")
        totals = {k: totals[k] + counts[k] for k in totals}
    root.attrib.update({k: str(v) for k, v in totals.items()})
    xml.indent(root)
    return f"<?xml version='1.0' encoding='UTF-8'?>\n{xml.tostring(root, encoding='unicode')}\n"


def _key(row: Mapping[str, Any]) -> Key:
    return Key(
        **{name: row[name] for name in ("model", "target", "precision", "device")},
        threads=row.get("threads", 1),
        batch=row.get("batch") or 0,
        variant=row.get("variant", ""),
    )


def _case(suite: xml.Element, cell: Cell, row: Mapping[str, Any] | None) -> tuple[str, float]:
    """Add a case; which count it adds to, and its seconds."""
    key = cell.key
    took = sum(max(_seconds(m.finished) - _seconds(m.started), 0.0) for m in cell.measurements)
    case = xml.SubElement(
        suite,
        "testcase",
        classname=plain(f"{key.device}.{key.model}", _LONGEST),
        name=plain(f"{key.target} {key.precision}, {key.settings}", _LONGEST),
        time=f"{took:.3f}",
    )
    properties = xml.SubElement(case, "properties")
    for name in ("p50_ms", "p95_ms", "peak_mb", "changed_decisions"):
        value = getattr(cell, name)
        if value is not None:
            xml.SubElement(properties, "property", name=name, value=str(value))
    verdict = row["verdict"] if row is not None else {"word": None, "reasons": []}
    if verdict["word"] == "FAIL":
        return _ended(case, "failure", verdict["reasons"], "failures"), took
    errors = [f"{m.error['code']}: {m.error['message']}" for m in cell.measurements if m.error is not None]
    missing = [f"not measured: {name}" for name in (row or {}).get("missing", ())]
    if errors or missing:
        return _ended(case, "error", [*errors, *missing], "errors"), took
    if verdict["word"] == "INCONCLUSIVE":
        return _ended(case, "skipped", verdict["reasons"], "skipped"), took
    return "", took


def _ended(case: xml.Element, tag: str, reasons: Sequence[str], counted_as: str) -> str:
    lines = [plain(reason, _LONGEST) for reason in dict.fromkeys(map(str, reasons))]
    element = xml.SubElement(case, tag, message=lines[0] if lines else tag)
    if tag != "skipped":
        element.set("type", tag)
    element.text = "\n".join(lines)
    return counted_as


def _seconds(text: str) -> float:
    return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")))
