"""JSON that came with a bundle: read strictly, then compared with its schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from build.errors import VerificationError

_MAX_BYTES = 256 << 20


def read(path: Path, schema: Path, what: str) -> dict[str, Any]:
    """A document that keeps to its schema.

    Args:
        what: how messages name it.

    Raises:
        VerificationError: it is missing, no JSON, or not what the schema says.
    """
    import jsonschema

    value = parse(path, what)
    validator = jsonschema.Draft202012Validator(json.loads(schema.read_text(encoding="utf-8")))
    problems = sorted(validator.iter_errors(value), key=lambda e: [str(p) for p in e.absolute_path])
    if problems:
        where = "/".join(map(str, problems[0].absolute_path)) or "the whole"
        raise VerificationError(f"{what} does not keep to its schema: {where}: {problems[0].message[:200]}")
    return value


def parse(path: Path, what: str) -> dict[str, Any]:
    """A JSON object without duplicate keys, NaN or infinity.

    Raises:
        VerificationError: it is missing, too large or no such JSON.
    """
    if not path.is_file():
        raise VerificationError(f"{what} is missing", remedy="Get the bundle again from who made it.")
    if path.stat().st_size > _MAX_BYTES:
        raise VerificationError(f"{what} has more than {_MAX_BYTES} bytes")
    try:
        value = json.loads(path.read_bytes(), object_pairs_hook=_distinct, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise VerificationError(f"{what} is no JSON: {str(error)[:160]}") from error
    if not isinstance(value, dict):
        raise VerificationError(f"{what} is no JSON object")
    return value


def _distinct(items: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(items)
    if len(found) != len(items):
        raise ValueError("a key appears twice")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")
