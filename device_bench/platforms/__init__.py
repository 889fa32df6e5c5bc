"""Where artifacts are measured: one module a platform, one row here."""

from __future__ import annotations

import importlib
from typing import cast

from device_bench.contract import Platform

#: session -> module.
SESSIONS = {
    "bench-android": "android",
    "bench-linux-arm64": "linux_arm64",
    "bench-local": "local",
    "bench-pc": "pc",
    "bench-apple": "apple",
    "bench-web": "web",
}


def load(session: str) -> Platform:
    """The platform of a session."""
    return cast(Platform, importlib.import_module(f"device_bench.platforms.{SESSIONS[session]}"))
