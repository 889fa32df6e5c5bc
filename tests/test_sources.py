"""Sources that may not be read, and names that are no folders' names."""

from __future__ import annotations

from pathlib import Path

import pytest

from build import manifest
from build.errors import InputError
from build.options import parse
from build.sources import sources
from tests.driver_support import TARGET, artifact, options_of, program_file, record_of

pytestmark = pytest.mark.usefixtures("one_environment")


@pytest.mark.parametrize("option", ["--program", "--data", "--calibration"])
def test_a_file_that_may_not_be_read_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    program, other = program_file(tmp_path), tmp_path / "other.safetensors"
    other.write_bytes(b"")
    refused = program if option == "--program" else other

    def sha256(path: Path) -> str:
        if path == refused:
            raise PermissionError(13, "Permission denied")
        return "0" * 64

    monkeypatch.setattr("build.sources.sha256_file", sha256)
    more = [] if option == "--program" else [option, str(other), "--precisions", "int8-static"]
    with pytest.raises(InputError, match=f"'{refused}': cannot be read: Permission denied"):
        sources(options_of(tmp_path, "--program", str(program), *more), {})


def test_a_circle_of_links_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for option, session in (("--program", "build"), ("--out", "build"), ("--results", "check")):
        with pytest.raises(InputError, match=f"{option} .*: "):
            parse(session, (TARGET,), [option, str(tmp_path / "a" / "x.pt2")])


def test_names_below_out_are_not_those_of_sessions(tmp_path: Path) -> None:
    for name in ("report", "Bench", "release", "logs"):
        (tmp_path / f"{name}.pt2").write_bytes(b"")
        assert sources(options_of(tmp_path, "--program", f"{tmp_path}/{name}.pt2"), {})[0].name == f"{name}_"
    (tmp_path / "m.py").write_text("")
    asked = [w for f in ("a" * 200, "b" * 255) for w in ("--module", f"{tmp_path}/m.py:{f}")]
    with pytest.raises(InputError, match="too long a name for a folder"):
        sources(options_of(tmp_path, *asked), {})


def test_an_unreadable_artifact_is_not_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = artifact(tmp_path, record_of())
    value = manifest.read(folder)
    assert value is not None
    assert manifest.intact(folder, value)

    def sha256(path: Path) -> str:
        raise FileNotFoundError(2, "another build replaced it just now")

    monkeypatch.setattr(manifest, "sha256_file", sha256)
    assert not manifest.intact(folder, value)
