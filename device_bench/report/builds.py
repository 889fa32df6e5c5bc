"""Manifests as the report shows them. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from build.errors import UnsupportedError
from build.manifest import identity
from device_bench.report.data import Build, Metric
from device_bench.report.text import clean, message


def metric_of(value: Mapping[str, Any] | None, device: str = "") -> Metric | None:
    """A metric as manifests and measurements hold it."""
    if value is None:
        return None
    return Metric(
        name=clean(value["name"]), value=float(value["value"]), reference=float(value["reference"]), device=device
    )


def build_of(manifest: Mapping[str, Any], *, intact: bool = True) -> Build:
    """One manifest, which keeps to its schema. ``intact``: whether its files are there as it lists them."""
    verification = manifest.get("verification")
    coverage = manifest.get("coverage")
    error = manifest["error"] or {}
    checked = verification is not None and verification["decisions"] > 0
    snr = [o["snr_db"] for o in verification["outputs"].values() if o["snr_db"] is not None] if verification else []
    return Build(
        model=clean(manifest["model"]),
        target=clean(manifest["target"]),
        precision=clean(manifest["precision"]),
        status=clean(manifest["status"]),
        intact=intact,
        sha256=identity(manifest),
        size=manifest["bytes"] if manifest["files"] else None,
        metric=metric_of(manifest["metric"]),
        changed=verification["changed_decisions"] if verification and checked else None,
        decisions=verification["decisions"] if verification and checked else None,
        near_ties=verification["near_ties"] if verification and checked else None,
        snr_db=min(snr, default=None),
        delegated=None if coverage is None else coverage["delegated"],
        fallback={} if coverage is None else {clean(op): count for op, count in sorted(coverage["fallback"].items())},
        coverage_method="" if coverage is None else message(coverage["method"]),
        runtime=clean(verification["runtime"]) if verification else "",
        toolchain={clean(k): clean(v) for k, v in manifest["toolchain"].items()},
        warnings=tuple(map(message, manifest["warnings"])),
        error=_sentence(error),
        error_code=clean(error.get("code") or ""),
        remedy=message(error.get("remedy") or ""),
    )


def _sentence(error: Mapping[str, Any]) -> str:
    """What went wrong and where."""
    parts = [error.get("message") or ""]
    if error.get("op") and error["op"] not in parts[0]:
        parts.append(f"op {error['op']}")
    if error.get("source"):
        parts.append(f"at {error['source']}")
    return message("; ".join(p for p in parts if p))


def refused(build: Build) -> bool:
    """Whether the target said no before it tried."""
    return build.error_code == UnsupportedError.code
