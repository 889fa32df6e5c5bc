"""Environments ask for one another: a session runs in its own, and needs others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from build import envs, shell


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place without environments, in which making one installs nothing."""
    monkeypatch.delenv("EDGEPORT_PYTHON", raising=False)
    monkeypatch.setattr(envs, "HOME", tmp_path)
    monkeypatch.setattr(envs, "_packages", lambda python: {"python": "3.11.2"})
    return tmp_path


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is run to make environments; virtualenv's part is to put an interpreter there."""
    seen: list[list[str]] = []

    def run(command: list[object]) -> None:
        words = [str(word) for word in command]
        seen.append(words)
        if "virtualenv" in words:
            (Path(words[-1]) / "bin").mkdir(parents=True)
            (Path(words[-1]) / "bin" / "python").touch()

    monkeypatch.setattr(shell, "run", run)
    return seen


def test_one_environment_finds_another_and_makes_what_is_missing(
    home: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``bench-web`` runs in ``bench-web`` and asks for ``ort-web``: it is not made again, nor without virtualenv."""
    nox_python = sys.executable
    monkeypatch.setattr(sys, "prefix", str(home / "nox"))  # these tests run in a group's environment themselves
    first = envs.ensure("openvino")
    assert json.loads((home / "edgeport-openvino" / "edgeport.json").read_text())["made_by"] == nox_python
    made = len(commands)

    monkeypatch.setattr(sys, "prefix", str(home / "edgeport-openvino"))
    monkeypatch.setattr(sys, "executable", str(first.python))
    assert envs.ensure("openvino") == first
    assert len(commands) == made
    envs.ensure("ort-web")
    assert commands[made][:3] == [nox_python, "-m", "virtualenv"]
