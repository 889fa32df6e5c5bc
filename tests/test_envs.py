"""Environments ask for one another: a session runs in its own, and needs others."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from build import envs, setup, shell
from build.errors import MissingToolError


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


@pytest.mark.parametrize("why", ["offline", "python", "disk"])
def test_an_environment_that_cannot_be_made_is_one_line(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], why: str
) -> None:
    def run(command: list[object]) -> None:
        raise MissingToolError("'pip install' failed with exit code 1: ERROR: no network")

    monkeypatch.setattr(shell, "run", run)
    if why == "python":
        monkeypatch.setattr(envs, "_SUPPORTED", ((3, 1),))
    if why == "disk":
        (home / "file").write_text("")
        monkeypatch.setattr(envs, "HOME", home / "file" / "nox")
    assert envs.main(["lint"]) == (7 if why == "disk" else 5)
    said = capsys.readouterr()
    assert said.out == ""
    assert len([line for line in said.err.splitlines() if line.startswith("error: ")]) == 1


def test_setup_installs_nothing_when_asked_not_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: object, **__: object) -> None:
        pytest.fail("it ran apt-get")

    monkeypatch.setattr(shell, "run", run)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(setup.Tool, "present", property(lambda tool: tool.package == "adb"))
    assert setup.main(["--dry-run"]) == 0
    said = capsys.readouterr().err
    assert "would run: apt-get install" in said
    assert "adb" not in said.rpartition("would run")[2]
    with pytest.raises(SystemExit, match="0"):
        setup.main(["--help"])
    assert "--dry-run" in capsys.readouterr().out
    # nox hands the options of `nox -s setup build-android -- --model x` to both sessions.
    assert setup.main(["--dry-run", "--model", "x"]) == 0
    assert "setup leaves --model x to the sessions beside it" in capsys.readouterr().err
