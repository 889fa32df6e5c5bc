"""Which artifacts a build must make, and which are already there. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from build import manifest
from build.cache import code_hash, key_of, sha256_file
from build.envs import Environment
from build.errors import InputError
from build.options import Options
from build.record import ProgramRecord, read_record
from build.sources import Source
from targets.registry import TargetFacts, precision_names

#: the code that decides what an artifact is, besides the target's own
_PIPELINE_CODE = (
    "build/legalize",
    "build/verify",
    "build/worker.py",
    "build/manifest.py",
    "build/program.py",
    "build/archive.py",
    "build/untrusted",
    "targets/contract.py",
    "targets/checks.py",
    "targets/diagnosis.py",
)


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
    """Every (source, target, precision).

    Raises:
        InputError: a precision that no target knows.
    """
    for precision in precisions:
        if precision not in precision_names():
            raise InputError(
                f"no target has a precision '{precision}'", remedy=f"Precisions: {', '.join(precision_names())}."
            )
    return [
        Row(source=s, target=t, precision=p, unavailable=t.unavailable(p))
        for s in sources
        for t in targets
        for p in precisions
    ]


def program_folder(out: Path, source: Source) -> Path:
    """Where a source's captured program lives."""
    return out / source.name / "program"


def captured(out: Path, source: Source) -> ProgramRecord | None:
    """The captured program, when it is whole and made from this very source."""
    folder = program_folder(out, source)
    if source.key is None or not folder.is_dir():
        return None
    try:
        record = read_record(folder)
    except InputError:
        return None
    if record.key != source.key:
        return None
    whole = all((folder / f).is_file() and sha256_file(folder / f) == h for f, h in record.files.items())
    return record if whole else None


def artifact_key(row: Row, record: ProgramRecord, environment: Environment, options: Options) -> str:
    """What an artifact is made from: program, reference data, code, toolchain, precision, gates."""
    return key_of(
        program=record.sha256,
        reference=record.files,
        tolerances=dict(record.tolerances),
        target=row.target.name,
        code=_code(row.target),
        toolchain=environment.versions(row.target.packages),
        precision=row.precision,
        gates=[options.strict, options.min_delegated],
    )


_codes: dict[str, str] = {}


def _code(target: TargetFacts) -> str:
    if target.name not in _codes:
        _codes[target.name] = code_hash([*target.code, *_PIPELINE_CODE])
    return _codes[target.name]


def cached(row: Row, out: Path, key: str) -> Mapping[str, object] | None:
    """The manifest of an artifact that is there, whole, good and made from this key."""
    folder = row.place(out)
    value = manifest.read(folder)
    if value is None or value.get("key") != key or value.get("status") not in manifest.OK:
        return None
    return value if manifest.intact(folder, value) else None
