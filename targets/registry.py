"""The facts of every target, from ``targets.toml``. Standard library only."""

from __future__ import annotations

import difflib
import importlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from build.errors import InputError
from targets.contract import Target

ROOT = Path(__file__).resolve().parent.parent
FACTS = Path(__file__).with_name("targets.toml")


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """One row of ``targets.toml``; see the comments there."""

    name: str
    summary: str
    module: str
    group: str
    packages: tuple[str, ...]
    platforms: tuple[str, ...]
    unbounded: bool
    precisions: Mapping[str, str]
    code: tuple[str, ...]
    imports: tuple[str, ...]

    def unavailable(self, precision: str) -> str | None:
        """Why this target has no such precision; None when it has."""
        entry = self.precisions.get(precision, "unavailable: this target has no such precision")
        return None if entry == "available" else entry.removeprefix("unavailable:").strip()


def all_targets() -> dict[str, TargetFacts]:
    """Name -> facts, in the file's order."""
    rows = tomllib.loads(FACTS.read_text())
    found = {}
    for name, row in rows.items():
        found[name] = TargetFacts(
            name=name,
            summary=row["summary"],
            module=row["module"],
            group=row["group"],
            packages=tuple(row["packages"]),
            platforms=tuple(row["platforms"]),
            unbounded=row["unbounded"],
            precisions=row["precisions"],
            code=(row["module"].replace(".", "/") + ".py", *row.get("code", ())),
            imports=tuple(row.get("imports", ())),
        )
    return found


def platforms() -> dict[str, tuple[str, ...]]:
    """Platform -> the targets that ship to it."""
    found: dict[str, tuple[str, ...]] = {}
    for facts in all_targets().values():
        for platform in facts.platforms:
            found[platform] = (*found.get(platform, ()), facts.name)
    return found


def select(names: Sequence[str]) -> list[TargetFacts]:
    """Facts of the named targets.

    Raises:
        InputError: an unknown name; the message lists the known ones.
    """
    known = all_targets()
    chosen = []
    for name in dict.fromkeys(names):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            raise InputError(f"no target is named '{name}'", remedy=f"Targets: {', '.join(known)}.{hint}")
        chosen.append(known[name])
    return chosen


def load(facts: TargetFacts) -> Target:
    """Import a target's module. Its toolchain is imported only when one of its functions runs."""
    return cast(Target, importlib.import_module(facts.module))
