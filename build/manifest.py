"""The artifact manifest and the summary row. JSON Schema: ``build/manifest.schema.json``. Standard library only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from build.cache import key_of, list_files, sha256_file
from build.errors import EXIT_CODES, StorageError
from build.record import REFERENCE, ProgramRecord
from targets.checks import signature_to_json

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
OK = ("ok", "ok-undelegated")
#: Stands for minus infinity in JSON, which has no infinity: PyTorch's values are all zero, the artifact's are not.
NO_SIGNAL_DB = -9999.0

#: Exit codes from worst to mildest: a run with several failures ends with the first of these that occurred.
_SEVERITY = (4, 3, 6, 7, 5, 8, 2, 130, 1)


def begin(record: ProgramRecord, job: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest says before anything was tried: what the artifact is to be made from."""
    signature = json.loads(signature_to_json(record.signature))
    return {
        "schema_version": SCHEMA_VERSION,
        "model": record.name,
        "target": job["target"],
        "precision": job["precision"],
        "key": job["key"],
        "program": record.sha256,
        "toolchain": job["toolchain"],
        "judged_by": {
            "code": job.get("code"),
            "reference": record.files.get(REFERENCE),
            "record": job.get("judged_as"),
        },
        "calibration": calibration(record, job["precision"]),
        "kept_float": list(job.get("keep_float", ())),
        "cost": record.cost,
        "inputs": signature["inputs"],
        "outputs": signature["outputs"],
        "warnings": list(record.warnings_at(job["precision"])),
        "licence": record.licence,
        "files": [],
        "bytes": 0,
        "metric": None,
        "seconds": 0.0,
        "peak_mb": 0.0,
    }


def calibration(record: ProgramRecord, precision: str) -> dict[str, Any] | None:
    """What is said of the calls that an artifact of this precision is calibrated with; None for the others."""
    found = record.calibration_at(precision)
    if found is None:
        return None
    return {"sha256": found.sha256, "calls": len(found.calls), "source": found.source}


def failure(error: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an error that a manifest and a summary row hold."""
    return {k: error.get(k) for k in ("code", "message", "op", "source", "remedy")}


#: what a manifest says of an artifact's origin, and not of its files or of how they compare
_ORIGIN = ("schema_version", "model", "target", "precision", "key", "program", "toolchain", "judged_by", "calibration",
           "kept_float", "cost", "inputs", "outputs", "licence")  # fmt: skip


def superseded(old: Mapping[str, Any], status: str, error: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest that takes an artifact's place: where that one came from, and why it does not count any more."""
    value = {name: old[name] for name in _ORIGIN if name in old}
    nothing = {"warnings": [], "files": [], "bytes": 0, "metric": None, "seconds": 0.0, "peak_mb": 0.0}
    return value | nothing | {"status": status, "error": failure(error)}


def write(folder: Path, value: Mapping[str, Any]) -> None:
    """Write a manifest into a staging folder.

    Raises:
        StorageError: the disk is full.
    """
    try:
        (folder / MANIFEST).write_text(json_text(value) + "\n")
    except OSError as error:
        raise StorageError(f"cannot write a manifest: {error.strerror or error}") from error


def snr_to_json(snr_db: float) -> float | None:
    """An SNR as JSON holds it: None for equal values, ``NO_SIGNAL_DB`` where there is nothing but noise."""
    if snr_db == math.inf:
        return None
    return snr_db if math.isfinite(snr_db) else NO_SIGNAL_DB


def json_text(value: Any) -> str:
    """As it is written; a figure that is no number (an error relative to zero) is null, as JSON has no infinity."""
    return json.dumps(finite(value), indent=1, allow_nan=False)


def finite(value: Any) -> Any:
    """The same with None for every figure that is infinite or no number."""
    if isinstance(value, Mapping):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def describe_files(folder: Path) -> list[dict[str, Any]]:
    """``[{"path", "bytes", "sha256"}]`` of every file of an artifact, the manifest left out."""
    return [
        {"path": str(p), "bytes": (folder / p).stat().st_size, "sha256": sha256_file(folder / p)}
        for p in list_files(folder)
        if str(p) != MANIFEST
    ]


def identity(manifest: Mapping[str, Any]) -> str:
    """sha256 that names an artifact's bytes: its file's own, or one over the paths and hashes of all its files.

    Empty for an artifact without files.
    """
    files = sorted((f["path"], f["sha256"]) for f in manifest["files"])
    if [path for path, _ in files] == [manifest.get("main")]:
        return str(files[0][1])
    return key_of(files=files) if files else ""


def read(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder; None when there is none, or it is damaged or of another schema."""
    try:
        value: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return None
    return value if value.get("schema_version") == SCHEMA_VERSION else None


def intact(folder: Path, manifest: Mapping[str, Any]) -> bool:
    """Whether every file the manifest lists is there with its bytes, and nothing else is."""
    listed = {f["path"]: f for f in manifest["files"]}
    try:
        present = {str(p) for p in list_files(folder)} - {MANIFEST}
        return present == set(listed) and all(
            (folder / p).stat().st_size == f["bytes"] and sha256_file(folder / p) == f["sha256"]
            for p, f in listed.items()
        )
    except OSError:  # it may not be read, or another build replaces it just now
        return False


def summary_row(manifest: Mapping[str, Any], *, cached: bool, seconds: float) -> dict[str, Any]:
    """The row of ``--json`` that an artifact's manifest comes down to."""
    verification = manifest.get("verification") or {}
    coverage = manifest.get("coverage") or {}
    error = manifest.get("error")
    return {
        "model": manifest["model"],
        "target": manifest["target"],
        "precision": manifest["precision"],
        "status": manifest["status"],
        "error": None if error is None else failure(error),
        "warnings": list(manifest.get("warnings", ())),
        "files": list(manifest.get("files", ())),
        "bytes": sum(f["bytes"] for f in manifest.get("files", ())),
        "metric": manifest.get("metric"),
        "max_abs_diff": verification.get("max_abs_diff"),
        # Nothing decided: no number is the number of changed decisions.
        "changed_decisions": verification.get("changed_decisions") if verification.get("decisions") else None,
        "delegated_share": coverage.get("delegated_share"),
        "seconds": round(seconds, 3),
        "cached": cached,
    }


def exit_code(rows: Sequence[Mapping[str, Any]]) -> int:
    """0 when every artifact is ok, known to be unavailable or (in a dry run) to be built; else the worst failure's."""
    codes = {
        EXIT_CODES.get((row["error"] or {}).get("code", "internal"), 1)
        for row in rows
        if row["status"] not in (*OK, "would-build") and not row["status"].startswith("unavailable")
    }
    return next((code for code in _SEVERITY if code in codes), max(codes, default=0))
