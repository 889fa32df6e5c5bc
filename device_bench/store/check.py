"""Files of a results folder are untrusted: each is checked whole before anything of it is used.

Every function takes a file's bytes, and raises :class:`RejectedResultError` with a reason that is one line.
"""

from __future__ import annotations

import json
import math
import re
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from build import manifest as manifests
from build.errors import RejectedResultError
from device_bench.harness_result import schema_problem
from device_bench.measurement import END, MAX_BYTES, SCHEMA, SCHEMA_VERSION
from device_bench.result_json import read_json
from device_bench.store import figures, quick
from device_bench.store.text import plain

RUN_SCHEMA = Path(__file__).with_name("run.schema.json")
SUMMARY_SCHEMA = Path(__file__).with_name("summary.schema.json")
MANIFEST_SCHEMA = Path(manifests.__file__).with_name("manifest.schema.json")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
#: no lab measures in another year: such a run would be the newest or the oldest one for good.
_YEARS = range(2000, 2200)
_LARGEST = 2**63 - 1
_DEEPEST = 64


def _read(content: bytes) -> Any:
    if len(content) > MAX_BYTES:
        raise RejectedResultError(f"it has {len(content)} bytes, more than {MAX_BYTES}")
    return read_json(content, "it")


def _check_values(value: Any, depth: int = 0) -> None:
    if depth > _DEEPEST:
        raise RejectedResultError("it is nested too deeply")
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise RejectedResultError("it holds a number that is not finite")
    elif isinstance(value, int):
        if abs(value) > _LARGEST:
            raise RejectedResultError("it holds a number of more than 64 bits")
    elif isinstance(value, dict):
        for name, item in value.items():
            _check_text(name)
            _check_values(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_values(item, depth + 1)


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RejectedResultError("it holds half a character (a lone surrogate)") from error


def _record(content: bytes, schema: Path, version: int) -> dict[str, Any]:
    value = _read(content)
    found = value.get("schema_version") if isinstance(value, dict) else None
    if not isinstance(value, dict) or found != version or isinstance(found, bool):
        raise RejectedResultError(f"it has schema version {plain(repr(found), 40)}, not {version}")
    _check_values(value)
    _check_schema(value, schema)
    return value


@cache
def _quick(schema: Path) -> quick.Check:
    return quick.compiled(json.loads(schema.read_text()))


def _check_schema(value: Any, schema: Path) -> None:
    if _quick(schema)(value):
        return
    problem = schema_problem(value, schema)
    if problem is not None:
        raise RejectedResultError(f"it does not keep to its schema: {plain(problem)}")


def measurement(content: bytes, *, folder: str | None = None) -> dict[str, Any]:
    """A measurement: keeps to its schema, ended, and its figures are those of its samples.

    Args:
        folder: that the file lies in, which must be called by the device; None where that is not known.
    """
    value = _read(content)
    version = value.get("schema_version") if isinstance(value, dict) else None
    if not isinstance(value, dict) or version != SCHEMA_VERSION or isinstance(version, bool):
        raise RejectedResultError(f"it has schema version {plain(repr(version), 40)}, not {SCHEMA_VERSION}")
    if value.get("end") != END:
        raise RejectedResultError("it has no end marker: it is not a measurement, or it was cut short")
    samples = value.get("samples_ns")
    if samples is not None:
        if not isinstance(samples, list) or not all(type(s) is int and 0 <= s <= _LARGEST for s in samples):
            raise RejectedResultError("its samples are not whole numbers of ns")
        # The schema is asked about one of them: it would look at each, and there may be a million.
        value["samples_ns"] = samples[:1]
    _check_values(value)
    _check_schema(value, SCHEMA)
    if samples is not None:
        value["samples_ns"] = samples
    for name in ("started", "finished"):
        _check_time(name, value[name])
    figures.check_identity(value["measurement"], folder)
    if value["status"] == "ok":
        figures.check(value, samples or [])
    return value


def _check_time(name: str, text: str) -> None:
    try:
        # Whatever else the parser takes, text is compared with text later on: it has to have this very form.
        found = datetime.fromisoformat(text[:-1]) if _TIME.fullmatch(text) else None
    except ValueError:  # of this form, but there is no such day or hour
        found = None
    if found is None or found.year not in _YEARS:
        raise RejectedResultError(f"'{name}' is {plain(repr(text), 40)}, not a time in UTC")


def run(content: bytes) -> dict[str, Any]:
    """``run.json``."""
    value = _record(content, RUN_SCHEMA, 1)
    _check_time("started", value["started"])
    return value


def summary(content: bytes) -> dict[str, Any]:
    """``summary.json``."""
    return _record(content, SUMMARY_SCHEMA, 1)


def manifest(content: bytes) -> dict[str, Any]:
    """An artifact's ``manifest.json``."""
    return _record(content, MANIFEST_SCHEMA, manifests.SCHEMA_VERSION)
