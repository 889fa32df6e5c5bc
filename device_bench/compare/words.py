"""Numbers and tables as text, for a terminal and for Markdown. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence

from device_bench.store.text import plain

#: what Markdown, or a forge that shows it, would act on: mentions among it.
_MARKDOWN = {c: f"\\{c}" for c in "\\`*_[]#|~!"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "&#64;"}


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table for a terminal; every cell is made harmless."""
    lines = [list(head), *([plain(cell, 80) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    return [text[0], "  ".join("-" * w for w in widths), *text[1:]]


def markdown(text: object, limit: int = 200) -> str:
    """Text that Markdown shows as it is."""
    # An address would become a link without any markup.
    return (
        "".join(_MARKDOWN.get(c, c) for c in plain(text, limit)).replace("://", "&#58;//").replace("www.", "www&#46;")
    )


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table in Markdown; every cell is made harmless."""
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(markdown(cell, 80) or ' ' for cell in row)} |" for row in rows),
    ]


def milliseconds(value: float | None) -> str:
    """``12.345``; ``-`` where there is none."""
    return "-" if value is None else f"{value:.3f}" if value >= 0.01 else f"{value:.6f}"


def percent(value: float) -> str:
    """``+4.6%``."""
    return f"{value:+.1%}"
