"""JSON from an archive, strictly. Standard library only."""

from __future__ import annotations

import json
from typing import Any

from build.errors import UntrustedInputError
from build.untrusted.container import DAMAGED, Container, Limits

_MAX_JSON_DEPTH = 120
_MAX_PATH = 160


def step(path: str, key: str) -> str:
    """The path of an object's field, for messages: one line, and no longer than one can read."""
    path = f"{path}.{key}" if key.isidentifier() and len(key) <= 60 else f"{path}[{key[:40]!r}]"
    return path if len(path) <= _MAX_PATH else f"{path[:60]} ... {path[-60:]}"


def read_json(container: Container, name: str, limits: Limits) -> Any:
    """Parse one JSON file strictly: no duplicate keys, no NaN, bounded depth.

    Raises:
        UntrustedInputError: it isn't such JSON.
    """
    where = f"{container.label}: {name}"

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            raise ValueError("a key appears twice")
        return found

    def constant(text: str) -> Any:
        raise ValueError(f"{text} is not JSON")

    try:
        text = container.read(name, limits.text_bytes).decode("utf-8")
        data = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else " ".join(str(error).split())[:120]
        raise UntrustedInputError(f"{where} is not valid JSON: {why}", remedy=DAMAGED) from None
    if not isinstance(data, dict):
        raise UntrustedInputError(f"{where} is not a JSON object", remedy=DAMAGED)
    stack: list[tuple[Any, int]] = [(data, 0)]
    while stack:
        value, depth = stack.pop()
        if depth > _MAX_JSON_DEPTH:
            raise UntrustedInputError(f"{where} is nested too deep", remedy=DAMAGED)
        if isinstance(value, (dict, list)):
            stack += [(v, depth + 1) for v in (value.values() if isinstance(value, dict) else value)]
    return data
