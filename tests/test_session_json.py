"""What ends a session stands in its ``--json``, never yesterday's answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from build import __main__ as build_session
from build import check, entry, preflight
from build.blame import __main__ as blame
from build.options import Options

pytestmark = pytest.mark.usefixtures("one_environment")


@pytest.mark.parametrize(
    "arguments",
    [["--program", "missing.pt2"], ["--precisions", "fp8"], ["--frobnicate"], ["--jobs", "x"], ["--out", "README.md"],
     ["--program", "x" * 300 + ".pt2"], ["--module", "x" * 300 + ".py:f"], ["--out", "x" * 300]],
)  # fmt: skip
@pytest.mark.parametrize("joined", [False, True])
def test_bad_options_stand_in_the_summary(
    tmp_path: Path, arguments: list[str], joined: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.json"
    file.write_text('{"artifacts": ["yesterday"]}')
    words = [f"--json={file}"] if joined else ["--json", str(file)]
    assert build_session.session(["build", *arguments, *words]) == 2
    value = json.loads(file.read_text())
    assert value["artifacts"] == []
    assert value["error"]["code"] == "bad-input"
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("session", "empty"), [(check.session, "sections"), (preflight.session, "programs"), (blame.session, "reports")]
)
def test_every_session_says_in_json_what_ended_it(
    tmp_path: Path, session: Callable[[list[str]], int], empty: str
) -> None:
    file = tmp_path / "s.json"
    assert session(["--frobnicate", "--json", str(file)]) == 2
    value = json.loads(file.read_text())
    assert (value[empty], value["error"]["code"]) == ([], "bad-input")


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), "interrupted"), (ValueError("x"), "internal")])
def test_what_nobody_expected_stands_in_the_summary_too(tmp_path: Path, error: BaseException, code: str) -> None:
    def body(options: Options) -> int:
        raise error

    file = tmp_path / "s.json"
    with pytest.raises(type(error)):
        entry.run_session("build", ["--json", str(file)], body, empty={"artifacts": []})
    assert json.loads(file.read_text())["error"]["code"] == code


def test_a_summary_never_takes_the_output_folders_place(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert build_session.session(["build", "--out", str(out), "--json", str(out)]) == 2
    assert not out.exists()
