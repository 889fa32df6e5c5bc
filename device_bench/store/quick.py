"""A schema as a function, for folders with many files: it only says yes when jsonschema would; then nobody asks that.

jsonschema takes milliseconds for a measurement, a function some tenths of one. A keyword that is not known here makes
the answer no, so that jsonschema decides, and names what is wrong. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]
_IGNORED = ("$schema", "title", "description", "then", "else")
_OF_OBJECTS = ("properties", "required", "additionalProperties")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_TYPES: dict[str, Check] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    # A float without a fraction is an integer to JSON Schema; here it is left to jsonschema.
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": _is_number,
}


def compiled(schema: Any) -> Check:
    """A function that is True only for values that keep to the schema."""
    if schema is True or schema == {}:
        return lambda value: True
    if not isinstance(schema, dict):
        return lambda value: False
    checks = [_keyword(name, schema) for name in schema if name not in _IGNORED]
    if any(name in schema for name in _OF_OBJECTS):
        checks.append(_object(schema))
    return lambda value: all(check(value) for check in checks)


def _keyword(name: str, schema: Mapping[str, Any]) -> Check:
    given = schema[name]
    if name in _OF_OBJECTS:
        return lambda value: True  # all three at once, see _object
    if name == "type":
        kinds = tuple(_TYPES[k] for k in ([given] if isinstance(given, str) else given))
        return kinds[0] if len(kinds) == 1 else lambda value: any(kind(value) for kind in kinds)
    if name == "const":
        return lambda value: type(value) is type(given) and value == given
    if name == "enum":
        return lambda value: any(type(value) is type(e) and value == e for e in given)
    if name == "minimum":
        return lambda value: not _is_number(value) or value >= given
    if name == "exclusiveMinimum":
        return lambda value: not _is_number(value) or value > given
    if name == "maximum":
        return lambda value: not _is_number(value) or value <= given
    if name == "minItems":
        return lambda value: not isinstance(value, list) or len(value) >= given
    if name == "pattern":
        pattern = re.compile(given)
        return lambda value: not isinstance(value, str) or pattern.search(value) is not None
    if name == "items":
        item = compiled(given)
        return lambda value: not isinstance(value, list) or all(item(v) for v in value)
    if name == "anyOf":
        some = [compiled(s) for s in given]
        return lambda value: any(check(value) for check in some)
    if name == "oneOf":
        # Each of them may say no where jsonschema says yes, so "exactly one" cannot be counted: only where the types
        # of the alternatives exclude each other is one enough.
        types = [s.get("type") if isinstance(s, dict) else None for s in given]
        if len(set(map(str, types))) == len(given) and all(isinstance(t, str) for t in types) and "number" not in types:
            return _keyword("anyOf", {"anyOf": given})
    if name == "if":
        return _condition(schema)
    return lambda value: False


def _object(schema: Mapping[str, Any]) -> Check:
    members = {name: compiled(s) for name, s in schema.get("properties", {}).items()}
    required = frozenset(schema.get("required", ()))
    others = compiled(schema.get("additionalProperties", True))

    def check(value: Any) -> bool:
        if not isinstance(value, dict):
            return True
        return required <= value.keys() and all(members.get(name, others)(v) for name, v in value.items())

    return check


def _condition(schema: Mapping[str, Any]) -> Check:
    """``if`` one member has one value, ``then``, ``else``: no other condition, since a no is not certain here."""
    condition = schema["if"]
    rule = condition.get("properties", {}) if isinstance(condition, dict) and set(condition) == {"properties"} else {}
    if len(rule) != 1:
        return lambda value: False
    ((name, asked),) = rule.items()
    if set(asked) != {"const"} or not isinstance(asked["const"], str):
        return lambda value: False
    then, other = compiled(schema.get("then", True)), compiled(schema.get("else", True))

    def check(value: Any) -> bool:
        if not isinstance(value, dict) or name not in value:
            return False
        return then(value) if value[name] == asked["const"] else other(value)

    return check
