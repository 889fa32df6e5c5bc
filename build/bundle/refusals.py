"""What speaks against a bundle. Evidence counts by the hash of what it speaks of."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build import manifest as manifests
from build.budgets import Verdict
from build.bundle.measured import Measured
from build.cache import list_files, sha256_file
from build.plan import outdated
from build.record import ProgramRecord
from targets.registry import TargetFacts


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Something that speaks against a bundle. ``firm``: no reason given can except it."""

    what: str
    firm: bool = False
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Item:
    """One artifact of a bundle.

    Attributes:
        budgets: each that applies: ``{"budget", "limits", "verdict", "why"}``.
    """

    target: TargetFacts
    precision: str
    folder: Path
    manifest: Mapping[str, Any]
    measured: tuple[Measured, ...] = ()
    budgets: tuple[Mapping[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """``executorch fp32``."""
        return f"{self.target.name} {self.precision}"

    @property
    def verdict(self) -> Verdict:
        """Over all budgets; PASS when none applies."""
        words = {b["verdict"] for b in self.budgets}
        return "FAIL" if "FAIL" in words else "INCONCLUSIVE" if "INCONCLUSIVE" in words else "PASS"


def stops_text(judged: Mapping[str, Any]) -> str:
    """The limits of a budget that an artifact does not pass, with its figures."""
    parts = []
    for j in judged["limits"]:
        if j["verdict"] != "PASS":
            has = j["why"] if j["value"] is None else f"{j['value']:g} against {j['allowed']:g}"
            parts.append(f"{j['limit']} {j['verdict']} ({has})")
    return ", ".join([*parts, *judged["why"]]) or "not ok"


def program_refusals(folder: Path, record: ProgramRecord, captured_as: str | None) -> list[Refusal]:
    """A captured program whose files are not those of its record, or that today's source would not give."""
    found = []
    if captured_as is not None and record.key not in (captured_as, ""):
        what = "the program was captured by other code, packages or options than these: it may be another one now"
        found.append(Refusal(what=what, remedy="Build again, with the same options."))
    for name, digest in record.files.items():
        path = folder / name
        if not path.is_file():
            found.append(Refusal(what=f"program/{name} is missing", firm=True, remedy="Build again."))
        elif sha256_file(path) != digest:
            found.append(
                Refusal(what=f"program/{name} was altered after it was captured", firm=True, remedy="Build again.")
            )
    return found


def item_refusals(item: Item, record: ProgramRecord) -> list[Refusal]:
    """What speaks against an artifact and its evidence, budgets apart."""
    value, label, found = item.manifest, item.label, []
    if value["status"] not in manifests.OK:
        error = (value["error"] or {}).get("message", "")
        what = f"{label} is not verified: {value['status']}" + (f" ({error})" if error else "")
        # Without a file there is nothing to except; an artifact that computes something else is no artifact.
        found.append(Refusal(what=what, firm=value["status"] != "unverified" or not value["files"]))
    if value["program"] != record.sha256:
        what = f"{label} was made from another program (hash {value['program'][:12]})"
        found.append(Refusal(what=what, firm=True, remedy="Build again."))
    old = outdated(value, record, item.target)
    if old is not None:
        what = f"{label}: {old}: its evidence is old"
        found.append(Refusal(what=what, remedy="Build again."))
    found += _file_refusals(item)
    found += [r for run in item.measured if (r := _measurement_refusal(item, run)) is not None]
    return found


def budget_refusals(item: Item) -> list[Refusal]:
    """Budgets that an artifact does not keep, or is not shown to keep."""
    label, found = item.label, []
    if item.verdict == "FAIL":
        stops = "; ".join(stops_text(b) for b in item.budgets if b["verdict"] == "FAIL")
        found.append(Refusal(what=f"{label} breaks its budget: {stops}"))
    elif item.verdict == "INCONCLUSIVE":
        stops = "; ".join(stops_text(b) for b in item.budgets if b["verdict"] == "INCONCLUSIVE")
        found.append(Refusal(what=f"{label} is not shown to keep its budget: {stops}"))
    return found


def _file_refusals(item: Item) -> list[Refusal]:
    listed = {f["path"]: f for f in item.manifest["files"]}
    present = {str(p) for p in list_files(item.folder)} - {manifests.MANIFEST}
    found = []
    for name in sorted(present | set(listed)):
        path = item.folder / name
        if name not in listed:
            what = f"{item.label}: '{name}' does not belong to it"
        elif name not in present:
            what = f"{item.label}: '{name}' is missing"
        elif (
            path.is_symlink()
            or path.stat().st_size != listed[name]["bytes"]
            or sha256_file(path) != listed[name]["sha256"]
        ):
            what = f"{item.label}: '{name}' was altered after it was verified"
        else:
            continue
        found.append(Refusal(what=what, firm=True, remedy="Build again."))
    return found


def _measurement_refusal(item: Item, run: Measured) -> Refusal | None:
    """A measurement counts by what it measured, not by its date: an artifact built again has the same bytes."""
    value = item.manifest
    main = manifests.identity(value)
    if run.artifact == main:
        return None
    path = item.folder / value["main"]
    built = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(path.stat().st_mtime)) if path.exists() else ""
    older = "it is older than the artifact, and " if run.started < built else ""
    what = (
        f"{item.label}: the newest measurement on {run.device} ({run.started}) does not count: {older}it is of other "
        f"bytes (sha256 {run.artifact[:12]}, the artifact's is {main[:12] or 'none'})"
    )
    return Refusal(what=what, remedy="Measure again, or leave --results out.")
