"""Semantic versions. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

from build.errors import InputError

_SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?")


@total_ordering
@dataclass(frozen=True, eq=False)
class Version:
    """A semantic version (semver.org, without build metadata), ordered as the standard says."""

    text: str

    def __post_init__(self) -> None:
        match = _SEMVER.fullmatch(self.text)
        if match is None or any(p.isdecimal() and p != str(int(p)) for p in (match[4] or "").split(".") if p):
            raise InputError(
                f"'{self.text[:80]}' is not a semantic version", remedy="Give MAJOR.MINOR.PATCH, such as 1.4.0."
            )

    @property
    def numbers(self) -> tuple[int, int, int]:
        """MAJOR, MINOR, PATCH."""
        match = _SEMVER.fullmatch(self.text)
        assert match is not None
        return int(match[1]), int(match[2]), int(match[3])

    @property
    def _key(self) -> tuple[object, ...]:
        match = _SEMVER.fullmatch(self.text)
        assert match is not None
        parts = (match[4] or "").split(".") if match[4] else []
        # A pre-release comes before its release; numbers before words.
        words = tuple((0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts)
        return (*self.numbers, not parts, words)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __lt__(self, other: Version) -> bool:
        return self._key < other._key

    def __str__(self) -> str:
        return self.text
