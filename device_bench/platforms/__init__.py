"""Where artifacts are measured: one module a platform, one row in each table here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, cast

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

#: platform -> kinds of place whose measurements speak for it, and their architecture (None: any).
EVIDENCE: dict[str, tuple[tuple[str, ...], str | None]] = {
    "android": (("adb",), None),
    "linux-arm64": (("ssh", "local"), "aarch64"),
    "pc": (("pc",), None),
    "apple": (("mac",), None),
    "web": (("browser",), None),
}


def speaks_for(device: Mapping[str, Any], platform: str) -> bool:
    """Whether what was measured on a device (its facts) is evidence for a platform."""
    kinds, arch = EVIDENCE.get(platform, ((), None))
    return device["kind"] in kinds and arch in (None, device["arch"])


def load(session: str) -> Platform:
    """The platform of a session."""
    return cast(Platform, importlib.import_module(f"device_bench.platforms.{SESSIONS[session]}"))
