"""One job for one page."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(kw_only=True)
class Ticket:
    """One job that a page may take, carry out and answer, once.

    Attributes:
        files: path below the page -> file or content.
        uploads: what the page may send -> most bytes; each is taken once. ``result`` comes last.
        folder: where uploads are put.
        stage: where the page says it is; empty: no page has asked for the job.
        left: why the page went away without a result; None: it did not.
    """

    files: Mapping[str, Path | bytes]
    uploads: Mapping[str, int]
    folder: Path
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    stage: str = ""
    left: str | None = None
    received: set[str] = field(default_factory=set)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def answered(self) -> bool:
        """Whether the result is here."""
        return "result" in self.received
