"""The summary rows of artifacts that have no manifest: refused, failed before they began, unavailable, not reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from build import manifest
from build.errors import EdgeportError, InterruptedBuildError
from build.log import say
from build.plan import Row


def bare(row: Row, status: str, error: Mapping[str, Any] | None = None, *, seconds: float = 0.0) -> dict[str, Any]:
    """A row with nothing but its status and why."""
    value = {
        "model": row.source.name,
        "target": row.target.name,
        "precision": row.precision,
        "status": status,
        "error": error,
    }
    return manifest.summary_row(value, cached=False, seconds=seconds)


def failed(row: Row, stage: str, error: Mapping[str, Any], *, debug: bool) -> dict[str, Any]:
    """A row that failed at a stage, said on the terminal; with the traceback where it is asked for or a fault of ours.

    Args:
        error: see ``build.protocol.error_to_json``.
    """
    say(f"{row.label}: failed at {stage}")
    if error.get("trace") and (debug or error["code"] == EdgeportError.code):
        say(str(error["trace"]))
    return bare(row, f"failed:{stage}", error)


def lost(row: Row, *, interrupted: bool) -> dict[str, Any]:
    """A row that nothing was said of: never passed over in silence."""
    cause = "interrupted" if interrupted else "lost"
    code = InterruptedBuildError.code if interrupted else EdgeportError.code
    return bare(
        row,
        f"failed:{cause}",
        {"code": code, "message": f"not built: {cause}", "op": None, "source": None, "remedy": None},
    )
