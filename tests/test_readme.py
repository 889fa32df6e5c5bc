"""What the README says of sessions, targets, precisions and exit codes is what is there."""

from __future__ import annotations

import re
import subprocess
import sys

from build import errors
from targets import registry
from targets.precisions import PRECISIONS
from tests.conftest import ROOT, environment

README = (ROOT / "README.md").read_text()


def _rows(head: str) -> list[list[str]]:
    """Cells of the table whose first header cell is ``head``."""
    lines = README[README.index(f"| {head} |") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_matrix_is_that_of_the_facts() -> None:
    head, _, *rows = _rows("target")
    assert head[2:-1] == list(PRECISIONS)
    said = {row[0].strip("`"): row for row in rows}
    facts = registry.all_targets()
    assert list(said) == list(facts)
    for name, row in said.items():
        assert row[1].split(", ") == list(facts[name].platforms)
        for precision, cell in zip(head[2:-1], row[2:-1], strict=True):
            assert cell.startswith("yes") == (facts[name].precisions[precision] == "available"), (name, precision)


def test_every_session_is_named_and_exists() -> None:
    command = [sys.executable, "-m", "nox", "-l"]
    listed = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
    exist = set(re.findall(r"^[-*] ([a-z0-9-]+)", listed.stdout, re.MULTILINE))
    cells = " ".join(row[0] for row in _rows("session")[2:])
    named = set()
    for word in re.findall(r"`([a-z0-9-]+)`", cells):
        named |= {f"bundle{word}"} if word.startswith("-") else {word}
    assert named == exist


def test_every_exit_code_is_told() -> None:
    ours = {value.exit_code for value in vars(errors).values() if hasattr(value, "exit_code")}
    assert {int(row[0]) for row in _rows("exit code")[2:]} == {0, errors.INTERRUPTED_EXIT, *ours}
