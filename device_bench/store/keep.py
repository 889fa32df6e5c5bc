"""Adding to results: manifests of what was measured, and runs that go to a shared place. Nothing is ever replaced."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build.bundle.store import open_store
from build.cache import write_atomic
from build.errors import InputError, RejectedResultError, StorageError
from device_bench.store import check
from device_bench.store.files import MANIFESTS, FolderFiles, kind_of
from device_bench.store.text import plain


def keep_manifest(results: Path, manifest: Mapping[str, Any]) -> Path:
    """Keep a manifest with the results, under the hash of its content: the same one twice is one file.

    Raises:
        StorageError: the disk is full or not writable.
    """
    text = json.dumps(manifest, sort_keys=True, indent=1, allow_nan=False) + "\n"
    path = results / MANIFESTS / f"{hashlib.sha256(text.encode()).hexdigest()}.json"
    if not path.exists():
        write_atomic(path, text)
    return path


def publish(run: Path, place: str) -> int:
    """Copy a run, and the manifests beside it, to where a team keeps its results; returns how many files were new.

    Each file appears whole or not at all; what is there already stays. ``summary.json`` goes last: a run that has one
    is complete.

    Args:
        place: a folder or URL of results.

    Raises:
        InputError: no such run, or a file of it, or a manifest, is one that readers would skip; then nothing is copied.
        StorageError: it cannot be written, or a file of this name with other content is there.
    """
    if not (run / "run.json").is_file():
        raise InputError(f"'{plain(run)}' is no run of the lab", remedy="Give a run's folder, such as results/run-….")
    files = FolderFiles(run.parent)
    listed = files.listing()
    own = (f"{run.name}/", f"{MANIFESTS}/")
    problems = sorted(p for p in listed.problems if p.path.startswith((*own, plain(f"{run.name}/"))))
    if problems:
        raise _unfit(run, problems[0].path, problems[0].reason)
    wanted = sorted((p for p in listed.paths() if p.startswith(own)), key=lambda p: (p.endswith("/summary.json"), p))
    contents = {path: _checked(run, files, path) for path in wanted}
    _check_twins(run, contents)
    store = open_store(place)
    new = 0
    for path, content in contents.items():
        if store.create(path, content):
            new += 1
        elif store.read(path) != content:
            raise StorageError(
                f"'{plain(path)}' is already at '{plain(place)}' with other content",
                remedy="Results are only ever added: measure into a new run.",
            )
    return new


def _unfit(run: Path, path: str, reason: str) -> InputError:
    return InputError(
        f"'{plain(run.name)}' was not published: {plain(path)}: {plain(reason)}",
        remedy="Move that file away, or measure into a new run.",
    )


def _checked(run: Path, files: FolderFiles, path: str) -> bytes:
    """A file's bytes, when a reader takes them for what their path says.

    Raises:
        InputError: no reader does.
    """
    content = files.read(path)
    if content is None:
        raise _unfit(run, path, "it cannot be read")
    try:
        kind = kind_of(path)
        if kind == "measurement":
            check.measurement(content, folder=path.split("/")[1])
        elif kind == "run":
            check.run(content)
        elif kind == "summary":
            check.summary(content)
        else:
            check.manifest(content)
    except RejectedResultError as error:
        raise _unfit(run, path, error.message) from error
    return content


def _check_twins(run: Path, contents: Mapping[str, bytes]) -> None:
    """A measurement that is there twice counts once: which one, readers decide by its path."""
    seen: dict[str, str] = {}
    for path in sorted(p for p in contents if kind_of(p) == "measurement"):
        identity = json.dumps(json.loads(contents[path])["measurement"], sort_keys=True)
        if identity in seen:
            raise _unfit(run, path, f"it is the same measurement as {seen[identity]}")
        seen[identity] = path
