"""Releases: versions that never change, and channels that point to one of them.

``NAME/versions/VERSION/`` holds a bundle's files; ``version.json`` is written last and makes it one.
``NAME/channels/CHANNEL.json`` is the pointer, with the channel's whole history: one object, replaced in one step.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build.bundle import contract as contracts
from build.bundle import selftest, signing
from build.bundle.store import Store
from build.bundle.verify import inspect
from build.bundle.version import Version
from build.cache import sha256_file
from build.errors import GateError, InputError, StorageError, VerificationError

SCHEMA_VERSION = 1
VERSION_RECORD = "version.json"
CLAIM = "claim.json"
#: taken out of the archive, for comparing versions without fetching it
_EXTRACTED = (contracts.FILE, selftest.DECISIONS)


def version_place(name: str, version: Version | str) -> str:
    """The folder of a version."""
    return f"{name}/versions/{version}"


def channel_place(name: str, channel: str) -> str:
    """The pointer of a channel."""
    return f"{name}/channels/{channel}.json"


def publish(store: Store, folder: Path, name: str, version: Version, key: Path | None) -> dict[str, Any]:
    """Put a bundle's folder into the store, once and for all.

    Args:
        key: public key; with one, the bundle must be signed by it.

    Returns:
        The version's record.

    Raises:
        GateError: the version is there already, with other bytes.
        VerificationError: the bundle is not whole, or is another one.
    """
    file = folder / f"{name}-{version}.zip"
    if not file.is_file():
        raise InputError(
            f"there is no bundle {name} {version}: neither published, nor in '{folder.name}'",
            remedy=f"nox -s bundle -- --version {version}",
        )
    if key is not None:
        signing.check_signature(folder, key)
    with tempfile.TemporaryDirectory(prefix="edgeport-publish-") as place:
        manifest = inspect(file, Path(place), lambda line: None, sums_required=True)
        if (manifest["name"], manifest["version"]) != (name, str(version)):
            raise VerificationError(f"{file.name} is bundle {manifest['name']} {manifest['version']}")
        files = {p.name: p for p in sorted(folder.iterdir()) if p.is_file()}
        files |= {Path(n).name: Path(place) / n for n in _EXTRACTED if (Path(place) / n).is_file()}
        return _upload(store, name, version, files, file)


def _upload(store: Store, name: str, version: Version, files: Mapping[str, Path], file: Path) -> dict[str, Any]:
    place = version_place(name, version)
    record = {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "version": str(version),
        "archive": file.name,
        "sha256": sha256_file(file),
        "files": {n: sha256_file(p) for n, p in files.items()},
    }
    data = (json.dumps(record, indent=1) + "\n").encode()
    # Whoever claims the number decides what it is: two publishers can't mix their files under it.
    claim = hashlib.sha256(data).hexdigest().encode()
    if not store.create(f"{place}/{CLAIM}", claim) and store.read(f"{place}/{CLAIM}") != claim:
        raise _taken(name, version)
    if store.read(f"{place}/{VERSION_RECORD}") is None:
        for n, p in files.items():
            store.upload(f"{place}/{n}", p)
        store.create(f"{place}/{VERSION_RECORD}", data)
    return record


def refuse_other(record: Mapping[str, Any], folder: Path) -> None:
    """A fresh bundle is compared with what is published under its number.

    Raises:
        GateError: it is another one.
    """
    file = folder / record["archive"]
    if file.is_file() and sha256_file(file) != record["sha256"]:
        raise _taken(record["name"], record["version"])


def _taken(name: str, version: object) -> GateError:
    return GateError(
        f"{name} {version} is published with other bytes: a version never changes",
        remedy="Give the new bundle a new version.",
    )


def check_published_signature(store: Store, record: Mapping[str, Any], key: Path | None) -> None:
    """The signature of a published version, where a key is given.

    Raises:
        VerificationError: it is not signed, or not by this key.
    """
    if key is None:
        return
    with tempfile.TemporaryDirectory(prefix="edgeport-publish-") as folder:
        for n in (signing.SUMS, signing.SIGNATURE):
            data = store.read(f"{version_place(record['name'], record['version'])}/{n}")
            if data is not None:
                (Path(folder) / n).write_bytes(data)
        signing.check_signature(Path(folder), key)


def read_version(store: Store, name: str, version: Version | str) -> dict[str, Any] | None:
    """The record of a published version; None where it is not (or not wholly) published."""
    data = store.read(f"{version_place(name, version)}/{VERSION_RECORD}")
    return None if data is None else dict(json.loads(data))


def require_whole(store: Store, record: Mapping[str, Any]) -> None:
    """Every file of a version is there, with its bytes.

    Raises:
        VerificationError: one is not.
    """
    place = version_place(record["name"], record["version"])
    for n, digest in record["files"].items():
        data = store.read(f"{place}/{n}")
        if data is None or hashlib.sha256(data).hexdigest() != digest:
            what = "missing" if data is None else "altered"
            raise VerificationError(
                f"{record['name']} {record['version']} is not whole: {n} is {what}", remedy="Publish another version."
            )


def load_json(store: Store, record: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """A JSON file of a published version; None where it has no such file."""
    data = store.read(f"{version_place(record['name'], record['version'])}/{Path(name).name}")
    return None if data is None else dict(json.loads(data))


def read_channel(store: Store, name: str, channel: str) -> dict[str, Any] | None:
    """The pointer of a channel; None where it points to nothing yet.

    Raises:
        StorageError: it is damaged.
    """
    data = store.read(channel_place(name, channel))
    if data is None:
        return None
    try:
        value: dict[str, Any] = json.loads(data)
        if value["schema_version"] != SCHEMA_VERSION or value["current"] != value["history"][-1]["version"]:
            raise ValueError("it contradicts itself")
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise StorageError(f"the pointer of {name} {channel} is damaged: {error}") from error
    return value


def point(
    store: Store, name: str, channel: str, before: Mapping[str, Any] | None, entry: Mapping[str, Any]
) -> dict[str, Any]:
    """Let a channel point to another version.

    Args:
        before: the pointer as it was read.
        entry: ``version``, ``sha256``, ``action``, ``time``, ``by``.

    Raises:
        StorageError: another process moved it meanwhile.
    """
    history = [*(before["history"] if before else []), dict(entry)]
    value = {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "channel": channel,
        "current": entry["version"],
        "archive": f"versions/{entry['version']}/{name}-{entry['version']}.zip",
        "sha256": entry["sha256"],
        "history": history,
    }
    data = (json.dumps(value, indent=1) + "\n").encode()
    store.write(channel_place(name, channel), data)
    if store.read(channel_place(name, channel)) != data:
        raise StorageError(
            f"another promotion moved {name} {channel} at the same time", remedy="See `history`, and promote again."
        )
    return value


def previous(channel: Mapping[str, Any]) -> str | None:
    """The version that a rollback goes back to: what was promoted before the current one and not rolled back since."""
    stack: list[str] = []
    for entry in channel["history"]:
        if entry["action"] == "rollback" and entry["version"] in stack:
            while stack[-1] != entry["version"]:
                stack.pop()
        else:
            stack.append(entry["version"])
    return stack[-2] if len(stack) > 1 else None


def refuse_incompatible(old: Mapping[str, Any], new: Mapping[str, Any], before: Version, after: Version) -> list[str]:
    """Differences of the contract, where a major version announces them.

    Raises:
        GateError: there are some, and the version announces none.
    """
    found = contracts.differences(old, new)
    if found and after.numbers[0] <= before.numbers[0]:
        more = f" (and {len(found) - 1} more: {'; '.join(found[1:4])})" if found[1:] else ""
        raise GateError(
            f"{after} breaks the contract of {before}: {found[0]}{more}",
            remedy=f"Keep to the contract, or make it version {before.numbers[0] + 1}.0.0.",
        )
    return found
