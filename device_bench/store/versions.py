"""What a version is: anything that names what was measured, or with what. Standard library only."""

from __future__ import annotations

import re

from build.errors import InputError
from device_bench.store.rows import Measurement
from device_bench.store.text import plain

_HEX = re.compile(r"[0-9a-f]{6,64}")
#: hashes: the first six characters or more name one.
HASHED = ("artifact", "key", "program", "harness", "revision")


def check(version: str) -> None:
    """Raises:
    InputError: it names nothing.
    """
    name, given, value = version.rpartition("=")
    if not value.strip() or (given and not name.strip()):
        raise InputError(
            f"version '{plain(version, 60)}' names nothing",
            remedy="Write e.g. version:executorch=1.5.1, version:harness=HASH, version:revision=HASH or version:HASH.",
        )


def matches(version: str, found: dict[str, str]) -> bool:
    """Whether what a measurement was made with has this version.

    Args:
        version: ``NAME=VALUE`` with NAME one of ``artifact``, ``key``, ``program``, ``harness``, ``runtime``,
            ``revision`` or a tool of the toolchain (``executorch=1.5.1``); or VALUE alone: any of them. A hash may be
            cut to its first six characters or more; other values are equal or not.
        found: name -> version.
    """
    name, _, value = version.rpartition("=")
    value = value.strip()
    return any(_same(value, there, hashed=n in HASHED) for n, there in found.items() if name.strip() in ("", n))


def _same(value: str, there: str, *, hashed: bool) -> bool:
    return value == there or (hashed and bool(_HEX.fullmatch(value)) and there.startswith(value))


def of(measurement: Measurement, revision: str | None) -> dict[str, str]:
    """Name -> version of a measurement, the revision of the sources included where its run recorded one."""
    return {**measurement.versions, **({"revision": revision} if revision else {})}
