"""One job for one page."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: seconds between two words of a page that are shown.
_PROGRESS = 30.0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long a page is waited for, in seconds.

    Attributes:
        silence: without a word of it. A slow page that goes on is waited for: a GPU in software takes seconds a call.
        whole: from its opening to its end, whatever it says; None: no bound.
    """

    silence: float
    whole: float | None = None


@dataclass(kw_only=True)
class Ticket:
    """One job that a page may take, carry out and answer, once.

    Attributes:
        files: path below the page -> file or content.
        uploads: what the page may send -> most bytes; each is taken once. ``result`` comes last.
        folder: where uploads are put.
        stage: where the page says it is; empty: no page has asked for the job.
        heard: when it last said so, or when the job was made: ``time.monotonic()``, seconds.
        told: when somebody was last told: ``time.monotonic()``, seconds.
        left: why the page went away without a result; None: it did not.
    """

    files: Mapping[str, Path | bytes]
    uploads: Mapping[str, int]
    folder: Path
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    stage: str = ""
    heard: float = field(default_factory=time.monotonic)
    told: float = field(default_factory=time.monotonic)
    left: str | None = None
    received: set[str] = field(default_factory=set)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def answered(self) -> bool:
        """Whether the result is here."""
        return "result" in self.received

    def at(self, stage: str) -> bool:
        """The page says where it is. Returns whether somebody who waits should hear of it: now and then."""
        self.stage, self.heard = stage, time.monotonic()
        if self.heard - self.told < _PROGRESS:
            return False
        self.told = self.heard
        return True

    def overdue(self, since: float, limits: Limits) -> str | None:
        """Why the page is waited for no longer; None: it still is.

        Args:
            since: when it was opened: ``time.monotonic()``, seconds.
        """
        now = time.monotonic()
        if limits.whole is not None and now - since > limits.whole:
            return f"the page had not finished after {limits.whole:g} s"
        if now - max(since, self.heard) > limits.silence:
            return f"the page has said nothing for {limits.silence:g} s"
        return None
