"""Bars as wide as the page gives them: shares in percent of their own width. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence

from device_bench.report.svg import Safe, el


def shares(parts: Sequence[tuple[str, int]], *, label: str, kind: str = "bar") -> Safe:
    """One bar cut into parts.

    Args:
        parts: (CSS class, amount).
        label: what it says, to those who cannot see it.
    """
    total = sum(n for _, n in parts)
    pieces = []
    at = 0.0
    for name, amount in parts:
        if amount:
            wide = 100 * amount / total
            pieces.append(el("rect", x=f"{at:.2f}%", y=0, width=f"{wide:.2f}%", height="100%", class_=name))
            at += wide
    return el("svg", *pieces, role="img", aria_label=label, class_=kind, width="100%", height=14)
