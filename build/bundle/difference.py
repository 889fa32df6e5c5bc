"""Which part of a file differs from another of the same name, said so that a person can look there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SHOWN = 3
_WIDTH = 60
_PIECE = 1 << 20


def explain(ours: Path, theirs: Path) -> str:
    """One line on the first parts that differ: a JSON path, a text line, or bytes and the last name before them."""
    if ours.suffix == ".json":
        try:
            pair = json.loads(ours.read_bytes()), json.loads(theirs.read_bytes())
        except ValueError:
            return _binary(ours, theirs)
        found = list(_json(*pair, ""))
        more = f" (and {len(found) - _SHOWN} more)" if len(found) > _SHOWN else ""
        return ("; ".join(found[:_SHOWN]) or "the same values, written otherwise") + more
    try:
        lines = ours.read_text(encoding="utf-8").splitlines(), theirs.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return _binary(ours, theirs)
    for number, (a, b) in enumerate(zip(*lines, strict=False), start=1):
        if a != b:
            start = max(next(i for i in range(max(len(a), len(b))) if a[i : i + 1] != b[i : i + 1]) - 20, 0)
            return f"line {number}: {a[start : start + _WIDTH]!r}, rebuilt {b[start : start + _WIDTH]!r}"
    return f"{len(lines[0])} lines, rebuilt {len(lines[1])}"


def _json(a: Any, b: Any, path: str) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in {**a, **b}:
            if key not in a or key not in b:
                yield f"{path}/{key} is only in the {'rebuilt one' if key not in a else 'bundle'}"
            else:
                yield from _json(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from _json(x, y, f"{path}/{_name(x, index)}")
    elif a != b:
        yield f"{path or '/'} is {json.dumps(a)[:_WIDTH]}, rebuilt {json.dumps(b)[:_WIDTH]}"


def _name(value: Any, index: int) -> str:
    """A list's item by what names it, if something does."""
    return str(value.get("path") or value.get("name") or index) if isinstance(value, dict) else str(index)


def _binary(ours: Path, theirs: Path) -> str:
    first, count, position = None, 0, 0
    before = b""
    with ours.open("rb") as a, theirs.open("rb") as b:
        while True:
            x, y = a.read(_PIECE), b.read(_PIECE)
            if not x or not y:
                break
            if x != y:
                here = [i for i, (p, q) in enumerate(zip(x, y, strict=False)) if p != q]
                if here and first is None:
                    first = position + here[0]
                    before = x[max(0, here[0] - 4096) : here[0]]
                count += len(here)
            position += min(len(x), len(y))
    sizes = ours.stat().st_size, theirs.stat().st_size
    text = "" if sizes[0] == sizes[1] else f"{sizes[0]} bytes, rebuilt {sizes[1]}; "
    if first is None:
        return f"{text}the shorter is the beginning of the longer"
    names = re.findall(rb"[A-Za-z_][\w./:-]{5,}", before)
    near = f", after '{names[-1][-_WIDTH:].decode()}'" if names else ""
    return f"{text}{count} bytes differ, the first at {first}{near}"
