"""Adding to results: manifests of what was measured, and runs that go to a shared place. Nothing is ever replaced."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build.bundle.store import open_store
from build.cache import write_atomic
from build.errors import InputError, StorageError
from device_bench.store.files import MANIFESTS, FolderFiles
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
        InputError: no such run.
        StorageError: it cannot be written, or a file of this name with other content is there.
    """
    if not (run / "run.json").is_file():
        raise InputError(f"'{plain(run)}' is no run of the lab")
    store = open_store(place)
    listed = FolderFiles(run.parent).listing().stamps
    wanted = sorted(
        (p for p in listed if p.startswith((f"{run.name}/", f"{MANIFESTS}/"))),
        key=lambda p: (p.endswith("/summary.json"), p),
    )
    new = 0
    for path in wanted:
        content = (run.parent / path).read_bytes()
        if store.create(path, content):
            new += 1
        elif store.read(path) != content:
            raise StorageError(
                f"'{plain(path)}' is already at '{plain(place)}' with other content",
                remedy="Results are only ever added: measure into a new run.",
            )
    return new
