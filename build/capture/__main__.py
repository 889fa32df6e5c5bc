"""The capture worker: ``python -m build.capture``, one job per source (see ``build/protocol.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build.capture.run import Emit, capture
from build.protocol import serve


def _handle(job: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    record = capture(job["source"], Path(job["directory"]), emit)
    return {"sha256": record.sha256}


if __name__ == "__main__":
    serve(_handle)
