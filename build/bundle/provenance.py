"""The provenance statement: in-toto Statement v1 with a SLSA Provenance v1 predicate (slsa.dev/spec/v1.0).

The optional times of a run are left out: the statement of a reproducible bundle is reproducible too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from build.bundle import manifest as manifests
from build.bundle import sbom

FILE = "provenance.intoto.json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:edgeport:bundle:v1"
BUILDER = "urn:edgeport:nox"


def make(manifest: Mapping[str, Any], subjects: Mapping[str, str]) -> dict[str, Any]:
    """The statement of a bundle.

    Args:
        manifest: the bundle's.
        subjects: file name -> sha256 of what it speaks for.
    """
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "model": manifest["model"],
                    "platform": manifest["platform"],
                    "version": manifest["version"],
                    "artifacts": [{"target": a["target"], "precision": a["precision"]} for a in manifest["artifacts"]],
                    "recipe": manifest["recipe"],
                },
                "internalParameters": {"exceptions": manifest["exceptions"]},
                "resolvedDependencies": _materials(manifest),
            },
            "runDetails": {"builder": {"id": BUILDER}, "metadata": {}},
        },
    }


def subjects(archive: str, sha256: str, bill: Mapping[str, Any]) -> dict[str, str]:
    """What a statement speaks for: the archive, and its bill of materials as it is written."""
    return {archive: sha256, sbom.FILE: hashlib.sha256(manifests.text(bill).encode()).hexdigest()}


def _materials(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    source = manifest["source"]
    found: list[dict[str, Any]] = []
    if source["revision"] is not None:
        row: dict[str, Any] = {"name": "edgeport", "digest": {"gitCommit": source["revision"]}}
        # A modified checkout is not what its commit says.
        found.append(row | {"annotations": {"modified": source["modified"]}})
    # A program's hash is of its canonical content, so it is no digest of a file: its own algorithm's name.
    found.append({"name": f"program {manifest['model']}", "digest": {"edgeportProgram": manifest["program"]}})
    for digest in sorted({a["calibration"]["sha256"] for a in manifest["artifacts"] if a["calibration"]}):
        found.append({"name": "calibration data", "digest": {"edgeportCalls": digest}})
    for name, version in sbom.tools(manifest):
        found.append({"name": name, "uri": sbom.purl(name, version)})
    for digest in sorted({d for a in manifest["artifacts"] for m in a["measurements"] for d in m["files"]}):
        found.append({"name": "measurement", "digest": {"sha256": digest}})
    return found
