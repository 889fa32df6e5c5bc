"""The folder of one lab run: what it set out to measure, and finding the newest to go on with."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from build.cache import write_atomic
from build.checkout import checkout
from build.errors import InputError
from build.log import say
from device_bench.job import Settings
from device_bench.options import LabOptions, parse
from device_bench.points import Point
from device_bench.verdict import Rules

SCHEMA_VERSION = 1
RECORD = "run.json"


def start(options: LabOptions) -> tuple[Path, LabOptions]:
    """A fresh folder, with its record; the options with their seed settled."""
    seed = options.seed if options.seed is not None else secrets.randbelow(2**31)
    options = replace(options, seed=seed)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folder = options.results / f"run-{stamp}-{secrets.token_hex(3)}"
    value = {
        "schema_version": SCHEMA_VERSION,
        "session": options.session,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seed": seed,
        "models": options.models,
        "targets": options.targets,
        "precisions": options.precisions,
        "repeats": options.repeats,
        "settings": asdict(options.settings),
        "points": [p.to_json() for p in options.points],
        "sustained": options.sustained,
        "rules": asdict(options.rules),
        **checkout().to_json(),
        "devices": [],
    }
    write_atomic(folder / RECORD, json.dumps(value, indent=1) + "\n")
    return folder, options


def resume(options: LabOptions) -> tuple[Path, LabOptions]:
    """The newest run of this session below the results folder, and its options in place of the command line's.

    Raises:
        InputError: there is none, or it was begun with other options than are given now.
    """
    found = [
        (value["started"], path.parent)
        for path in options.results.glob(f"run-*/{RECORD}")
        if (value := _read(path)) is not None and value["session"] == options.session
    ]
    if not found:
        raise InputError(f"there is no run of {options.session} to resume", remedy="Run it without --resume first.")
    folder = max(found)[1]
    value = _read(folder / RECORD)
    assert value is not None
    default = parse(options.session, [])
    begun = _options(options, value)
    for name, option in _KEPT.items():
        given = getattr(options, name)
        if given not in (getattr(default, name), getattr(begun, name)):
            raise InputError(
                f"{folder.name} was begun with another {option}: --resume continues it as it was",
                remedy=f"Leave {option} out, or begin a new run without --resume.",
            )
    say(f"resuming {folder.name}")
    return folder, begun


#: what a run is continued with as it was begun, and the options that say it.
_KEPT = {
    "models": "--model",
    "targets": "--targets",
    "precisions": "--precisions",
    "repeats": "--repeats",
    "seed": "--seed",
    "points": "--sweep, --threads, --batch or --variants",
    "sustained": "--sustained",
    "settings": "number or length of runs",
    "rules": "--max-spread or --allow-charging",
}


def _options(options: LabOptions, value: Mapping[str, Any]) -> LabOptions:
    """The options that a run's record tells of, in place of the command line's."""
    settings = {**value["settings"], "affinity": tuple(value["settings"]["affinity"])}
    return replace(
        options,
        seed=value["seed"],
        models=tuple(value["models"]),
        targets=tuple(value["targets"]),
        precisions=tuple(value["precisions"]),
        repeats=value["repeats"],
        settings=Settings(**settings),
        points=tuple(Point(**p) for p in value["points"]),
        sustained=value["sustained"],
        rules=Rules(**value["rules"]),
    )


def note_devices(folder: Path, names: list[str]) -> list[str]:
    """Remember which devices a run is about; returns all of them, those of earlier attempts included."""
    value = dict(_read(folder / RECORD) or {})
    value["devices"] = sorted({*value.get("devices", []), *names})
    write_atomic(folder / RECORD, json.dumps(value, indent=1) + "\n")
    return list(value["devices"])


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) and value.get("schema_version") == SCHEMA_VERSION else None
