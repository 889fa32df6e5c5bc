"""The job as the harness reads it, and its tensors as far as they fit the program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.errors import InputError, VerificationError
from device_bench.harness.python.engine import Failure
from targets.checks import check_inputs, signature_from_json
from targets.contract import Signature

if TYPE_CHECKING:
    from targets.contract import Array

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run. Fields of the native harness's job, the program's signature, and options for the engine."""

    id: str
    artifact: Path
    artifact_sha256: str
    tensors: Path
    signature: Signature
    timed: str
    calls: tuple[str, ...]
    settings: Mapping[str, Any]
    options: Mapping[str, Any]
    result_file: Path
    outputs_file: Path


def read_job(path: Path) -> Job:
    """Read a job.

    Raises:
        Failure: it cannot be read, or is of another version.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["schema_version"] != SCHEMA_VERSION:
            raise Failure("job", f"another schema version: {value['schema_version']}, not {SCHEMA_VERSION}")
        return Job(
            id=value["id"],
            artifact=Path(value["artifact"]),
            artifact_sha256=value["artifact_sha256"],
            tensors=Path(value["tensors"]),
            signature=signature_from_json(value["signature"]),
            timed=value["timed"]["id"],
            calls=tuple(c["id"] for c in value["calls"]),
            settings=value["settings"],
            options=value["options"],
            result_file=Path(value["result_file"]),
            outputs_file=Path(value["outputs_file"]),
        )
    except (OSError, ValueError, KeyError, TypeError, VerificationError) as error:
        raise Failure("job", f"the job cannot be read: {type(error).__name__}: {error}") from error


class Tensors:
    """The inputs of every call, checked against the program's dtypes and bounds as they are taken."""

    def __init__(self, job: Job) -> None:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        self._signature = job.signature
        try:
            self._tensors = load_file(job.tensors)
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise Failure("tensors", f"{job.tensors.name} cannot be read: {error}") from error

    def of(self, call: str) -> tuple[dict[str, Array], dict[str, int]]:
        """A call's inputs by name, C-contiguous, and the root sizes that they fix.

        Raises:
            Failure: one is missing, of another dtype or rank, or outside the program's bounds.
        """
        import numpy as np

        found = {}
        for spec in self._signature.inputs:
            name = f"{call}/in/{spec.name}"
            if name not in self._tensors:
                raise Failure("tensors", f"the tensors hold no '{name}'")
            value = self._tensors[name]
            found[spec.name] = np.ascontiguousarray(value).reshape(value.shape)
        try:
            return found, check_inputs(self._signature, found)
        except InputError as error:
            raise Failure("tensors", f"call '{call}': {error.message}") from error
