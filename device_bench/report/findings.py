"""What was refused, failed, is unavailable, missing or inconclusive, and why. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import get_args

from build.budgets import MEASURED
from device_bench.report.builds import refused
from device_bench.report.data import Build, Finding, Kind, Row
from device_bench.report.measured import Stored
from device_bench.report.rows import ALTERED, NOT_MEASURED
from device_bench.report.text import clean, figure, message
from targets.registry import TargetFacts

#: kind, message, remedy -> what it applies to
Found = dict[tuple[Kind, str, str], list[str]]


def findings(
    builds: Sequence[Build],
    rows: Sequence[Row],
    stored: Iterable[Stored],
    facts: Mapping[str, TargetFacts],
    precisions: Sequence[str],
    elsewhere: Set[tuple[str, str, str]] = frozenset(),
) -> tuple[Finding, ...]:
    """Everything that a reader must know before believing the tables; the same words about many things are said once.

    Args:
        stored: measurements that are shown, failed ones included.
        facts: of the targets.
        precisions: that any artifact has.
        elsewhere: (model, target, precision) that were built and are not shown.
    """
    found: Found = {}
    _of_builds(found, builds)
    _of_targets(found, builds, facts, precisions, elsewhere)
    _of_measurements(found, stored)
    _of_rows(found, rows)
    order = list(get_args(Kind))
    listed = [Finding(kind=k, message=m, remedy=r, what=tuple(dict.fromkeys(w))) for (k, m, r), w in found.items()]
    return tuple(sorted(listed, key=lambda f: (order.index(f.kind), -len(f.what), f.message)))


def _add(found: Found, kind: Kind, text: str, what: str, remedy: str = "") -> None:
    found.setdefault((kind, text, remedy), []).append(what)


def _of_builds(found: Found, builds: Sequence[Build]) -> None:
    for b in builds:
        what = f"{b.model} {b.label}"
        for warning in b.warnings:
            _add(found, "warning", warning, what)
        if b.ok:
            continue
        if not b.intact:
            remedy = f"nox -s build -- --model {b.model} --targets {b.target} --precisions {b.precision}"
            _add(found, "failed", ALTERED, what, remedy)
            continue
        if b.status.startswith("unavailable"):
            _add(found, "unavailable", b.status.partition(":")[2].strip() or b.error, what, b.remedy)
            continue
        kind: Kind = "refused" if refused(b) else "unverified" if b.status == "unverified" else "failed"
        _add(found, kind, f"{b.status}: {b.error}", what, b.remedy)


def _of_targets(
    found: Found,
    builds: Sequence[Build],
    facts: Mapping[str, TargetFacts],
    precisions: Sequence[str],
    elsewhere: Set[tuple[str, str, str]],
) -> None:
    """What no manifest tells, since nothing was tried."""
    present = {(b.model, b.target, b.precision) for b in builds} | elsewhere
    for model in dict.fromkeys(b.model for b in builds):
        for name, target in facts.items():
            reasons = {p: target.unavailable(p) for p in precisions}
            lacking = [p for p in precisions if (model, name, p) not in present and reasons[p] is None]
            if lacking:
                remedy = f"nox -s build -- --model {model} --targets {name} --precisions {','.join(lacking)}"
                for p in lacking:
                    _add(found, "missing", "not built", f"{model} {name} {p}", remedy)
    for name, target in facts.items():
        for p in precisions:
            why = target.unavailable(p)
            if why is not None:
                _add(found, "unavailable", message(why), f"{name} {p}")


def _of_measurements(found: Found, stored: Iterable[Stored]) -> None:
    for one in stored:
        value = one.value
        what = f"{one.label} on {clean(one.key.device)}"
        if value["error"] is not None:
            error = value["error"]
            text = f"{clean(error['code'])}: {message(error['message'])}"
            _add(found, "failed", text, what, message(error["remedy"] or ""))
        for warning in value["warnings"]:
            text = f"{clean(warning['code'])}: {message(warning['message'])}"
            _add(found, "warning", text, what, message(warning["advice"]))


def _of_rows(found: Found, rows: Sequence[Row]) -> None:
    measured = {(r.model, r.target, r.precision) for r in rows if r.measured is not None}
    for row in rows:
        where = f" on {row.measured.device}" if row.measured else ""
        what = f"{row.model} {row.label}{where}"
        for reason in row.wrong:
            _add(found, "failed", reason, what)
        for limit in row.limits:
            if limit.verdict == "FAIL" and limit.value is not None:
                least = "below" if limit.name == "min_metric" else "beyond"
                text = f"{limit.name} is {least} the budget of {figure(limit.name, limit.allowed)}"
                name = what if limit.name in MEASURED else f"{row.model} {row.target} {row.precision}"
                _add(found, "budget", text, f"{name}: {figure(limit.name, limit.value)}")
        for doubt in row.doubts:
            if doubt != NOT_MEASURED:
                _add(found, "inconclusive" if row.verdict == "INCONCLUSIVE" else "warning", doubt, what)
        for note in row.notes:
            _add(found, "warning", note, what)
        if row.build is not None and row.build.ok and (row.model, row.target, row.precision) not in measured:
            _add(found, "missing", "built, but measured on no device", what)
