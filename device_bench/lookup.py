"""Finding what was measured of an artifact: for checks that judge budgets without measuring. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1


def newest_figures(
    results: Path, *, artifact_sha256: str, platform: str, device_class: str = "*"
) -> dict[str, float | None] | None:
    """``p95_ms`` and ``peak_mb`` of the newest run that measured these very bytes on such a device and counts.

    What was measured on an emulated device, throttled, while charging, or without all of its repeats does not count.

    Args:
        results: the folder that holds ``run-…`` folders.
        device_class: ``*`` for any.

    Returns:
        The worst of the devices of that run; None when nothing counts.
    """
    for summary in sorted(results.glob("run-*/summary.json"), reverse=True):  # run names begin with their time
        rows = [
            row
            for row in _rows(summary)
            if row["artifact_sha256"] == artifact_sha256
            and row["platform"] == platform
            and device_class in ("*", row["device_class"])
            and row["counts"]
            and not row["emulated"]
        ]
        if rows:
            verdicts = [row["verdict"] for row in rows]
            return {
                "p95_ms": max((v["p95_ms"] for v in verdicts if v["p95_ms"] is not None), default=None),
                "peak_mb": max((v["peak_mb"] for v in verdicts if v["peak_mb"] is not None), default=None),
            }
    return None


def _rows(path: Path) -> list[Mapping[str, Any]]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    if not isinstance(value, dict) or value.get("schema_version") != SCHEMA_VERSION:
        return []
    rows: list[Mapping[str, Any]] = value["rows"]
    return rows
