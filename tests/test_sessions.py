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
from types import SimpleNamespace
from typing import Any, cast

import nox
import nox.registry
import pytest
from nox.command import CommandFailed

from build import envs, plan
from build.options import parse
from build.sources import sources
from targets.registry import all_targets
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


@functools.cache
def _ours(*modules: str) -> frozenset[str]:
    """Files of ours that modules import, directly or through others, inside functions too."""
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = _file_of(name)
        if path is None or (file := path.relative_to(ROOT).as_posix()) in found:
            continue
        found.add(file)
        waiting += [
            name.rpartition(".")[0],
            *(n for n in _all_imports(path) if n.split(".")[0] in ("build", "targets")),
        ]
    return frozenset(found)


def _all_imports(path: Path) -> list[str]:
    found: list[str] = []
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*start, *([node.module] if node.module else [])])
            found += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return found


#: They carry and word what others decide.
_DECIDE_NOTHING = {"build/errors.py", "build/log.py", "build/protocol.py", "build/shell.py"}


@pytest.mark.parametrize("target", all_targets())
def test_the_cache_key_follows_all_code_that_makes_an_artifact(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, seen = all_targets()[target], []
    monkeypatch.setattr(plan, "_codes", {})
    monkeypatch.setattr(plan, "code_hash", lambda paths: seen.extend(paths))
    plan.code_of(facts)
    assert len(_ours(facts.module, "build.worker")) > 40
    assert _not_followed(seen, facts.module, "build.worker") == set()


@pytest.mark.parametrize("kind", ["model", "program"])
def test_the_captures_key_follows_all_code_that_captures(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr("build.sources.code_hash", lambda paths: seen.extend(paths))
    (tmp_path / "net.pt2").write_bytes(b"")
    named = "digits_cnn" if kind == "model" else str(tmp_path / "net.pt2")
    sources(parse("build", ("ort_web",), [f"--{kind}", named]), {})
    assert _not_followed(seen, "build.capture.__main__") == set()


def _not_followed(seen: list[str], *modules: str) -> set[str]:
    """Files that the modules reach and a key does not follow; a package's own one line decides nothing."""
    reached = {f for f in _ours(*modules) if (ROOT / f).read_text().strip().count("\n")}
    return {f for f in reached if not any(f == s or f.startswith(f"{s}/") for s in seen)} - _DECIDE_NOTHING


def _named(line: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", line)[0].lower().replace("_", "-")


@pytest.mark.parametrize("target", all_targets())
def test_the_cache_key_follows_the_toolchain(target: str) -> None:
    facts, seen = all_targets()[target], []
    environment = SimpleNamespace(versions=lambda names: seen.extend(names))
    record = SimpleNamespace(calibration_at=lambda precision: None, files={}, to_json=dict)
    row = SimpleNamespace(target=facts, precision="fp32")
    plan.artifact_key(row, record, environment, parse("build", (target,), []))  # type: ignore[arg-type]
    pinned = {_named(line) for line in envs.requirements(facts.group)}
    assert pinned <= set(seen)
    # What makes the bytes and is no pin of the group: it comes with another package, as constraints.txt says.
    with_them = {"litert": {"litert-converter"}, "ort_web": {"onnx-ir"}}
    assert with_them.get(target, set()) <= set(facts.packages)
    for name in facts.packages:
        assert _is_here(name), f"{name} is no distribution: its version would always be 'absent'"


def _is_here(name: str) -> bool:
    """Whether the tests' environment, which holds every group, has a distribution."""
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


def test_a_group_that_cannot_be_installed_ends_nox_with_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    import noxfile

    def run(*_: object, **__: object) -> None:
        raise CommandFailed("Returned code 5")

    monkeypatch.setattr(noxfile, "_exit_codes", [])
    with pytest.raises(CommandFailed):
        noxfile._python(cast(nox.Session, SimpleNamespace(run=run)), "-m", "ruff", group="lint")
    assert noxfile._exit_codes == [5]


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
