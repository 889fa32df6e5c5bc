"""Text from a result file, made harmless for a terminal or a table. Standard library only."""

from __future__ import annotations


def plain(text: object, limit: int = 200) -> str:
    """One line that shows every character: what does not show what it does (controls, terminal
    escapes, newlines, bidirectional overrides, zero-width marks, odd spaces) is written as an escape (``\\x1b``).

    Args:
        limit: characters after which it is cut, with an ellipsis.
    """
    shown = "".join(c if c.isprintable() else _escape(c) for c in str(text)[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
