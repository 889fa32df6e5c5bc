"""Budgets: limits per platform and device class, and whether an artifact keeps to them.

A TOML file of budgets (``--budgets``) is a list of tables::

    [[budget]]
    platform = "android"
    device_class = "low-end"
    max_bytes = 5_000_000
    max_metric_drop = 0.01
    p95_ms = 8.0

``platform = "local"`` is what ``bench-local`` judges by; nothing is shipped to it.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from build.errors import InputError
from models.spec import Budget
from targets.registry import platforms

Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE"]
LIMITS = ("max_bytes", "min_metric", "max_metric_drop", "max_changed", "p95_ms", "peak_mb")
#: limits that only a measurement on a device can answer
MEASURED = ("p95_ms", "peak_mb")


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One limit of a budget against one artifact.

    Attributes:
        limit: its name in the budget.
        allowed: the limit.
        value: what the artifact has; None when it is not known.
        why: for INCONCLUSIVE, what is missing.
    """

    limit: str
    allowed: float
    value: float | None
    verdict: Verdict
    why: str = ""


def read_budgets(path: Path) -> list[Budget]:
    """Budgets of a TOML file.

    Raises:
        InputError: not TOML, unknown keys, a limit that is not a number, a budget without any limit.
    """
    try:
        value = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path.name} is not valid TOML: {error}") from error
    tables = value.pop("budget", [])
    if not isinstance(tables, list) or not tables:
        raise InputError(f"{path.name} holds no [[budget]]", remedy="Write one table per budget: [[budget]].")
    if value:  # [[budgets]], say: its limits would be passed over
        raise InputError(
            f"{path.name} holds {', '.join(map(repr, value))} beside its budgets",
            remedy="Write one table per budget: [[budget]].",
        )
    return [from_mapping(t, f"{path.name}, budget {i + 1}") for i, t in enumerate(tables)]


def from_mapping(table: object, where: str) -> Budget:
    """One budget from its keys.

    Raises:
        InputError: see :func:`read_budgets`.
    """
    if not isinstance(table, Mapping):
        raise InputError(f"{where} is {table!r}, not a table", remedy="Write one table per budget: [[budget]].")
    known = {f.name for f in fields(Budget)}
    unknown = sorted(set(table) - known)
    if unknown:
        raise InputError(f"{where}: unknown key {', '.join(unknown)}", remedy=f"Keys: {', '.join(sorted(known))}.")
    for name in LIMITS:
        value = table.get(name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
        if value is not None and not number:
            raise InputError(f"{where}: {name} is {value!r}", remedy="A limit is a number, 0 or more.")
    for name in ("platform", "device_class"):
        if not isinstance(table.get(name, "*"), str):
            raise InputError(f"{where}: {name} is {table[name]!r}", remedy='A name, or "*".')
    named = ["*", "local", *platforms()]
    if table.get("platform", "*") not in named:
        raise InputError(f"{where}: no platform is named '{table['platform']}'", remedy=f"Here: {', '.join(named)}.")
    if all(table.get(name) is None for name in LIMITS):  # everything would pass it
        raise InputError(f"{where} has no limit", remedy=f"Limits: {', '.join(LIMITS)}.")
    return Budget(**table)


def check_class(name: str, budgets: Sequence[Budget]) -> None:
    """A class of devices that is misspelt would escape its limits quietly.

    Args:
        name: ``*`` for any; where no budget is about a class, every name is only a label.

    Raises:
        InputError: the budgets are about classes of devices, and none is called so.
    """
    classes = sorted({b.device_class for b in budgets} - {"*"})
    if name != "*" and classes and name not in classes:
        raise InputError(
            f"--device-class {name}: no budget is about such devices",
            remedy=f"Budgets are about: {', '.join(classes)}. Add a [[budget]] for the others.",
        )


def judge(
    budget: Budget, manifest: Mapping[str, Any], measured: Mapping[str, float | None] | None = None
) -> list[Judged]:
    """Every limit of a budget against an artifact.

    Args:
        manifest: the artifact's.
        measured: ``p95_ms`` and ``peak_mb`` of its newest valid measurement on such a device, where there is one.

    Returns:
        One verdict per limit that the budget sets. What is not measured is INCONCLUSIVE, never PASS.
    """
    return [
        _judged(name, float(allowed), _value(name, manifest, measured or {}))
        for name in LIMITS
        if (allowed := getattr(budget, name)) is not None
    ]


def _value(name: str, manifest: Mapping[str, Any], measured: Mapping[str, float | None]) -> float | None:
    metric = manifest.get("metric")
    verification = manifest.get("verification")
    if name == "max_bytes":
        return float(manifest["bytes"]) if manifest["files"] else None
    if name == "min_metric":
        return None if metric is None else float(metric["value"])
    if name == "max_metric_drop":
        return None if metric is None else float(metric["reference"]) - float(metric["value"])
    if name == "max_changed":
        decided = verification is not None and verification["decisions"] > 0
        return float(verification["changed_decisions"]) if verification is not None and decided else None
    return measured.get(name)


_MISSING = {
    "max_bytes": "there is no artifact",
    "min_metric": "the model has no metric",
    "max_metric_drop": "the model has no metric",
    "max_changed": "the model decides nothing",
    "p95_ms": "not measured on such a device",
    "peak_mb": "not measured on such a device",
}


def _judged(name: str, allowed: float, value: float | None) -> Judged:
    if value is None:
        return Judged(limit=name, allowed=allowed, value=None, verdict="INCONCLUSIVE", why=_MISSING[name])
    # A billionth of slack: a loss of 0.01 is written in binary.
    good = value >= allowed - 1e-9 if name == "min_metric" else value <= allowed + 1e-9
    return Judged(limit=name, allowed=allowed, value=value, verdict="PASS" if good else "FAIL")


def overall(judged: Sequence[Judged]) -> Verdict:
    """FAIL when a limit fails, else INCONCLUSIVE when one is not known, else PASS."""
    verdicts = {j.verdict for j in judged}
    return "FAIL" if "FAIL" in verdicts else "INCONCLUSIVE" if "INCONCLUSIVE" in verdicts else "PASS"
