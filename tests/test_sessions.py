"""Every session's modules need no package that the environment it runs in lacks.

The tests' own environment holds every group, so a test that merely runs a session there would not notice.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import sys
from pathlib import Path
from typing import Any

import nox.registry
import pytest

from build import envs
from tests.conftest import ROOT


class _Recorded:
    """Stands in for nox's session: what it is asked to run is kept, and not run."""

    posargs = ("--help",)

    def __init__(self) -> None:
        self.commands: list[tuple[str, tuple[str, ...]]] = []

    def run(self, python: str, *arguments: str, **_: Any) -> str:
        if arguments[:2] == ("-m", "build.envs"):
            return arguments[2]  # where _python expects an interpreter: the group's name
        self.commands.append(("" if python == sys.executable else python, arguments))
        return ""


@functools.cache
def _commands() -> list[tuple[str, str, str]]:
    """(session, group or "" for nox's own environment, module), read from the noxfile by running its sessions."""
    import noxfile

    assert noxfile.ROOT == ROOT
    found = []
    for name, session in nox.registry.get().items():
        recorded = _Recorded()
        session.func(recorded)
        assert recorded.commands, f"{name} runs nothing"
        found += [(name, group, arguments[1]) for group, arguments in recorded.commands]
    return found


def _file_of(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


@functools.cache
def _outside(module: str) -> frozenset[str]:
    """Packages that importing a module of ours imports, directly or through others of ours."""
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [module, f"{module}.__main__"]
    while waiting:
        name = waiting.pop()
        path = _file_of(name)
        if path is None or name in seen:
            continue
        seen.add(name)
        waiting += [name.rpartition(".")[0]]
        for imported in _imports(path):
            top = imported.split(".")[0]
            if (ROOT / top).is_dir():
                waiting += [imported, imported.rpartition(".")[0]]
            elif top not in sys.stdlib_module_names:
                found.add(top)
    return frozenset(found)


def _imports(path: Path) -> list[str]:
    found: list[str] = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports relatively"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def test_the_noxfile_is_read_whole() -> None:
    groups = {name: group for name, group, _ in _commands()}
    assert groups["build-android"] == groups["blame"] == groups["check"] == ""
    assert groups["bench-web"] == "bench-web"
    assert groups["report"] == "report"
    assert {name for name, _, _ in _commands()} == set(nox.registry.get())


@pytest.mark.parametrize(("session", "group", "module"), _commands())
def test_a_session_imports_only_what_its_environment_holds(session: str, group: str, module: str) -> None:
    if _file_of(module) is None:  # a tool of the group itself: ruff, mypy, pytest
        assert module in {re.split(r"[=\[]", line)[0] for line in envs.requirements(group)}
        return
    held = {re.split(r"[=\[]", line)[0].lower() for line in envs.requirements(group)} if group else set()
    packages = importlib.metadata.packages_distributions()
    for name in sorted(_outside(module)):
        owners = {owner.lower() for owner in packages.get(name, [name])}
        assert owners & held, f"{session} imports {name}, which its environment ({group or 'nox'}) lacks"
