"""The files that the report is: HTML, Markdown, JSON, and what hostile results do to them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_bench.report import as_json, markdown, page, text
from tests.conftest import ROOT, environment
from tests.results import full_run
from tests.results.reporting import (
    HOSTILE,
    Made,
    hostile_report,
    make,
    read,
)

MIB = 1 << 20


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("full"))


# --- files ---------------------------------------------------------------------------------------------------------


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "device_bench.report", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, check=False)


def test_the_session_writes_three_files_and_prints_where(made: Made, tmp_path: Path) -> None:
    where = ("--out", str(made.out), "--results", str(made.results), "--budgets", str(made.budgets))
    done = run(*where, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    folder = made.out / "report"
    html, md, js = (folder / f"report.{ending}" for ending in ("html", "md", "json"))
    for path in (html, md, js):
        assert path.name in done.stdout
    assert html.stat().st_size < 3 * MIB
    found = json.loads(js.read_text())
    schema = json.loads(as_json.SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(found, schema)
    assert found["verdicts"]["PASS"] > 0
    again = run(*where, "--html", str(tmp_path / "own.html"), cwd=tmp_path)
    assert again.returncode == 0
    assert [p.name for p in tmp_path.iterdir()] == ["own.html"]
    assert (tmp_path / "own.html").read_bytes() == html.read_bytes()


def test_markdown_holds_the_same_rows(made: Made) -> None:
    lines = markdown.render(made.report).splitlines()
    start = lines.index("## Decision table")
    table = lines[start + 4 : lines.index("## Latency distributions") - 1]
    assert len(table) == len(made.report.rows)
    for line, row in zip(table, made.report.rows, strict=True):
        cells = [c.strip() for c in line.strip("|").split(" | ")]
        assert cells[0] == row.model
        assert cells[1] == row.label
        assert cells[9] == (row.verdict or "no budget")
    bars = {line.count("|") for line in (*lines[start + 2 : start + 4], *table)}
    assert len(bars) == 1


def test_builds_alone_make_a_report(made: Made) -> None:
    report = read(made.out, None)
    content = page.render(report)
    assert "Nothing was measured" in content
    assert "top1_accuracy against size" in content
    jsonschema.validate(as_json.to_json(report), json.loads(as_json.SCHEMA.read_text()))
    assert "## Pareto" not in markdown.render(report)


def test_measurements_alone_make_a_report(made: Made) -> None:
    report = read(None, made.results)
    assert report.builds == ()
    assert len([r for r in report.rows if r.measured]) == len(report.rows) > 0
    page.render(report)
    jsonschema.validate(as_json.to_json(report), json.loads(as_json.SCHEMA.read_text()))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "there is nothing to report"),
        (("--out", "nowhere"), "--out nowhere: no such folder"),
        (("--results", "nowhere"), "nowhere"),
        (("--budgets", "nowhere.toml"), "--budgets nowhere.toml: no such file"),
        (("--frobnicate",), "--frobnicate"),
        (("--since", "soon"), "soon"),
        (("--html", "q", "--markdown", "./q", "--json", "j"), "--html and --markdown name the same file"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert said in errors[0]
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_report_never_replaces_results(made: Made, tmp_path: Path) -> None:
    record = made.results / full_run.RUN / "run.json"
    before = record.read_bytes()
    done = run("--out", str(made.out), "--results", str(made.results), "--json", str(record), cwd=tmp_path)
    assert done.returncode == 2
    assert "lies among the results" in done.stderr
    assert record.read_bytes() == before


def test_names_narrow_builds_too_and_those_that_nothing_has_are_said(made: Made, tmp_path: Path) -> None:
    where = ("--out", str(made.out), "--results", str(made.results), "--json", "own.json")
    done = run(*where, "--model", "nope", "--device", "web-chromium", cwd=tmp_path)
    assert done.returncode == 2
    assert "nothing fits --model nope --device web-chromium" in done.stderr
    assert list(tmp_path.iterdir()) == []
    done = run(*where, "--model", "minilm", "--model", "nope", "--device", "web-chromium", cwd=tmp_path)
    assert done.returncode == 0
    assert "--model nope" in done.stderr
    found = json.loads((tmp_path / "own.json").read_text())
    assert {(r["model"], r["target"], r["measured"]["device"]) for r in found["rows"]} == {
        ("minilm", "ort_web", "web-chromium")
    }
    built = {(b["model"], b["target"], b["precision"]) for b in found["builds"]}
    assert built == {(r["model"], r["target"], r["precision"]) for r in found["rows"]}
    # What is left out was built all the same.
    assert not [f for f in found["findings"] if f["kind"] == "missing"]


def test_nox_knows_the_session() -> None:
    source = (ROOT / "noxfile.py").read_text()
    assert '"device_bench.report", *session.posargs, group="report"' in source


# --- untrusted texts -----------------------------------------------------------------------------------------------


def test_only_harmless_characters_come_through() -> None:
    for name in HOSTILE:
        found = text.clean(name)
        assert len(found) <= text.NAME_LIMIT
        assert found.isprintable()
        assert not re.search("[\u0300-\u036f]{2}", found)


@given(st.text())
def test_cleaned_text_is_one_short_line(value: str) -> None:
    found = text.clean(value)
    assert len(found) <= text.NAME_LIMIT
    assert found.isprintable()
    assert text.clean(found) == found


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=40))
def test_markdown_text_cannot_leave_its_cell(value: str) -> None:
    (_, _, line, _) = markdown.table(("a", "b"), [(value, "end")])
    cells = re.split(r"(?<!\\)\|", line)
    assert len(cells) == 4
    assert cells[2].strip() == "end"
    shown = cells[1].strip()
    if shown and shown != value.strip():  # a code span: fences that the text does not hold, and the text itself
        fence = re.match("`+", shown)
        assert fence is not None
        assert shown.endswith(fence[0])
        assert fence[0] not in re.sub(f"`{{{len(fence[0]) + 1},}}", "", shown[len(fence[0]) : -len(fence[0])])
        assert shown.strip("` ").replace(r"\|", "|") == value.strip("` ")


def attributes(content: str) -> set[str]:
    """The names of all attributes of a page's tags."""
    found: set[str] = set()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.update(name for name, _ in attrs)

    Reader().feed(content)
    return found


def test_hostile_files_are_named_and_skipped_and_hostile_texts_stay_texts(tmp_path: Path) -> None:
    report = hostile_report(tmp_path)
    named = {p.path.rpartition("/")[2] for p in report.problems}
    assert named == {"truncated.json", "foreign.json", "noise.json", "nan.json", "lies.json",
                     "<img src=x onerror=alert(1)>.json"}  # fmt: skip
    content = page.render(report)
    # The page's own tags and nothing else: no attribute that runs, no picture, one script.
    assert content.count("<script") == 1
    assert "<img" not in content
    assert not [name for name in attributes(content) if name.startswith("on")]
    assert not re.search("[\u200b-\u200f\u202a-\u202e\u2066-\u2069\x00-\x08]", content)
    assert "7*7" in content
    jsonschema.validate(as_json.to_json(report), json.loads(as_json.SCHEMA.read_text()))
    md = markdown.render(report)
    outside = re.sub(r"(`+).*?\1(?!`)", "", md)
    assert not re.search(r"<(script|img|b|/)|javascript:|@everyone|http://", outside)


def test_a_page_asks_for_nothing_and_runs_only_its_own_script(made: Made) -> None:
    content = page.render(made.report)
    assert len(content.encode()) < 3 * MIB
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", content.replace("<!DOCTYPE html>", ""))
    assert not re.search(r"<[^>]* (on\w+|style)=", content)
    style, script = (re.search(f"<{t}>(.*?)</{t}>", content, re.DOTALL) for t in ("style", "script"))
    assert style is not None
    assert script is not None
    policy = page.policy(style[1], script[1])
    assert policy.replace("'", "&#39;") in content
    assert "default-src 'none'" in policy
    ids = re.findall(r'\sid="([^"]+)"', content)
    assert len(ids) == len(set(ids))
    used = re.findall(r'(?:aria-labelledby|aria-describedby|aria-controls|href)="#?([^"]+)"', content)
    assert set(used) <= set(ids)
