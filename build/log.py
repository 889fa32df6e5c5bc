"""Progress and messages for people, on stderr. Machine-readable output never passes through here."""

from __future__ import annotations

import sys
import threading
import time

_lock = threading.Lock()
_start = time.monotonic()


def say(message: str, *, prefix: str = "edgeport") -> None:
    """One line on stderr with the seconds since the start."""
    with _lock:
        print(f"[{prefix} {time.monotonic() - _start:6.1f}s] {message}", file=sys.stderr, flush=True)


def fail(error: BaseException) -> None:
    """The one clear line of an error."""
    with _lock:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
