"""How targets and precisions look: colour and shape for a target, a short code for a precision."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from device_bench.report.data import Report, Row
from device_bench.report.svg import Safe, el, marker
from targets.registry import all_targets

_CODES = {
    "fp32": "32",
    "fp16": "16",
    "int8-weight": "8w",
    "int8-dynamic": "8d",
    "int8-static": "8s",
    "int4-weight": "4w",
}
#: the last look, for targets that are not ours
_OTHER = 5


@cache
def _known() -> tuple[str, ...]:
    return tuple(all_targets())


def look(target: str) -> int:
    """The index of a target's colour and shape."""
    known = _known()
    return min(known.index(target), _OTHER) if target in known else _OTHER


def code(precision: str) -> str:
    """``8s`` for ``int8-static``."""
    return _CODES.get(precision, precision[:4])


def swatch(target: str) -> Safe:
    """A target's mark, to stand beside its name."""
    index = look(target)
    mark = marker(index, 7, 7, 4.5, f"m c{index}")
    return el("svg", mark, width=14, height=14, viewBox="0 0 14 14", aria_hidden="true", class_="swatch")


def usual(rows: Sequence[Row]) -> list[Row]:
    """Of every artifact's points on a device the one that others are compared with: the evaluation's own batch where it
    was measured, fewest threads, smallest batch; one for each way of running. None of an artifact whose files are gone
    or altered: it cannot be had."""
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        m = row.measured
        if m is None or m.p95_ms is None or (row.build is not None and not row.build.intact):
            continue
        key = (m.device, row.model, row.target, row.precision, m.variant)
        other = found.get(key)
        if other is None or _order(row) < _order(other):
            found[key] = row
    return list(found.values())


def _order(row: Row) -> tuple[bool, int, int]:
    m = row.measured
    assert m is not None
    return (m.batch is not None, m.threads, m.batch or 0)


def legend(report: Report) -> tuple[list[tuple[Safe, str]], list[tuple[str, str]]]:
    """Marks of the targets, and codes of the precisions."""
    return [(swatch(t), t) for t in report.targets], [(code(p), p) for p in report.precisions]
