"""``python -m device_bench.trend [options]``: what ``nox -s trend`` runs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from build.entry import main as run_as_process
from build.errors import InputError
from device_bench.compare.words import aligned, milliseconds, percent
from device_bench.store import cli, open_results, plain
from device_bench.trend.points import LEAST_POINTS
from device_bench.trend.series import Series, Shift, all_series

SCHEMA_VERSION = 1
_BARS = "▁▂▃▄▅▆▇█"
_DRAWN = 30


def parser() -> cli.Parser:
    """The options; ``--help`` prints them."""
    p = cli.parser("trend", "Show each figure over time, and name the runs at which it changed.")
    p.add_argument("--threshold", metavar="X%", default="2%", help="a smaller change does not matter (default: 2%%)")
    p.add_argument("--significance", metavar="P", default="0.05", help="largest p-value of a change (default: 0.05)")
    p.add_argument("--seed", type=int, default=0, metavar="N", help="of the permutation test (default: 0)")
    p.add_argument("--version", metavar="V", help="only what has this version: [NAME=]VALUE, as compare's version:")
    p.add_argument("--json", metavar="FILE", help="write every point and change as JSON")
    return p


def _trend(raw: argparse.Namespace) -> int:
    cli.check_outputs(raw.results, {"--json": raw.json})
    if raw.seed < 0:
        raise InputError(f"--seed {raw.seed}: needs 0 or more")
    threshold = cli.share(raw.threshold, "--threshold", below=1.0)
    significance = cli.share(raw.significance, "--significance", below=1.0)
    with closing(open_results(raw.results)) as store:
        problems = cli.report_problems([store])
        query = replace(cli.query(raw, version=raw.version), sustained=False)
        found = all_series(store, query, threshold=threshold, significance=significance, seed=raw.seed)
        place = store.place
    if not found:
        raise InputError(f"there is nothing to show: no measurement in '{plain(place)}' fits")
    value = {
        "schema_version": SCHEMA_VERSION,
        "results": place,
        "threshold": threshold,
        "significance": significance,
        "seed": raw.seed,
        "series": [s.to_json() for s in found],
        "problems": [{"path": p.path, "reason": p.reason} for p in problems],
    }
    cli.write_text(raw.json, json.dumps(value, indent=1, allow_nan=False) + "\n")
    print(table(found), flush=True)
    return 0


def table(found: Sequence[Series]) -> str:
    """For a terminal: a row per key, and a line per change."""
    head = ["model", "target", "precision", "device", "settings", "runs", "p50 first", "p50 last", "p95 last", "p50"]
    lines = aligned(head, [_row(s) for s in found])
    lines.append("")
    few = 0
    for series in found:
        where = plain(series.key.label, 160)
        lines += [f"{where}: {_shift(s)}" for s in series.shifts]
        lines += [f"{where}: note: {n}" for n in series.notes]
        few += len(series.values("p50_ms")) < LEAST_POINTS
    if few:
        lines.append(
            f"{few} of {len(found)} series have fewer than the {LEAST_POINTS} runs that a change of times needs"
        )
    count = sum(len(s.shifts) for s in found)
    lines.append(f"{len(found)} series, {count} changes")
    return "\n".join(lines)


def _row(series: Series) -> list[str]:
    k, times, tails = series.key, series.values("p50_ms"), series.values("p95_ms")
    return [
        k.model,
        k.target,
        k.precision,
        k.device,
        k.settings,
        str(len(series.points)),
        milliseconds(times[0] if times else None),
        milliseconds(times[-1] if times else None),
        milliseconds(tails[-1] if tails else None),
        _bars(times[-_DRAWN:]),
    ]


def _bars(values: Sequence[float]) -> str:
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    step = (high - low) / (len(_BARS) - 1)
    # Less than 1 % between the lowest and the highest is a flat line, not a mountain range.
    if step == 0 or high < 1.01 * low:
        return _BARS[0] * len(values)
    return "".join(_BARS[round((v - low) / step)] for v in values)


def _shift(shift: Shift) -> str:
    change = "" if shift.change is None else f" ({percent(shift.change)})"
    test = "" if shift.p is None else f", p {shift.p:.3f}"
    why = f"; changed: {', '.join(shift.why)}" if shift.why else "; no version changed"
    when = f"at {plain(shift.run, 60)} of {shift.started}, after {plain(shift.after, 60)}"
    if shift.figure == "bytes":
        values = f"{shift.before:.0f} → {shift.now:.0f}"
    elif shift.figure == "metric":
        values = f"{shift.before:.4f} → {shift.now:.4f}"
    else:
        values = f"{milliseconds(shift.before)} → {milliseconds(shift.now)}"
    return f"{shift.figure} {values}{change} {when}{test}{why}"


def main(argv: list[str]) -> int:
    """Show the trend; returns the exit code."""
    return cli.run(argv, parser, _trend)


if __name__ == "__main__":
    run_as_process(lambda: main(sys.argv[1:]))
