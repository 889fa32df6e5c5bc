"""Built artifacts as the lab sees them: what lies in ``out/`` after a build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build import manifest as manifests
from build.cache import sha256_file
from build.errors import InputError
from build.log import say
from build.record import ProgramRecord, read_record
from targets.registry import all_targets

#: target -> engine of the native harness.
ENGINES = {"executorch": "executorch", "litert": "litert"}


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """One artifact that can be measured.

    Attributes:
        file: the file or folder that the engine loads.
        sha256: of its bytes, and of those of every other file of the artifact.
        program_folder: where the program's record and reference data lie.
    """

    model: str
    target: str
    precision: str
    file: Path
    sha256: str
    bytes: int
    manifest: Mapping[str, Any]
    record: ProgramRecord
    program_folder: Path

    @property
    def label(self) -> str:
        """``digits_cnn executorch int8-static``."""
        return f"{self.model} {self.target} {self.precision}"

    def entry(self, sizes: Mapping[str, int]) -> str:
        """The ExecuTorch method or LiteRT signature for a call with these root sizes.

        Raises:
            InputError: the artifact has none.
        """
        for row in self.manifest["entry_points"]:
            if all(sizes.get(symbol) == size for symbol, size in row["sizes"].items()):
                return str(row["name"])
        raise InputError(f"{self.label}: the artifact has no entry point for sizes {dict(sizes)}")


@dataclass(frozen=True, kw_only=True)
class Built:
    """What a build left behind, whether or not it went well."""

    folder: Path
    manifest: Mapping[str, Any]
    record: ProgramRecord
    program_folder: Path

    @property
    def ok(self) -> bool:
        """Whether there is an artifact to measure."""
        return self.manifest["status"] in manifests.OK

    @property
    def label(self) -> str:
        """``digits_cnn executorch int8-static``."""
        return f"{self.manifest['model']} {self.manifest['target']} {self.manifest['precision']}"

    @property
    def ending(self) -> str:
        """How the build ended: ``ok``, ``failed:metric: it lost 5 of 100``."""
        error = self.manifest.get("error")
        return str(self.manifest["status"]) + (f": {error['message']}" if error else "")

    def artifact(self) -> Artifact:
        """The artifact, its files being what the manifest says.

        Raises:
            InputError: they are not.
        """
        return _artifact(self.folder, self.manifest, self.record, self.program_folder)


def find(
    out: Path,
    *,
    models: Sequence[str],
    targets: Sequence[str],
    precisions: Sequence[str],
    build_session: str,
    broken: list[str] | None = None,
) -> list[Artifact]:
    """The artifacts of every combination, in order.

    Args:
        broken: takes a line for each artifact whose build failed, where there are others to measure.

    Raises:
        InputError: one is missing, failed to build (without ``broken``, or all did), or its file is not what its
            manifest says.
    """
    every = built(out, models=models, targets=targets, precisions=precisions, build_session=build_session)
    failures = [f"{b.label} cannot be measured: its build ended with {b.ending}" for b in every if not b.ok]
    found = [b.artifact() for b in every if b.ok]
    if failures and (broken is None or not found):
        raise InputError(failures[0])
    if broken is not None:
        broken += failures
    return found


def built(
    out: Path, *, models: Sequence[str], targets: Sequence[str], precisions: Sequence[str], build_session: str
) -> list[Built]:
    """What the builds of every combination left behind, in order; at least one.

    Raises:
        InputError: one was never built, or no target has such a precision.
    """
    found = []
    for model in models:
        program_folder = out / model / "program"
        if not program_folder.is_dir():
            raise InputError(f"'{model}' is not built", remedy=_remedy(build_session, model, precisions))
        record = read_record(program_folder)
        for target in targets:
            for precision in precisions:
                reason = all_targets()[target].unavailable(precision)
                if reason is not None:
                    say(f"{model} {target} {precision}: left out: {reason}")
                    continue
                folder = out / model / target / precision
                value = manifests.read(folder)
                if value is None:
                    raise InputError(
                        f"{model} {target} {precision} is not built", remedy=_remedy(build_session, model, precisions)
                    )
                found.append(Built(folder=folder, manifest=value, record=record, program_folder=program_folder))
    if not found:
        raise InputError("there is nothing to measure: no target has this precision")
    return found


def _artifact(folder: Path, value: Mapping[str, Any], record: ProgramRecord, program_folder: Path) -> Artifact:
    label = f"{value['model']} {value['target']} {value['precision']}"
    file = folder / value["main"]
    for listed in value["files"]:
        path = folder / listed["path"]
        if not path.is_file() or sha256_file(path) != listed["sha256"]:
            raise InputError(f"{label}: '{listed['path']}' is not the file that was built", remedy="Build again.")
    if not file.exists():
        raise InputError(f"{label}: its manifest lists no '{value['main']}'", remedy="Build again.")
    if value["program"] != record.sha256:
        raise InputError(f"{label} was made from another program than the one captured last", remedy="Build again.")
    return Artifact(
        model=value["model"],
        target=value["target"],
        precision=value["precision"],
        file=file,
        sha256=manifests.identity(value),
        bytes=sum(f["bytes"] for f in value["files"]),
        manifest=value,
        record=record,
        program_folder=program_folder,
    )


def _remedy(session: str, model: str, precisions: Sequence[str]) -> str:
    return f"Run: nox -s {session} -- --model {model} --precisions {','.join(precisions)}"
