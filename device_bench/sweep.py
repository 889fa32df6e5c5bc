"""What a sweep comes to: for each artifact the largest batch that keeps a p95. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_SERIES = ("device", "model", "target", "precision", "threads", "variant")


def largest_batches(rows: Sequence[Mapping[str, Any]], keep_p95_ms: float | None) -> list[dict[str, Any]]:
    """One entry per artifact, device, threads and way of running of which several batches were measured.

    Args:
        rows: of a run's summary.
        keep_p95_ms: the limit; None: each row's own budget.

    Returns:
        The points, ``limit_ms`` and ``largest_batch``: None when there is no limit, or when no batch keeps it, or when
        the times mean nothing (``why``). A batch counts when it and every smaller one keep the limit.
    """
    series: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["batch"] is not None:
            series.setdefault(tuple(row[name] for name in _SERIES), []).append(row)
    found = []
    for key, members in series.items():
        if len(members) < 2:
            continue
        members = sorted(members, key=lambda r: r["batch"])
        limit = keep_p95_ms if keep_p95_ms is not None else members[0]["limits"]["p95_ms"]
        largest, why = _largest(members, limit)
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
                "largest_batch": largest,
                "why": why,
            }
        )
    return found


def _largest(members: Sequence[Mapping[str, Any]], limit: float | None) -> tuple[int | None, str | None]:
    if limit is None:
        return None, "no limit: name one with --keep-p95"
    if any(r["emulated"] for r in members):
        return None, "emulated: times mean nothing here"
    largest = None
    for row in members:
        p95 = row["verdict"]["p95_ms"]
        if p95 is None:
            return largest, f"batch {row['batch']} was not measured"
        if p95 > limit:
            return largest, f"batch {row['batch']} has a p95 of {p95:.3f} ms"
        largest = row["batch"]
    return largest, None


def sweep_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """For people."""
    lines = []
    for s in found:
        threads = f", {s['threads']} threads" if s["threads"] != 1 else ""
        where = f"{s['device']} {s['model']} {s['target']} {s['precision']}{threads}"
        where += f", {s['variant']}" if s["variant"] else ""
        if s["limit_ms"] is None or (s["largest_batch"] is None and s["why"] and s["why"].startswith("emulated")):
            lines.append(f"{where}: largest batch: {s['why']}")
        else:
            word = "none" if s["largest_batch"] is None else s["largest_batch"]
            lines.append(
                f"{where}: largest batch with a p95 of at most {s['limit_ms']:g} ms: {word}"
                + (f" ({s['why']})" if s["why"] else "")
            )
    return lines
