"""Shared fixtures: a build as a user runs it, in a subprocess, with this environment for every group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from build.setup import TOOLS

ROOT = Path(__file__).resolve().parent.parent
#: Sessions without a group run in nox's own environment, in which none of our dependencies is: a bare interpreter.
NOX_PYTHON = (str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"), "-S")


@dataclass(frozen=True, kw_only=True)
class Run:
    """How a build ended: exit code, both outputs, the rows of ``--json``, its file, and the folder written to."""

    code: int
    stdout: str
    stderr: str
    rows: list[dict[str, Any]]
    error: dict[str, Any] | None
    out: Path
    summary: Path

    def row(self, target: str, precision: str = "fp32") -> dict[str, Any]:
        """The one row of a target and precision."""
        (found,) = [r for r in self.rows if (r["target"], r["precision"]) == (target, precision)]
        return found


def require_tools(*programs: str) -> None:
    """Skip, with the reason, where a system package that ``nox -s setup`` installs is missing."""
    missing = [t.package for t in TOOLS if t.program in programs and not t.present]
    if missing:
        pytest.skip(f"not on this machine: {', '.join(missing)} (nox -s setup installs them)")


def environment() -> dict[str, str]:
    """This process's environment, with this interpreter serving every dependency group."""
    return {**os.environ, "EDGEPORT_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}


def build_in(root: Path, out: Path, *arguments: str, session: str = "build", module: str = "build") -> Run:
    """``python -m build SESSION …`` in a checkout, with its JSON summary."""
    # Two test processes may build into one folder, each with a summary of its own.
    summary = out.parent / f"{out.name}-{os.getpid()}-summary.json"
    summary.unlink(missing_ok=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [*NOX_PYTHON, "-m", module, session, "--out", str(out), "--json", str(summary), *arguments],
        cwd=root,
        env={**environment(), "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    value = json.loads(summary.read_text()) if summary.exists() else {"artifacts": [], "error": None}
    return Run(
        code=done.returncode,
        stdout=done.stdout,
        stderr=done.stderr,
        rows=value["artifacts"],
        error=value["error"],
        out=out,
        summary=summary,
    )


@pytest.fixture
def one_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """This interpreter serves every dependency group."""
    monkeypatch.setenv("EDGEPORT_PYTHON", sys.executable)


@pytest.fixture(scope="session")
def shared_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One output folder for tests that only read what a build of the digits model made."""
    base = tmp_path_factory.getbasetemp()
    # Test processes that run side by side share one folder: the second build finds what the first one made.
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared" / "out"


@pytest.fixture(scope="session")
def digits(shared_out: Path) -> Run:
    """The digits model built for every target at every precision: the main job, once for all tests that look at it."""
    return build_in(ROOT, shared_out, "--model", "digits_cnn", "--precisions", "all")


@pytest.fixture
def run_build(tmp_path: Path) -> Callable[..., Run]:
    """A build into this test's own output folder."""
    return lambda *arguments, **kwargs: build_in(ROOT, tmp_path / "out", *arguments, **kwargs)
