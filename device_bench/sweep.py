"""What a sweep comes to: for each artifact the largest batch that keeps a p95. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from device_bench.verdict import Word

_SERIES = ("device", "model", "target", "precision", "threads", "variant")


@dataclass(frozen=True, kw_only=True)
class _Largest:
    """What a series of batches comes to.

    Attributes:
        largest_batch: None when none is known to keep the limit.
        word: PASS when a batch keeps it and no larger one is in doubt; FAIL when none keeps it; INCONCLUSIVE when the
            first batch that is not counted may keep it; None when there is nothing to judge by.
        why: the next larger batch is not the answer.
    """

    largest_batch: int | None
    word: Word | None
    why: str | None


def largest_batches(rows: Sequence[Mapping[str, Any]], keep_p95_ms: float | None) -> list[dict[str, Any]]:
    """One entry per artifact, device, threads and way of running of which batches were measured.

    Args:
        rows: of a run's summary.
        keep_p95_ms: the limit; None: each row's own budget, and a single batch is no question.

    Returns:
        The points, ``limit_ms``, ``largest_batch`` with its ``word`` and ``why``, and ``unchecked_batches``: those of
        which no call's outputs were compared. A batch counts when it and every smaller one that was measured keep the
        limit, and no measurement of them is in doubt.
    """
    series: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["batch"] is not None:
            series.setdefault(tuple(row[name] for name in _SERIES), []).append(row)
    found = []
    for key, members in series.items():
        if len(members) < 2 and keep_p95_ms is None:
            continue
        members = sorted(members, key=lambda r: r["batch"])
        limit = keep_p95_ms if keep_p95_ms is not None else members[0]["limits"]["p95_ms"]
        # The evaluation calls run once for a series, at sizes of their own.
        checked = {b for r in members for b in r["checked_batches"]}
        points = [
            {
                "batch": r["batch"],
                "p50_ms": r["verdict"]["p50_ms"],
                "p95_ms": r["verdict"]["p95_ms"],
                "per_second": r["per_second"],
            }
            for r in members
        ]
        found.append(
            {
                **dict(zip(_SERIES, key, strict=True)),
                "points": points,
                "limit_ms": limit,
                **asdict(_largest(members, limit)),
                "checked_batches": sorted(checked),
                "unchecked_batches": [r["batch"] for r in members if r["batch"] not in checked],
            }
        )
    return found


def _largest(members: Sequence[Mapping[str, Any]], limit: float | None) -> _Largest:
    if limit is None:
        return _Largest(largest_batch=None, word=None, why="no limit: name one with --keep-p95")
    if any(r["emulated"] for r in members):
        return _Largest(largest_batch=None, word=None, why="emulated: times mean nothing here")
    largest = None
    for row in members:
        word, why = _keeps(row, limit)
        if word != "PASS":
            known: Word = "PASS" if word == "FAIL" and largest is not None else word
            return _Largest(largest_batch=largest, word=known, why=f"batch {row['batch']} {why}")
        largest = row["batch"]
    return _Largest(largest_batch=largest, word="PASS", why=None)


def _keeps(row: Mapping[str, Any], limit: float) -> tuple[Word, str]:
    """Whether one batch keeps the limit, and why not: as a verdict on it would say."""
    verdict, doubts = row["verdict"], row["doubts"]
    p95 = verdict["p95_ms"]
    if p95 is None:
        return "INCONCLUSIVE", "was not measured"
    if verdict["word"] == "FAIL":
        return "FAIL", f"fails: {verdict['reasons'][0]}"
    if doubts:
        return "INCONCLUSIVE", f"has a p95 of {p95:.3f} ms that does not count: {doubts[0]}"
    return ("PASS", "") if p95 <= limit else ("FAIL", f"has a p95 of {p95:.3f} ms")


def sweep_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """For people."""
    lines = []
    for s in found:
        threads = f", {s['threads']} threads" if s["threads"] != 1 else ""
        where = f"{s['device']} {s['model']} {s['target']} {s['precision']}{threads}"
        where += f", {s['variant']}" if s["variant"] else ""
        if s["word"] is None:
            lines.append(f"{where}: largest batch: {s['why']}")
        else:
            named = "none" if s["largest_batch"] is None else s["largest_batch"]
            why = ": ".join(w for w in ("INCONCLUSIVE" if s["word"] == "INCONCLUSIVE" else "", s["why"] or "") if w)
            lines.append(
                f"{where}: largest batch with a p95 of at most {s['limit_ms']:g} ms: {named}"
                + (f" ({why})" if why else "")
            )
        if s["unchecked_batches"]:
            at = ", ".join(map(str, s["checked_batches"])) or "none"
            lines.append(
                f"{where}: outputs were compared at batch {at}, not at batch "
                f"{', '.join(map(str, s['unchecked_batches']))}: there only times were measured"
            )
    return lines
