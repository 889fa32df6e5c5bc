"""Which artifacts a build must make, and which are already there. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from build import manifest
from build.cache import code_hash, key_of, sha256_file
from build.envs import Environment
from build.errors import InputError
from build.options import Options
from build.record import CALIBRATION, REFERENCE, ProgramRecord, read_record
from build.sources import Source
from targets.precisions import PRECISIONS
from targets.registry import TargetFacts

#: the code that decides what an artifact is, besides the target's own
_PIPELINE_CODE = (
    "build/legalize",
    "build/quantize",
    "build/blame",
    "build/verify",
    "build/attempt.py",
    "build/worker.py",
    "build/manifest.py",
    "build/program.py",
    "build/record.py",
    "build/archive.py",
    "build/archive_writer.py",
    "build/calls.py",
    "build/cache.py",
    "build/untrusted",
    "targets/contract.py",
    "targets/precisions.py",
    "targets/registry.py",
    "targets/checks.py",
    "targets/diagnosis.py",
    "targets/trials.py",
    "targets/widths.py",
)


#: what every target's code computes with, besides its toolchain
_PIPELINE_PACKAGES = ("numpy", "safetensors", "torchao")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One expected artifact: the summary has exactly these rows, whatever happens.

    Attributes:
        unavailable: why the target has no such precision; None when it has.
    """

    source: Source
    target: TargetFacts
    precision: str
    unavailable: str | None

    @property
    def label(self) -> str:
        """``digits_cnn litert fp32``."""
        return f"{self.source.name} {self.target.name} {self.precision}"

    def place(self, out: Path) -> Path:
        """The artifact's folder."""
        return out / self.source.name / self.target.name / self.precision


def rows(sources: Sequence[Source], targets: Sequence[TargetFacts], precisions: Sequence[str]) -> list[Row]:
    """Every (source, target, precision)."""
    return [
        Row(source=s, target=t, precision=p, unavailable=t.unavailable(p))
        for s in sources
        for t in targets
        for p in precisions
    ]


#: what a program that brings its own quantisation is built as
QUANTIZED_AS = "int8-static"


def settle(expected: Sequence[Row], records: Mapping[str, ProgramRecord], options: Options) -> list[Row]:
    """The rows again, once the programs are known.

    A program that is quantised already has one precision: it replaces the default, and the others of ``all`` are
    unavailable. One that the user named by hand stays a row, for :func:`refusal` to answer.
    """
    settled: dict[str, Row] = {}
    for row in expected:
        record = records.get(row.source.name)
        if record is not None and record.quantized and row.precision != QUANTIZED_AS:
            if options.precisions_given == "default":
                row = replace(row, precision=QUANTIZED_AS, unavailable=row.target.unavailable(QUANTIZED_AS))
            elif options.precisions_given == "all":
                row = replace(row, unavailable=f"the program is quantised already: {QUANTIZED_AS} is what it has")
        settled.setdefault(row.label, row)
    return list(settled.values())


def refusal(row: Row, record: ProgramRecord, options: Options) -> InputError | None:
    """Why a row can't be built from this program, where the user asked for what it does not have."""
    wanted = PRECISIONS[row.precision]
    if record.quantized and row.precision != QUANTIZED_AS:
        return InputError(
            f"'{record.name}' is quantised already: it cannot be built as {row.precision}",
            remedy=f"Leave --precisions out, or ask for {QUANTIZED_AS}.",
        )
    if record.quantized and (options.keep_float or options.auto_mixed):
        return InputError(
            f"'{record.name}' is quantised already: no node of it can be kept in float here",
            remedy="Choose the float nodes where it is quantised (set_module_name(…, None) of its quantizer).",
        )
    if record.quantized and options.calibration is not None:
        return InputError(
            f"'{record.name}' is quantised already: --calibration has no meaning for it", remedy="Leave it out."
        )
    if (options.keep_float or options.auto_mixed) and not wanted.quantized:
        return InputError(
            f"{'--keep-float' if options.keep_float else '--auto-mixed'} has no meaning at {row.precision}",
            remedy="Name quantised precisions with --precisions.",
        )
    if wanted.calibrated and not record.quantized and record.calibration is None:
        return InputError(
            f"'{record.name}' has no calibration data, and {row.precision} needs it",
            remedy="Give --calibration FILE.safetensors (tensor CALL/INPUT), or name calls beside the program "
            "calibration/CALL/INPUT.",
        )
    return None


def program_folder(out: Path, source: Source) -> Path:
    """Where a source's captured program lives."""
    return out / source.name / "program"


def captured(out: Path, source: Source) -> ProgramRecord | None:
    """The captured program, when it is whole and made from this very source."""
    if source.key is None:
        return None
    record = whole(program_folder(out, source))
    return record if record is not None and record.key == source.key else None


def whole(folder: Path) -> ProgramRecord | None:
    """The captured program in a folder, when all its files are what its record says."""
    if not folder.is_dir():
        return None
    try:
        record = read_record(folder)
    except InputError:
        return None
    try:
        with ThreadPoolExecutor() as pool:
            found = list(pool.map(sha256_file, [folder / f for f in record.files]))
    except OSError:  # one is missing or may not be read, or another build replaces them just now
        return None
    return record if found == list(record.files.values()) else None


#: What a program's record says beside that decides no artifact: where it came from, and what is judged later.
_NOT_IN_ARTIFACTS = frozenset({"key", "files", "source", "calibration", "budgets", "versions"})


def artifact_key(row: Row, record: ProgramRecord, environment: Environment, options: Options) -> str:
    """What an artifact is made from: program, reference and calibration data, code, toolchain, precision, gates."""
    wanted = PRECISIONS[row.precision]
    calibration = record.calibration_at(row.precision)
    return key_of(
        program=_said(record),
        reference={k: v for k, v in record.files.items() if k != CALIBRATION},
        calibration=None if calibration is None else [calibration.sha256, calibration.warnings],
        mixed=[options.keep_float, options.auto_mixed and wanted.quantized, options.max_metric_drop],
        target=row.target.name,
        code=code_of(row.target),
        toolchain=environment.versions([*row.target.packages, *_PIPELINE_PACKAGES]),
        precision=row.precision,
        gates=[options.strict, options.min_delegated],
    )


def _said(record: ProgramRecord) -> dict[str, Any]:
    """Labels, metric, tolerances and names too: they judge an artifact, or stand in its manifest."""
    return {k: v for k, v in record.to_json().items() if k not in _NOT_IN_ARTIFACTS}


def judged_as(record: ProgramRecord) -> str:
    """Hash of what a program's record says that an artifact is judged by: labels are no part of the reference data."""
    return key_of(program=_said(record))


def outdated(value: Mapping[str, Any], record: ProgramRecord, target: TargetFacts) -> str | None:
    """Why an artifact's figures do not count for the program as it is captured now; None when they do."""
    judged = value.get("judged_by") or {}
    if judged.get("reference") != record.files.get(REFERENCE):
        return "it was verified with other reference data than the program's"
    if judged.get("record") != judged_as(record):
        return "it was judged by other labels or limits than the program's"
    if value["calibration"] is not None and value["calibration"]["sha256"] != getattr(
        record.calibration, "sha256", None
    ):
        return "it was calibrated with other calls than the program's"
    if judged.get("code") != code_of(target):
        return "it was built and verified by other code than this checkout's"
    return None


#: hashes of code read by this process
_codes: dict[tuple[str, ...], str] = {}


def code_of(target: TargetFacts) -> str:
    """Hash of the code that decides what a target's artifacts are and how they are judged."""
    for paths in (target.code, _PIPELINE_CODE):
        if paths not in _codes:  # hundreds of files are read
            _codes[paths] = code_hash(paths)
    return key_of(target=_codes[target.code], pipeline=_codes[_PIPELINE_CODE])


def cached(row: Row, record: ProgramRecord, out: Path, key: str) -> Mapping[str, object] | None:
    """The manifest of an artifact that is there, whole, good and made from this key.

    What its worker read must be what the key was made of, too.
    """
    folder = row.place(out)
    value = manifest.read(folder)
    if value is None or value.get("key") != key or value.get("status") not in manifest.OK:
        return None
    if value.get("program") != record.sha256 or value.get("calibration") != manifest.calibration(record, row.precision):
        return None
    if (value.get("judged_by") or {}).get("reference") != record.files.get(REFERENCE):
        return None
    return value if manifest.intact(folder, value) else None
