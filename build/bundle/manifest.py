"""The bundle manifest. JSON Schema: ``manifest.schema.json``. Nothing in it depends on when, where or by whom."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from build.bundle import runtimes
from build.bundle.choose import Chosen
from build.bundle.options import BundleOptions
from build.bundle.refusals import Item
from build.cache import sha256_file
from build.checkout import checkout
from build.manifest import finite

SCHEMA = Path(__file__).with_name("manifest.schema.json")
SCHEMA_VERSION = 1
FILE = "manifest.json"


def bundle_name(model: str, platform: str) -> str:
    """``digits_cnn-android``: what channels and versions belong to."""
    return f"{model}-{platform}"


def place_of(item: Item) -> str:
    """The artifact's folder in the bundle."""
    return f"models/{item.target.name}/{item.precision}"


def make(
    options: BundleOptions,
    chosen: Chosen,
    files: Mapping[str, Path],
    exceptions: Sequence[Mapping[str, str]],
    contract: Mapping[str, Any],
) -> dict[str, Any]:
    """The manifest of a bundle.

    Args:
        files: path in the bundle -> file, the manifest itself left out.
        exceptions: what was excepted, and why.
    """
    record, like = chosen.record, options.like
    return {
        "schema_version": SCHEMA_VERSION,
        "name": bundle_name(record.name, chosen.platform),
        "version": str(options.version),
        "platform": chosen.platform,
        "model": record.name,
        "program": record.sha256,
        "source": checkout().to_json(),
        "recipe": like["recipe"]
        if like
        else {
            "kind": record.source["kind"],
            "chosen_by": chosen.rule,
            "choose": options.build.choose,
            "device_class": options.device_class,
            "harness": options.harness,
        },
        "contract": {k: contract[k] for k in ("inputs", "outputs", "symbols", "decision_output")},
        "artifacts": [_taken_over(artifact(item, chosen.platform), like) for item in chosen.items],
        "exceptions": list(exceptions),
        "licence": record.licence,
        "warnings": list(record.warnings),
        "files": [
            {"path": name, "bytes": path.stat().st_size, "sha256": sha256_file(path)}
            for name, path in sorted(files.items())
        ],
    }


def artifact(item: Item, platform: str) -> dict[str, Any]:
    """What the manifest says of one artifact: the evidence of its own manifest, times and memory left out."""
    value, place = item.manifest, place_of(item)
    runtime = runtimes.facts(item.target.name)
    return {
        "target": item.target.name,
        "precision": item.precision,
        "main": f"{place}/{value['main']}" if "main" in value else None,
        "files": [f"{place}/{f['path']}" for f in value["files"]],
        "bytes": value["bytes"],
        "entry_points": value.get("entry_points", []),
        "judged_by": value.get("judged_by"),
        "toolchain": value["toolchain"],
        "calibration": value["calibration"],
        "kept_float": value["kept_float"],
        "runtime": {
            "name": runtime.name,
            "library": runtime.library.get(platform),
            # Nothing older was tried: the version that it was verified with is the least that can be vouched for.
            "minimum_version": runtime.version(platform, value["toolchain"]),
            "deployment_target": value.get("contract", {}).get("minimum_deployment_target"),
            "verified_in": (value.get("verification") or {}).get("runtime"),
        },
        "status": value["status"],
        "verification": value.get("verification"),
        "metric": value["metric"],
        "accuracy": value.get("accuracy"),
        "coverage": value.get("coverage"),
        "narrowed": value.get("narrowed", []),
        "warnings": value["warnings"],
        "measurements": [run.to_json() for run in item.measured],
        "budgets": [dict(b) for b in item.budgets],
    }


def _taken_over(value: dict[str, Any], like: Mapping[str, Any] | None) -> dict[str, Any]:
    """Measurements and verdicts of another manifest, which can't be made again by building."""
    for other in like["artifacts"] if like else ():
        if (other["target"], other["precision"]) == (value["target"], value["precision"]):
            value |= {k: other[k] for k in ("measurements", "budgets")}
    return value


def text(value: Mapping[str, Any]) -> str:
    """As it is written; a figure that is no number (an error relative to zero) is null, as JSON has no infinity."""
    return json.dumps(finite(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
