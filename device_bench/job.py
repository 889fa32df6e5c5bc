"""What the harness is asked to do: the job and its tensors. Schema of the job: ``job.schema.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.cache import key_of, staging
from build.errors import InputError
from build.record import REFERENCE, CallRecord, ProgramRecord
from device_bench.artifacts import Artifact
from targets.checks import check_inputs
from targets.contract import DynamicDim, TensorSpec

if TYPE_CHECKING:
    from targets.contract import Array

SCHEMA_VERSION = 1
#: what a symbol must be called for ``--batch`` to change its size.
BATCH = "batch"
TIMED = "timed"
_NO_BOUND = 2**62
#: numpy's names of dtypes -> safetensors'.
_DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a measurement is taken. What the defaults mean: docs/DEVICES.md.

    Attributes:
        affinity: CPUs that the harness is pinned to; empty: wherever the kernel likes.
        max_runs, max_seconds: where the timed loop ends in any case.
        batch: size of the batch dimension of the timed call; None: the first evaluation call as it is.
    """

    threads: int = 1
    affinity: tuple[int, ...] = ()
    warmup_runs: int = 5
    warmup_seconds: float = 0.5
    min_runs: int = 50
    min_seconds: float = 1.0
    max_runs: int = 1_000_000
    max_seconds: float = 60.0
    batch: int | None = None

    def for_harness(self) -> dict[str, Any]:
        """The part that the harness is told."""
        return {
            "threads": self.threads,
            "affinity": list(self.affinity),
            "warmup_runs": self.warmup_runs,
            "warmup_seconds": self.warmup_seconds,
            "min_runs": self.min_runs,
            "min_seconds": self.min_seconds,
            "max_runs": self.max_runs,
            "max_seconds": self.max_seconds,
        }


#: for outputs alone: nothing is timed.
OUTPUTS_ONLY = Settings(warmup_runs=0, warmup_seconds=0.0, min_runs=1, min_seconds=0.0, max_runs=1)


@dataclass(frozen=True, kw_only=True)
class Data:
    """A model's inputs for the device, one file for all artifacts made from the program.

    Attributes:
        file: safetensors: ``CALL/in/INPUT`` of the evaluation calls, ``timed/in/INPUT``.
        calls: the evaluation calls; every call of the reference data where there is no evaluation set.
        timed_sizes: root sizes of the timed call.
        timed_batch: examples in the timed call; 1 where the program has no dimension of that name.
    """

    file: Path
    calls: tuple[CallRecord, ...]
    timed_sizes: Mapping[str, int]
    timed_batch: int = 1


def evaluation_calls(record: ProgramRecord) -> tuple[CallRecord, ...]:
    """The calls that run on the device."""
    return tuple(c for c in record.calls if c.kind == "evaluation") or record.calls


def make_data(out: Path, record: ProgramRecord, program_folder: Path, batch: int | None) -> Data:
    """Write the tensors, once for a program and a batch.

    Raises:
        InputError: the program has no such batch.
    """
    from safetensors import safe_open
    from safetensors.numpy import save_file

    calls = evaluation_calls(record)
    if not calls:
        raise InputError(f"'{record.name}' has no reference data to run")
    timed_sizes = dict(calls[0].sizes)
    symbols = [s for s, name in record.symbols.items() if name == BATCH]
    if batch is not None:
        if len(symbols) != 1:
            raise InputError(f"--batch {batch}: '{record.name}' has no dimension named '{BATCH}'")
        timed_sizes[symbols[0]] = batch
    key = key_of(reference=record.files[REFERENCE], batch=batch, calls=[c.id for c in calls], format=1)
    home = out / "bench" / "data"
    file = home / f"{record.name}-{key[:16]}.safetensors"
    if not file.is_file():
        tensors = {}
        with safe_open(program_folder / REFERENCE, framework="numpy") as source:
            for call in calls:
                for spec in record.signature.inputs:
                    tensors[f"{call.id}/in/{spec.name}"] = source.get_tensor(f"{call.id}/in/{spec.name}")
        first = {s.name: tensors[f"{calls[0].id}/in/{s.name}"] for s in record.signature.inputs}
        timed = _resized(record, first, timed_sizes) if batch is not None else first
        tensors.update({f"{TIMED}/in/{name}": value for name, value in timed.items()})
        home.mkdir(parents=True, exist_ok=True)
        with staging(out) as folder:
            save_file(tensors, folder / "data")
            (folder / "data").replace(file)
    timed_batch = timed_sizes.get(symbols[0], 1) if len(symbols) == 1 else 1
    return Data(file=file, calls=calls, timed_sizes=timed_sizes, timed_batch=timed_batch)


def _resized(record: ProgramRecord, inputs: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[str, Array]:
    """Inputs tiled or cut to other root sizes, checked against the program's range."""
    import numpy as np

    found = {}
    for spec in record.signature.inputs:
        value = inputs[spec.name]
        for axis, dim in enumerate(spec.shape):
            if isinstance(dim, DynamicDim):
                size = dim.scale * sizes[dim.symbol] + dim.offset
                value = np.take(value, [i % value.shape[axis] for i in range(size)], axis=axis)
        found[spec.name] = np.ascontiguousarray(value)
    check_inputs(record.signature, found)
    return found


def make_job(
    artifact: Artifact, data: Data, settings: Settings, *, job_id: str, paths: Mapping[str, str], evaluate: bool
) -> dict[str, Any]:
    """The job as JSON values.

    Args:
        paths: ``artifact``, ``tensors``, ``result`` and ``outputs``: paths on the device.
        evaluate: run the evaluation calls too, and write their outputs.
    """
    signature = artifact.record.signature
    names = [s.name for s in signature.inputs]

    def call(call_id: str, sizes: Mapping[str, int]) -> dict[str, Any]:
        return {"id": call_id, "entry": artifact.entry(sizes), "tensors": [f"{call_id}/in/{n}" for n in names]}

    return {
        "schema_version": SCHEMA_VERSION,
        "id": job_id,
        "artifact": paths["artifact"],
        "artifact_sha256": artifact.sha256,
        "tensors": paths["tensors"],
        "inputs": [input_json(s) for s in signature.inputs],
        "outputs": [s.name for s in signature.outputs],
        "timed": call(TIMED, data.timed_sizes),
        "calls": [call(c.id, c.sizes) for c in data.calls] if evaluate else [],
        "settings": settings.for_harness(),
        "result_file": paths["result"],
        "outputs_file": paths["outputs"],
    }


def input_json(spec: TensorSpec) -> dict[str, Any]:
    """An input as the harness checks it: safetensors' dtype, and the least and largest size of each dimension."""
    ranges = [(d.lo, _NO_BOUND if d.hi is None else d.hi) if isinstance(d, DynamicDim) else (d, d) for d in spec.shape]
    return {"name": spec.name, "dtype": _DTYPES[spec.dtype], "shape": ranges}


def job_text(job: Mapping[str, Any]) -> str:
    """The job file."""
    return json.dumps(job)
