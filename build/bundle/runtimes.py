"""The runtimes that a receiver needs: facts from ``runtimes.toml``, licences from the installed packages."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from build import envs, shell
from build.errors import InputError
from targets.registry import TargetFacts

FACTS = Path(__file__).with_name("runtimes.toml")
#: run by the target's own interpreter: the texts of every licence file that a distribution lists
_READ = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    d = m.distribution(name)
    for f in d.files or ():
        stem = f.name.split(".")[0].lower()
        if stem in ("license", "licence", "notice", "thirdpartynotices", "copying") and len(f.parts) <= 3:
            found.setdefault(name, {})[f.name] = f.locate().read_text(encoding="utf-8", errors="replace")
print(json.dumps(found))
"""


@dataclass(frozen=True, kw_only=True)
class RuntimeFacts:
    """One table of ``runtimes.toml``; see the comments there."""

    name: str
    package: str
    licence: str
    library: Mapping[str, str]
    snippets: Mapping[str, Sequence[str]]
    versions: Mapping[str, str] = field(default_factory=dict)

    def version(self, platform: str, toolchain: Mapping[str, str]) -> str | None:
        """The version that a platform's receivers need; None for a runtime that belongs to the system."""
        return self.versions.get(platform) or toolchain.get(self.package)


def facts(target: str) -> RuntimeFacts:
    """The runtime of a target.

    Raises:
        InputError: the table has no such target.
    """
    row = tomllib.loads(FACTS.read_text(encoding="utf-8")).get(target)
    if row is None:
        raise InputError(f"{FACTS.name} says nothing of target '{target}'", remedy="Add its table.")
    return RuntimeFacts(**row)


def licences(target: TargetFacts) -> dict[str, str]:
    """File name -> text, for the runtime of a target; empty for one that belongs to the system.

    Raises:
        MissingToolError: the target's environment cannot be made.
        InputError: the installed package holds no licence.
    """
    package = facts(target.name).package
    if not package:
        return {}
    python = envs.ensure(target.group).python
    found = json.loads(shell.run([python, "-c", _READ, package]).stdout).get(package, {})
    if not found:
        raise InputError(f"the package '{package}' holds no licence text", remedy="Ship its licence by hand.")
    return {f"{package}-{name}" if "." in name else f"{package}-{name}.txt": text for name, text in found.items()}
