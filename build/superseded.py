"""What becomes of an artifact that was built, when the source that it should follow from is refused now.

A failed lowering replaces the artifact that was there by a manifest with the error; so does a refused source. But only
where it is the source that was refused: an option that is wrong (calls that do not fit, a factory that was misspelt)
says nothing about what was built without it, nor does a --trust that was forgotten. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from build import manifest
from build.cache import lock, put_folder, staging
from build.errors import InputError, UntrustedInputError
from build.options import Options
from build.plan import Row, program_folder, settle
from build.record import ProgramRecord, read_record
from build.sources import Source


def refused_itself(source: Source, error: Mapping[str, Any], options: Options) -> bool:
    """Whether capture refused what the source is now: nothing of the machine's, and no other option's fault."""
    if error["code"] not in (InputError.code, UntrustedInputError.code):
        return False
    if not options.trust and "--trust" in (error.get("remedy") or ""):
        return False
    if options.data is not None or options.calibration is not None:
        return False  # they may be what did not fit
    if source.job["kind"] != "module":
        return True
    before = _before(source, options)
    return before is not None and before.source.get("factory") == source.job["factory"]


def replace(
    row: Row, status: str, error: Mapping[str, Any], options: Options, *, record: ProgramRecord | None = None
) -> None:
    """Put a manifest with the error in place of a row's artifact, where there is one.

    Args:
        record: of the program that can't be built as this row, where there is one. An artifact that was made from this
            very program still follows from it, and stays.

    Raises:
        StorageError: the disk is full or not writable; the artifact stays.
    """
    known = record or _before(row.source, options)
    # A program that brings its own quantisation was built in another place than the default precision's.
    (row,) = settle([row], {} if known is None else {row.source.name: known}, options)
    place = row.place(options.out)
    if manifest.read(place) is None:
        return
    with lock(options.out, row.label):
        old = manifest.read(place)
        if old is None or (record is not None and old.get("program") == record.sha256):
            return
        with staging(options.out) as folder:
            manifest.write(folder, manifest.superseded(old, status, error))
            put_folder(folder, place)


def _before(source: Source, options: Options) -> ProgramRecord | None:
    try:
        return read_record(program_folder(options.out, source))
    except InputError:
        return None
