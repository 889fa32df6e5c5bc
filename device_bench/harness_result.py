"""Reading what the harness wrote: checked before it is believed. Schema: ``harness_result.schema.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.errors import RejectedResultError
from device_bench.result_json import read_json

if TYPE_CHECKING:
    from targets.contract import Array

END_MARKER = "edgeport-end-of-run"
SCHEMA = Path(__file__).with_name("harness_result.schema.json")
SCHEMA_VERSION = 1
#: a million samples of ten digits each, and room for the rest.
MAX_BYTES = 16 << 20


@cache
def _validator(path: Path) -> Any:
    import jsonschema

    return jsonschema.Draft202012Validator(json.loads(path.read_text()))


def schema_problem(value: Any, schema: Path) -> str | None:
    """The most telling way in which a value breaks a schema; None when it keeps to it."""
    import jsonschema

    error = jsonschema.exceptions.best_match(_validator(schema).iter_errors(value))
    if error is None:
        return None
    where = "/".join(map(str, error.absolute_path)) or "the top level"
    return f"{where}: {error.message[:200]}"


def ended(stdout: str, job_id: str) -> bool:
    """Whether the harness said in its last line that this very job ran to its end."""
    lines = stdout.strip().splitlines()
    return bool(lines) and lines[-1].strip() == f"{END_MARKER} {job_id}"


def parse(content: bytes, job: Mapping[str, Any]) -> dict[str, Any]:
    """A harness's result for this job.

    Raises:
        RejectedResultError: too large, not JSON, a NaN, cut short, another schema version, another job or artifact.
    """
    if len(content) > MAX_BYTES:
        raise RejectedResultError(f"the result has {len(content)} bytes, more than the {MAX_BYTES} it may have")
    value = read_json(content, "the result")
    if not isinstance(value, dict):
        raise RejectedResultError("the result is not a JSON object")
    if value.get("schema_version") != SCHEMA_VERSION:
        raise RejectedResultError(
            f"the result has schema version {str(value.get('schema_version'))[:20]}, this lab reads {SCHEMA_VERSION}",
            remedy="Build the harness again: nox -s build-harness",
        )
    if value.get("end") != END_MARKER:
        raise RejectedResultError("the result has no end-of-run marker: the run did not finish")
    problem = schema_problem(value, SCHEMA)
    if problem is not None:
        raise RejectedResultError(f"the result does not keep to its schema: {problem}")
    for field, wanted in (("job", job["id"]), ("artifact_sha256", job["artifact_sha256"])):
        if value[field] != wanted:
            raise RejectedResultError(f"the result is of another {field}: {value[field][:16]}…, not {wanted[:16]}…")
    return value


def max_output_bytes(job: Mapping[str, Any], bytes_per_call: int) -> int:
    """What the outputs file of a job can be at most: its data, and a header with room to spare."""
    return len(job["calls"]) * (bytes_per_call + 4096 * len(job["outputs"])) + (1 << 20)


def read_outputs(file: Path, job: Mapping[str, Any]) -> dict[str, dict[str, Array]]:
    """Call id -> output name -> array, for every call of the job.

    Raises:
        RejectedResultError: not a safetensors file, or a call or output is missing or there twice.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(file)
    except (SafetensorError, ValueError, KeyError, OSError) as error:
        raise RejectedResultError(f"the outputs cannot be read: {str(error)[:200]}") from error
    wanted = {f"{c['id']}/out/{name}" for c in job["calls"] for name in job["outputs"]}
    if set(tensors) != wanted:
        odd = sorted(wanted ^ set(tensors))
        raise RejectedResultError(f"the outputs are not those of the job: {len(odd)} differ, first '{odd[0]}'")
    return {c["id"]: {name: tensors[f"{c['id']}/out/{name}"] for name in job["outputs"]} for c in job["calls"]}
