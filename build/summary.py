"""The table at the end of a build, and the same as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from build.cache import write_atomic
from build.manifest import json_text

SCHEMA_VERSION = 1
_HEAD = ("model", "target", "precision", "status", "size", "worst diff", "metric", "changed", "delegated", "seconds")


def size_text(size: int) -> str:
    """``18.6 MB``: decimal units, as file managers and app stores count."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    diff, changed, share = row["max_abs_diff"], row["changed_decisions"], row["delegated_share"]
    return (
        row["model"],
        row["target"],
        row["precision"],
        row["status"].split(":", 1)[0]
        + (f":{row['status'].split(':')[1]}" if row["status"].startswith("failed") else ""),
        size_text(row["bytes"]) if row["files"] else "-",
        "-" if diff is None else f"{diff:.1e}",
        "-" if row["metric"] is None else f"{row['metric']['value']:.4f} of {row['metric']['reference']:.4f}",
        "-" if changed is None else str(changed),
        "-" if share is None else f"{share:.0%}",
        "cached" if row["cached"] else f"{row['seconds']:.1f}",
    )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The summary as aligned text, with one line below for every failure, absence and warning."""
    lines = [_HEAD, *map(_cells, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEAD))]
    text = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    text.insert(1, "  ".join("-" * w for w in widths))
    for row in rows:
        where = f"{row['model']} {row['target']} {row['precision']}"
        if row["error"]:
            text.append(f"{where}: {row['status']}: {error_line(row['error'])}")
        elif row["status"].startswith("unavailable"):
            text.append(f"{where}: {row['status']}")
        text += [f"{where}: warning: {w}" for w in row["warnings"]]
    good = sum(row["status"] in ("ok", "ok-undelegated") for row in rows)
    text.append(f"{good} of {len(rows)} artifacts ok")
    return "\n".join(text)


def error_line(error: Mapping[str, Any]) -> str:
    """An error's parts as one line."""
    parts = [error["message"]]
    if error.get("op") and error["op"] not in error["message"]:
        parts.append(f"op {error['op']}")
    if error.get("source"):
        parts.append(f"at {error['source']}")
    line = "; ".join(parts)
    return " ".join((f"{line}. {error['remedy']}" if error.get("remedy") else line).split())


def write_json(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """``{"schema_version", "artifacts", "error"}``; ``error`` is for what stops a build as a whole."""
    write_atomic(path, json_text({"schema_version": SCHEMA_VERSION, "artifacts": list(rows), "error": None}) + "\n")
