"""Strings and numbers of the report. Whatever came from a file is cleaned here, once. Standard library only."""

from __future__ import annotations

import math
import re
from typing import Any

from build.summary import size_text
from device_bench.store import plain

#: longest name and longest message that the report shows; the rest is counted.
NAME_LIMIT = 80
MESSAGE_LIMIT = 600
#: what stands for a value that is not there.
NONE = "–"

_SPACE = re.compile(r"\s+")
_STACKED = re.compile("(?<=[\u0300-\u036f])[\u0300-\u036f]+")


def clean(value: Any, limit: int = NAME_LIMIT) -> str:
    """Any value as one line of harmless text: controls and direction marks spelt out, no longer than ``limit``.

    It is still text, not HTML and not Markdown: those escape it on their own.
    """
    text = _SPACE.sub(" ", str(value)[: 4 * limit + 1]).strip()
    # Many marks stacked on one letter would paint over the lines around it.
    return _STACKED.sub("", plain(text, limit))


def message(value: Any) -> str:
    """:func:`clean` for a sentence."""
    return clean(value, MESSAGE_LIMIT)


def milliseconds(value: float | None, *, unit: bool = False) -> str:
    """Three significant digits, never in powers of ten: ``0.0123``, ``4.56``, ``78.9``, ``1234``."""
    return NONE if value is None else significant(value) + (" ms" if unit else "")


def significant(value: float, digits: int = 3) -> str:
    """A number with so many significant digits and no exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:.{min(places, 9)}f}"


def rate(value: float | None) -> str:
    """Examples per second: ``46,766``, ``97.2``."""
    return NONE if value is None else f"{value:,.0f}" if value >= 1000 else significant(value)


def percent(share: float, *, sign: bool = False) -> str:
    """``9 %``; with ``sign`` ``+9 %``, ``0 %``."""
    whole = round(100 * share)
    return f"{whole:+d} %" if sign and whole else f"{whole} %"


def size(value: int | None) -> str:
    """``18.6 MB``."""
    return NONE if value is None else size_text(value)


def mebibytes(value: float | None) -> str:
    """``41.2``, in MiB."""
    return NONE if value is None else f"{value:.1f}"


_UNITS = {"p95_ms": " ms", "peak_mb": " MiB"}


def figure(limit: str, value: float) -> str:
    """A value of one of a budget's limits, with its unit."""
    if limit == "max_bytes":
        return size_text(round(value))
    return f"{value:.4g}{_UNITS.get(limit, '')}"


def moment(text: str) -> str:
    """``2026-11-29 20:15 UTC`` of ``2026-11-29T20:15:00Z``."""
    return f"{text[:10]} {text[11:16]} UTC" if len(text) == 20 else text


def count(number: int, one: str, many: str | None = None) -> str:
    """``1 device``, ``2,000 samples``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def words(items: list[str]) -> str:
    """``a, b and c``."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


_NARROW = frozenset("fijlrtIJ!'(),-./:;[]\\| ")
_WIDE = frozenset("mwMW@%")


def fitted(words: str, room: float) -> str:
    """A label cut so that it stays within ``room`` letters of average width, whatever letters it is made of.

    Widths are DejaVu Sans's, the widest of the usual system fonts, rounded up; what is not ASCII may be square.
    """
    left = room
    for place, letter in enumerate(words):
        left -= _width(letter)
        if left < 0:
            kept = words[:place]
            while kept and sum(map(_width, kept)) > room - _width("…"):
                kept = kept[:-1]
            return f"{kept}…"
    return words


def _width(letter: str) -> float:
    if letter in _NARROW:
        return 0.85
    if letter in _WIDE or not letter.isascii():
        return 2.1
    return 1.3 if letter.islower() or letter.isdigit() else 1.65
