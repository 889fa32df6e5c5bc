"""The software bill of materials: CycloneDX 1.6 JSON. No time and no random number, so it is reproducible."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import Any

from build.bundle import runtimes

FILE = "sbom.cdx.json"
#: packages of a toolchain that are no distributions
_NOT_PYPI = ("python",)
#: identifiers of SPDX's list; what is not among these is taken for a name
_SPDX = frozenset({"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MPL-2.0", "CC-BY-4.0", "CC0-1.0"})


def make(manifest: Mapping[str, Any], archive_sha256: str) -> dict[str, Any]:
    """The bill of a bundle: model, files, the runtimes it needs, the tools that made it.

    Args:
        manifest: the bundle's.
    """
    top = f"{manifest['name']}@{manifest['version']}"
    body = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": top,
                "name": manifest["name"],
                "version": manifest["version"],
                "hashes": [{"alg": "SHA-256", "content": archive_sha256}],
            },
        },
        "components": [_model(manifest), *_runtimes(manifest), *_files(manifest)],
        "dependencies": _dependencies(manifest, top),
        "formulation": [{"bom-ref": "build", "components": _tools(manifest)}],
    }
    # A version 5 UUID of the content: the same bill always has the same number.
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return {**body, "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}"}


def _model(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "machine-learning-model",
        "bom-ref": f"model:{manifest['model']}",
        "name": manifest["model"],
        "version": manifest["program"],
        # The program's content hash: canonical, not of one file's bytes.
        "properties": [{"name": "edgeport:program", "value": manifest["program"]}],
        "licenses": [{"license": {"id" if manifest["licence"] in _SPDX else "name": manifest["licence"]}}],
    }


def _runtimes(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = {}
    for item in manifest["artifacts"]:
        facts, version = runtimes.facts(item["target"]), item["runtime"]["minimum_version"]
        row: dict[str, Any] = {
            "type": "library",
            "bom-ref": f"runtime:{item['target']}",
            "name": facts.package or facts.name,
            "scope": "required",
        }
        if version is not None:
            library = str(item["runtime"]["library"] or "")
            if library.endswith("(npm)"):
                row |= {"name": library.split()[0], "purl": f"pkg:npm/{library.split()[0]}@{version}"}
            else:
                row |= {"purl": purl(facts.package, version)}
            row["version"] = version
        if facts.licence:
            row["licenses"] = [{"license": {"id": facts.licence}}]
        found[item["target"]] = row
    return list(found.values())


def _files(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "type": "file",
            "bom-ref": f"file:{f['path']}",
            "name": f["path"],
            "hashes": [{"alg": "SHA-256", "content": f["sha256"]}],
        }
        for f in manifest["files"]
    ]


def _dependencies(manifest: Mapping[str, Any], top: str) -> list[dict[str, Any]]:
    found: dict[str, set[str]] = {top: {f"model:{manifest['model']}"}}
    for item in manifest["artifacts"]:
        found[top] |= {f"file:{name}" for name in item["files"]}
        for name in item["files"]:
            found[f"file:{name}"] = {f"runtime:{item['target']}", f"model:{manifest['model']}"}
    return [{"ref": ref, "dependsOn": sorted(needs)} for ref, needs in sorted(found.items())]


def _tools(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "library", "bom-ref": f"tool:{name}@{version}", "name": name, "version": version}
        | {"purl": purl(name, version)}
        for name, version in tools(manifest)
    ]


def tools(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Every (package, version) of the toolchains that made the artifacts."""
    return sorted({pair for item in manifest["artifacts"] for pair in item["toolchain"].items()})


def purl(package: str, version: str) -> str:
    """The package URL of a tool."""
    kind = "generic" if package in _NOT_PYPI else "pypi"
    return f"pkg:{kind}/{package.lower().replace('_', '-')}@{version.replace('+', '%2B')}"
