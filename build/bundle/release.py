"""``promote``, ``rollback`` and ``history``: what the sessions say and do."""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Mapping
from typing import Any

from build.bundle import channels, selftest
from build.bundle import contract as contracts
from build.bundle import manifest as manifests
from build.bundle.options import ReleaseOptions
from build.bundle.store import Store, open_store
from build.bundle.version import Version
from build.cache import write_atomic
from build.errors import GateError, InputError
from build.summary import size_text

SCHEMA_VERSION = 1


def promote(options: ReleaseOptions) -> int:
    """Publish a version if need be, compare it with the channel's current one, and let the channel point to it.

    Raises:
        GateError: the contract is broken without a major version; an older version; a number that is taken.
        VerificationError: the bundle is not whole.
    """
    name, channel, version = options.name, str(options.channel), options.version
    assert version is not None
    store = open_store(options.release)
    with store.lock(name):
        folder = options.bundles / f"{name}-{version}"
        record = channels.read_version(store, name, version)
        if record is None:
            record = channels.publish(store, folder, name, version, options.key)
        else:
            channels.refuse_other(record, folder)
            channels.check_published_signature(store, record, options.key)
        channels.require_whole(store, record)
        before = channels.read_channel(store, name, channel)
        lines: list[str] = []
        if before is not None:
            current = Version(before["current"])
            if current == version:
                print(f"{name} {channel}: {version} already")
                return 0
            if version < current:
                raise GateError(
                    f"{version} is older than {current}, which {channel} has",
                    remedy=f"nox -s rollback -- {name} {channel} --to {version}",
                )
            old = _record(store, name, before["current"])
            lines = _compare(store, old, record, current, version)
        value = channels.point(store, name, channel, before, _entry(record, "promote"))
    return _done(options, value, lines)


def rollback(options: ReleaseOptions) -> int:
    """Let a channel point to the version before, or to a named one.

    Raises:
        InputError: the channel is empty, has no version before, or the named one is not published.
        VerificationError: that version is not whole.
    """
    name, channel = options.name, str(options.channel)
    store = open_store(options.release)
    with store.lock(name):
        before = channels.read_channel(store, name, channel)
        if before is None:
            raise InputError(f"{name} has nothing in {channel}", remedy=f"nox -s promote -- {name} VERSION {channel}")
        wanted = str(options.version) if options.version else channels.previous(before)
        if wanted is None:
            raise InputError(
                f"{name} {channel} has had no version before {before['current']}", remedy="Name one: --to VERSION."
            )
        record = _record(store, name, wanted)
        channels.require_whole(store, record)
        old = _record(store, name, before["current"])
        broken = contracts.differences(_contract(store, old), _contract(store, record))
        value = channels.point(store, name, channel, before, _entry(record, "rollback"))
    notes = [f"note: apps of {before['current']} may rely on what {wanted} has not: {b}" for b in broken]
    return _done(options, value, notes)


def history(options: ReleaseOptions) -> int:
    """Print what each channel pointed to, oldest first.

    Raises:
        InputError: nothing of that name was promoted.
    """
    store = open_store(options.release)
    names = (
        [options.channel]
        if options.channel
        else [n.removesuffix(".json") for n in store.names(f"{options.name}/channels")]
    )
    found = {c: value for c in names if (value := channels.read_channel(store, options.name, c)) is not None}
    if not found:
        raise InputError(f"nothing of '{options.name}' was promoted in '{options.release}'")
    for channel, value in found.items():
        for index, entry in enumerate(value["history"]):
            mark = "  <- current" if index == len(value["history"]) - 1 else ""
            words = (channel, entry["time"], entry["action"], entry["version"], entry["sha256"][:12], entry["by"])
            print(f"{'  '.join(words)}{mark}", flush=True)
    if options.json is not None:
        out = {"schema_version": SCHEMA_VERSION, "channels": found}
        write_atomic(options.json, json.dumps(out, indent=1) + "\n")
    return 0


def _record(store: Store, name: str, version: str) -> dict[str, Any]:
    record = channels.read_version(store, name, version)
    if record is None:
        raise InputError(f"{name} {version} is not published", remedy=f"nox -s history -- {name}")
    return record


def _contract(store: Store, record: Mapping[str, Any]) -> dict[str, Any]:
    found = channels.load_json(store, record, contracts.FILE)
    assert found is not None
    return found


def _entry(record: Mapping[str, Any], action: str) -> dict[str, str]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    try:
        by = getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        by = "unknown"
    return {"version": record["version"], "sha256": record["sha256"], "action": action, "time": now, "by": by}


def _done(options: ReleaseOptions, value: Mapping[str, Any], lines: list[str]) -> int:
    for line in lines:
        print(line)
    entry = value["history"][-1]
    what = f"{entry['action']} to {entry['version']}, sha256 {entry['sha256']}"
    print(f"{options.name} {options.channel}: {what}", flush=True)
    if options.json is not None:
        out = {"schema_version": SCHEMA_VERSION, "channel": dict(value), "notes": lines}
        write_atomic(options.json, json.dumps(out, indent=1) + "\n")
    return 0


def _compare(
    store: Store, old: Mapping[str, Any], new: Mapping[str, Any], before: Version, after: Version
) -> list[str]:
    """Size, metric, decisions and latency of each artifact beside the channel's current version."""
    contracts_ = _contract(store, old), _contract(store, new)
    broken = channels.refuse_incompatible(*contracts_, before, after)
    lines = [f"contract: {b}" for b in broken]
    a, b = (channels.load_json(store, r, manifests.FILE) or {} for r in (old, new))
    decisions = [channels.load_json(store, r, selftest.DECISIONS) for r in (old, new)]
    theirs = {(x["target"], x["precision"]): x for x in a["artifacts"]}
    for item in b["artifacts"]:
        key = (item["target"], item["precision"])
        label = " ".join(key)
        if key not in theirs:
            lines.append(f"{label}: new, {size_text(item['bytes'])}")
            continue
        changed = selftest.changed_between(decisions[0], decisions[1], "/".join(key))
        lines.append(f"{label}: {', '.join(_figures(theirs[key], item, changed))}")
    gone = [" ".join(k) for k in theirs if k not in {(x["target"], x["precision"]) for x in b["artifacts"]}]
    return [f"{before} -> {after}", *lines, *(f"{g}: gone" for g in gone)]


def _figures(old: Mapping[str, Any], new: Mapping[str, Any], changed: tuple[int, int] | None) -> list[str]:
    found = [f"size {size_text(old['bytes'])} -> {size_text(new['bytes'])}"]
    if old["metric"] is not None and new["metric"] is not None:
        found.append(f"{new['metric']['name']} {old['metric']['value']:.4f} -> {new['metric']['value']:.4f}")
    if changed is not None:
        found.append(f"{changed[0]} of {changed[1]} decisions changed")
    for name, mine in _latencies(new).items():
        theirs = _latencies(old).get(name)
        found.append(f"p95 on {name} {'not measured' if theirs is None else f'{theirs:.2f} ms'} -> {mine:.2f} ms")
    return found


def _latencies(artifact: Mapping[str, Any]) -> dict[str, float]:
    return {
        str(m["device"]["model"] or m["device"]["machine"]): m["p95_ms"]
        for m in artifact["measurements"]
        if m["p95_ms"] is not None
    }
