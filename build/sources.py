"""What the user wants built, as sources with a name and a cache key. Standard library only, so an unchanged
build never imports torch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.cache import code_hash, key_of, sha256_file
from build.errors import InputError
from build.options import Options, readable
from models import registry as models

#: the code whose change makes every captured program suspect
_CAPTURE_CODE = (
    "build/capture",
    "build/content_hash.py",
    "build/program.py",
    "build/archive.py",
    "build/archive_writer.py",
    "build/cache.py",
    "build/untrusted",
    "build/calls.py",
    "build/quantize/recognise.py",
    "build/record.py",
    "models/spec.py",
    "targets/contract.py",
    "targets/checks.py",
    "targets/precisions.py",
)
#: what sessions write below ``--out`` beside the models
_RESERVED = frozenset({"bench", "bundles", "cache", "logs", "program", "release", "report"})


@dataclass(frozen=True, kw_only=True)
class Source:
    """One thing to build.

    Attributes:
        key: names the capture; None when nothing short of running the code can tell whether it changed (``--module``).
        job: what the capture worker is told.
        packages: distributions whose versions the capture depends on.
    """

    name: str
    key: str | None
    job: Mapping[str, Any]


def sources(options: Options, versions: Mapping[str, str]) -> list[Source]:
    """Every source that the options name.

    Args:
        versions: of the packages in the capture environment.

    Raises:
        InputError: an unknown model, a module that isn't there, two sources of one name.
    """
    found = [_model(name, options, versions) for name in options.models]
    found += [_program(path, options, versions) for path in options.programs]
    found += _modules(options)
    seen: dict[str, Source] = {}
    for source in found:
        if source.name in seen:
            raise InputError(
                f"two sources are named '{source.name}'", remedy="Rename one file: the name is its folder under --out."
            )
        seen[source.name] = source
    return found


def _hash(path: Path) -> str:
    with readable(f"'{path}'"):
        return sha256_file(path)


def _calibration(options: Options) -> dict[str, str]:
    """The calibration file as a part of the key and of the job; nothing where there is none."""
    if options.calibration is None:
        return {}
    return {"calibration": str(options.calibration), "calibration_sha256": _hash(options.calibration)}


def _model(name: str, options: Options, versions: Mapping[str, str]) -> Source:
    facts = models.facts(name)
    given = _calibration(options)
    packages = ("torch", *facts.packages)
    key = key_of(
        kind="model",
        name=name,
        code=code_hash(["models", *_CAPTURE_CODE]),
        calibration=given.get("calibration_sha256"),
        versions={p: versions.get(p, "absent") for p in (*packages, "python")},
    )
    return Source(name=name, key=key, job={"kind": "model", "name": name, "key": key, **given})


def _program(path: Path, options: Options, versions: Mapping[str, str]) -> Source:
    name = _safe(path.stem)
    data = options.data
    beside = path.with_suffix(".safetensors")
    with readable(f"'{beside}'"):
        if data is None and beside.is_file():
            data = beside
    given = _calibration(options)
    key = key_of(
        kind="program",
        program=_hash(path),
        data=_hash(data) if data else None,
        calibration=given.get("calibration_sha256"),
        code=code_hash(_CAPTURE_CODE),
        versions={p: versions.get(p, "absent") for p in ("torch", "python")},
    )
    job = {
        "kind": "program",
        "name": name,
        "key": key,
        "path": str(path),
        "data": str(data) if data else None,
        "trust": options.trust,
        **given,
    }
    return Source(name=name, key=key, job=job)


def _modules(options: Options) -> list[Source]:
    """One source per factory. A file's name is its source's, and the factory's too where it gives several."""
    asked = list(dict.fromkeys(_place(text) for text in options.modules))
    count = Counter(path for path, _ in asked)
    return [_module(path, factory, options, alone=count[path] == 1) for path, factory in asked]


def _place(text: str) -> tuple[Path, str]:
    file, _, factory = text.rpartition(":")
    if not file or not factory.isidentifier():
        raise InputError(f"--module {text}: expected FILE.py:FACTORY")
    with readable(f"--module {text}"):
        path = Path(file).resolve()
        if not path.is_file():
            raise InputError(f"--module {text}: no such file")
    return path, factory


def _module(path: Path, factory: str, options: Options, *, alone: bool) -> Source:
    name = _safe(path.stem if alone else f"{path.stem}_{factory}")
    # What the file imports can't be known without running it, so it is captured every time; the program's own
    # hash then decides whether anything has to be lowered.
    return Source(
        name=name,
        key=None,
        job={"kind": "module", "name": name, "key": "", "path": str(path), "factory": factory} | _calibration(options),
    )


def _safe(stem: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", stem).strip("._") or "unnamed"
    if len(name) > 255:
        raise InputError(f"'{name[:40]}…' is too long a name for a folder below --out", remedy="Rename the file.")
    # Some file systems do not tell Report from report.
    return f"{name}_" if name.lower() in _RESERVED else name
