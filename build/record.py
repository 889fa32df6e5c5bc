"""What capture writes beside a program. Standard library only."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from build.cache import key_of
from build.errors import InputError, StorageError
from targets.checks import signature_from_json, signature_to_json
from targets.contract import Signature
from targets.precisions import PRECISIONS

SCHEMA_VERSION = 1
PROGRAM = "program.pt2"
REFERENCE = "reference.safetensors"
CALIBRATION = "calibration.safetensors"
RECORD = "program.json"


@dataclass(frozen=True, kw_only=True)
class CallRecord:
    """One call of the reference data: its id, why it is there, and its root sizes.

    Attributes:
        kind: ``example``, ``lower``, ``upper``, ``unseen``, ``mixed``, ``named``, ``edge`` or ``evaluation``.
        label: the right class, for labelled evaluation calls.
    """

    id: str
    kind: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    label: int | None = None


@dataclass(frozen=True, kw_only=True)
class CalibrationRecord:
    """The calls that calibrated precisions are made with.

    Attributes:
        sha256: of the values (names, dtypes, shapes, bytes), not of the file.
        calls: their ids, in order.
        source: where they come from: ``model``, ``calls`` (beside the program) or a file's name.
        warnings: what is to be said of them, where they are used.
    """

    sha256: str
    calls: tuple[str, ...]
    source: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ProgramRecord:
    """``program.json``: everything later steps need to know without loading torch.

    Attributes:
        sha256: content hash of the program (not of the file).
        files: file name -> sha256, of the program and the reference data.
        symbols: root symbol -> the name its author gave it (``batch``), where known.
        decision_output: the output whose last axis holds class scores; None when there is none.
        metric, metric_output: the task's metric, and the output that it reads; None where there is nothing to measure.
        quantized: the program brings its own quantisation (PT2E, QAT).
        cost: ``{"parameters", "flops", "sizes"}``: of one call at the example's rank with every dynamic size at its
            smallest; flops count multiplications and additions of matrix products and convolutions.
        budgets: limits, as ``models.spec.Budget`` holds them.
        constants: outputs that are not tensors, by position: they belong to the caller, not to the artifact.
    """

    name: str
    key: str
    sha256: str
    signature: Signature
    calls: tuple[CallRecord, ...]
    files: Mapping[str, str]
    source: Mapping[str, Any]
    symbols: Mapping[str, str] = field(default_factory=dict)
    decision_output: str | None = None
    metric: str | None = None
    metric_output: str | None = None
    quantized: bool = False
    calibration: CalibrationRecord | None = None
    cost: Mapping[str, Any] | None = None
    budgets: tuple[Mapping[str, Any], ...] = ()
    labels: tuple[str, ...] = ()
    preprocessing: Mapping[str, Any] | None = None
    tolerances: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    licence: str = "unknown"
    versions: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def calibration_at(self, precision: str) -> CalibrationRecord | None:
        """The calibration of an artifact of this precision; None where none is used."""
        return self.calibration if PRECISIONS[precision].calibrated and not self.quantized else None

    def warnings_at(self, precision: str) -> tuple[str, ...]:
        """What the manifest of an artifact of this precision must say of its program and of the calibration it used."""
        used = self.calibration_at(precision)
        return self.warnings if used is None else (*self.warnings, *used.warnings)

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["signature"] = json.loads(signature_to_json(self.signature))
        values["calls"] = [dataclasses.asdict(c) for c in self.calls]
        values["calibration"] = None if self.calibration is None else dataclasses.asdict(self.calibration)
        return {"schema_version": SCHEMA_VERSION, **values}


def read_record(folder: Path) -> ProgramRecord:
    """Read ``program.json``.

    Raises:
        InputError: it is missing, damaged or of another schema.
    """
    path = folder / RECORD
    try:
        value = json.loads(path.read_text())
        if value.pop("schema_version") != SCHEMA_VERSION:
            raise InputError(f"'{path}' has another schema version", remedy="Build again with --force.")
        value["signature"] = signature_from_json(json.dumps(value["signature"]))
        value["calls"] = tuple(CallRecord(**c) for c in value["calls"])
        if value["calibration"] is not None:
            found = value["calibration"]
            found |= {"calls": tuple(found["calls"]), "warnings": tuple(found.get("warnings", ()))}
            value["calibration"] = CalibrationRecord(**found)
        value["budgets"] = tuple(value["budgets"])
        value["labels"], value["warnings"] = tuple(value["labels"]), tuple(value["warnings"])
        return ProgramRecord(**value)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"'{path}' cannot be read: {error}", remedy="Build again with --force.") from error


def record_key(record: ProgramRecord) -> str:
    """Names a captured program with its reference and calibration data: what a job is given, and checks."""
    return key_of(record=record.to_json())


@contextlib.contextmanager
def unchanged(folder: Path, key: str) -> Iterator[None]:
    """Whatever is read from ``folder`` inside is of the program that ``key`` names.

    Another build may capture another program under the same name at any moment, and its folder then takes this one's
    place: what was read by path may be of either. A folder that was put back is another one too (its inode and time).

    Raises:
        StorageError: it was replaced, before or meanwhile. Also in place of any error inside, which says nothing then.
    """
    before = _folder_id(folder)
    _require(folder, key)
    try:
        yield
    finally:
        if _folder_id(folder) != before:
            raise _replaced(folder)
        _require(folder, key)


def _folder_id(folder: Path) -> tuple[int, int] | None:
    try:
        facts = (folder / RECORD).stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns


def _require(folder: Path, key: str) -> None:
    try:
        found = record_key(read_record(folder))
    except InputError as error:
        raise _replaced(folder) from error
    if found != key:
        raise _replaced(folder)


def _replaced(folder: Path) -> StorageError:
    return StorageError(
        f"another build captured another program under the name '{folder.parent.name}'",
        remedy="Build again; builds that run at once need names of their own, or an --out each.",
    )
