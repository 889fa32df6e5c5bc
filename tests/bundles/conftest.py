"""Fixtures of the bundle tests: the digits model's artifacts, bundled."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bundles.support import PLATFORMS
from tests.conftest import ROOT, Run, environment


@pytest.fixture(autouse=True)
def one_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEPORT_PYTHON", sys.executable)


@pytest.fixture(scope="session")
def built(digits: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder with the digits model built, and a bundle of it for every platform."""
    for targets in PLATFORMS.values():
        assert {digits.row(t)["status"] for t in targets} == {"ok"}, digits.stdout + digits.stderr
    out = tmp_path_factory.mktemp("bundled") / "out"
    shutil.copytree(digits.out / "digits_cnn", out / "digits_cnn")
    done = subprocess.run(
        [sys.executable, "-m", "build.bundle", "bundle", "--out", str(out), "--precisions", "fp32", "--json",
         str(out / "bundles.json")], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    """The same artifacts, to spoil."""
    shutil.copytree(built / "digits_cnn", tmp_path / "out" / "digits_cnn")
    return tmp_path / "out"
