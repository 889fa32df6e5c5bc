"""What the tests of the report share: made-up runs on disk, read and put together."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from device_bench.report import sources
from device_bench.report.data import Report, Row
from device_bench.report.gather import gather
from tests.results import full_run, made_up


@dataclass(frozen=True)
class Made:
    """A made-up full run, read and put together."""

    out: Path
    results: Path
    budgets: Path
    report: Report


def read(out: Path | None, results: Path | None, budgets: Path | None = None) -> Report:
    place = None if results is None else str(results)
    return gather(sources.read(place, out, budgets=budgets, device_class="*"))


def write_run(results: Path, values: Sequence[dict[str, Any]], run: str = full_run.RUN, **record: Any) -> None:
    """A run's folder with these measurements, each below its device's folder."""
    session = {"schema_version": 1, "session": "bench-local", "started": "2026-03-01T09:00:00Z", "repeats": 1}
    (results / run).mkdir(parents=True)
    session |= {"seed": 7, "settings": {}, "devices": sorted({v["measurement"]["device"] for v in values})}
    (results / run / "run.json").write_text(json.dumps(session | record))
    for number, value in enumerate(values):
        folder = results / run / value["measurement"]["device"]
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.json").write_text(json.dumps(value))


def write_builds(out: Path, *manifests: dict[str, Any]) -> None:
    for value in manifests:
        full_run.write_build(out, value)


DIGITS, PLACE = full_run.MODELS[0], made_up.PLACES[0]
BUILT = full_run.manifest(DIGITS, "litert", "fp32")


def rows_of(tmp_path: Path, values: Sequence[dict[str, Any]], budget: str = "", **record: Any) -> Sequence[Row]:
    """The decision table of one artifact with these measurements."""
    write_builds(tmp_path / "out", BUILT)
    write_run(tmp_path / "results", values, **record)
    budgets = tmp_path / "b.toml"
    budgets.write_text(f"[[budget]]\n{budget}\n")
    return read(tmp_path / "out", tmp_path / "results", budgets if budget else None).rows


def make(folder: Path) -> Made:
    """A full run, written below a folder."""
    out, results = full_run.write(folder)
    budgets = folder / "budgets.toml"
    budgets.write_text(full_run.BUDGETS)
    return Made(out, results, budgets, read(out, results, budgets))


def value(**changes: Any) -> dict[str, Any]:
    return made_up.measurement(BUILT, PLACE, **changes)


HOSTILE = (
    "<script>document.title='x'</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></style></script><b>",
    "\u202egnp.exe \u2066\u200b\u0000",
    "line\nbreak\r\n| cell | `code` ```\n# head",
    "{{ 7*7 }} {% raw %}",
    "[x](javascript:alert(1)) ![y](http://example.invalid/z) @everyone",
    "Z" + "\u0335\u0336\u0337" * 500,
    "w" * 5000,
    "&lt;i&gt; &amp;",
)


def hostile_report(folder: Path) -> Report:
    """Measurements and a manifest whose every free text is hostile, and files that are no measurements."""
    values = []
    for name in HOSTILE:
        one = value(variant=name)
        # A device is named as its folder is, which holds no slash.
        one["measurement"] |= {"device": re.sub("[/\0]", "\\\\", name)[:80], "model": name}
        one["device"] |= {"model": name, "soc": name, "os": name, "manufacturer": name}
        one["runtime"] = {"name": name, "version": name}
        one["cpu"] = {**one["cpu"], "models": [name], "kernel": name}
        one["details"] = {name: name}
        one["warnings"] = [{"code": name, "message": name, "advice": name}]
        values.append(one)
    broken = made_up.failed_measurement(value(), HOSTILE[0])
    write_run(folder / "results", [*values, broken])
    bad = {"warnings": list(HOSTILE), "toolchain": {n: n for n in HOSTILE}}
    coverage = {"delegated": 1, "fallback": dict.fromkeys(HOSTILE, 2), "delegated_share": 0.5, "method": HOSTILE[0]}
    write_builds(folder / "out", full_run.manifest(DIGITS, "litert", "fp32", **bad, coverage=coverage))
    place = folder / "results" / full_run.RUN / PLACE.name
    (place / "truncated.json").write_text(json.dumps(value())[:-30])
    (place / "foreign.json").write_text('{"hello": "<script>alert(1)</script>"}')
    (place / "noise.json").write_bytes(bytes(range(256)))
    (place / "nan.json").write_text(json.dumps({**value(), "load_ms": float("nan")}))
    (place / "lies.json").write_text(json.dumps({**value(), "statistics": {**value()["statistics"], "p95_ms": 0.001}}))
    (place / "<img src=x onerror=alert(1)>.json").write_text("[]")
    return read(folder / "out", folder / "results")
