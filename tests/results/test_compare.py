"""``nox -s compare``: verdicts, what is compared with what, and what is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from device_bench.compare.__main__ import main
from device_bench.compare.words import markdown
from tests.results import measurements as made
from tests.results.measurements import LATER, NEW, OLD, drawn

Ns = NDArray[np.int64]


def both(results: Path, new: list[Ns] | None = None, changed: dict[str, Any] | None = None, **common: Any) -> None:
    """One cell in an old and a new run."""
    a = [drawn(s) for s in range(3)]
    b = new if new is not None else [drawn(10 + s) for s in range(3)]
    made.write_repeats(results, OLD, [s.tolist() for s in a], **common)
    made.write_repeats(results, NEW, [s.tolist() for s in b], started=LATER, **{**common, **(changed or {})})


def compare(results: Path, *arguments: str, a: str = OLD, b: str = NEW) -> tuple[int, dict[str, Any], str]:
    """Exit code, JSON and Markdown of the command."""
    made_json, made_markdown = results.parent / "c.json", results.parent / "c.md"
    for file in (made_json, made_markdown):
        file.unlink(missing_ok=True)
    files = ["--json", str(made_json), "--markdown", str(made_markdown)]
    code = main([a, b, "--results", str(results), *files, *arguments])
    value = json.loads(made_json.read_text()) if made_json.exists() else {}
    return code, value, made_markdown.read_text() if made_markdown.exists() else ""


def slower(ms: float = 10.5) -> list[Ns]:
    return [drawn(10 + s, ms=ms) for s in range(3)]


DECISION = {"call": "eval-3", "row": 0, "before": 3, "after": 5, "margin": 1.0, "tie": False}


@pytest.mark.parametrize(
    ("new", "changed", "expected", "code"),
    [
        (None, {}, "same", 0),
        (slower(), {}, "slower", 6),
        (slower(9.5), {}, "faster", 0),
        ([np.array(made.bimodal(seed=s)) for s in range(3)], {}, "NOISY", 0),
        ([drawn(1, count=3)], {}, "NOISY", 0),
        (slower(), {"emulated": True}, "INCOMPARABLE", 0),
        (slower(), {"settings": {"affinity": [3]}}, "INCOMPARABLE", 0),
        (slower(), {"device": {"soc": "another"}}, "INCOMPARABLE", 0),
        (slower(), {"runtime": {"name": "executorch"}}, "INCOMPARABLE", 0),
        (slower(), {"details": {"provider": "webgpu"}}, "INCOMPARABLE", 0),
        (slower(), {"runtime": {"version": "2.4.0"}, "device": {"os": "Android 16"}}, "slower", 6),
        (None, {"accuracy": made.accuracy([DECISION])}, "same", 6),
        (None, {"accuracy": made.accuracy([{**DECISION, "tie": True}])}, "same", 0),
    ],
)
def test_verdicts_and_exit_codes(
    tmp_path: Path, new: list[Ns] | None, changed: dict[str, Any], expected: str, code: int
) -> None:
    both(tmp_path / "results", new, changed)
    ended, value, _ = compare(tmp_path / "results")
    (pair,) = value["pairs"]
    assert (pair["verdict"], ended) == (expected, code)
    assert bool(pair["reasons"]) is (expected in ("NOISY", "INCOMPARABLE"))


@pytest.mark.parametrize(
    ("fail_on", "code"), [("none", 0), ("slower", 6), ("decisions", 0), ("missing", 6), ("noisy,incomparable", 0)]
)
def test_what_fails_is_the_users_choice(tmp_path: Path, fail_on: str, code: int) -> None:
    results = tmp_path / "results"
    both(results, slower())
    made.write(results, OLD, made.measurement(target="executorch"))
    ended, value, _ = compare(results, "--fail-on", fail_on)
    assert ended == code
    assert [k["target"] for k in value["missing"]] == ["executorch"]


def test_thresholds_are_apart(tmp_path: Path) -> None:
    results = tmp_path / "results"
    both(results, slower(10.3))
    assert compare(results)[1]["pairs"][0]["verdict"] == "slower"
    assert compare(results, "--threshold", "10%")[1]["pairs"][0]["verdict"] == "same"
    wide = compare(results, "--confidence", "0.9999")[1]["pairs"][0]["p50"]
    narrow = compare(results, "--confidence", "50%")[1]["pairs"][0]["p50"]
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"]
    assert compare(results, "--judge", "p95")[1]["judged"] == "p95"


def test_why_nothing_fits_is_said_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    both(results)
    for file in (results / NEW / "pixel-7").iterdir():
        file.write_text(file.read_text()[:-30])
    for name in (NEW, str(results / NEW)):
        assert main([OLD, name, "--results", str(results)]) == 2
        shown = capsys.readouterr().err.splitlines()
        assert all(f"skipped {NEW}/pixel-7/" in line and "it is not whole JSON" in line for line in shown[:3])
        assert "no measurements that fit" in "\n".join(shown[3:])


def test_two_outputs_are_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    both(results)
    same = ["--json", str(tmp_path / "same"), "--markdown", str(tmp_path / "x" / ".." / "same")]
    assert main([OLD, NEW, "--results", str(results), *same]) == 2
    assert "name the same file" in capsys.readouterr().err
    assert not (tmp_path / "same").exists()
    record = results / OLD / "run.json"
    before = record.read_bytes()
    assert main([OLD, NEW, "--results", str(results), "--json", str(record)]) == 2
    assert record.read_bytes() == before


def test_changed_decisions_are_listed(tmp_path: Path) -> None:
    results = tmp_path / "results"
    gone = {**DECISION, "call": "eval-9"}
    both(results, None, {"accuracy": made.accuracy([DECISION])}, accuracy=made.accuracy([gone]))
    code, value, text = compare(results)
    decisions = value["pairs"][0]["decisions"]
    assert code == 6
    assert [d["call"] for d in decisions["new"]] == ["eval-3"]
    assert [d["call"] for d in decisions["gone"]] == ["eval-9"]
    assert "eval-3\\[0\\]: 3 in PyTorch, 5 here is new in B" in text


def test_what_differs_is_noted(tmp_path: Path) -> None:
    results = tmp_path / "results"
    both(results, slower(), {"artifact": {"program": "e" * 64, "toolchain": {"torch": "2.14.0"}}})
    notes = compare(results)[1]["pairs"][0]["notes"]
    assert {"another program", "torch 2.13.0 → 2.14.0"} <= set(notes)


def test_a_cell_that_fails_now_cannot_be_compared(tmp_path: Path) -> None:
    results = tmp_path / "results"
    made.write(results, OLD, made.measurement())
    made.write(results, NEW, made.failed(started=LATER))
    code, value, _ = compare(results, "--fail-on", "incomparable")
    assert code == 6
    assert value["pairs"][0]["reasons"] == ["it failed in B: device-lost: the connection broke"]


def test_a_long_run_is_compared_with_a_long_run(tmp_path: Path) -> None:
    results = tmp_path / "results"
    both(results, slower())
    made.write_record(results, NEW, started=LATER, sustained=10.0)
    code, value, _ = compare(results)
    assert (code, value["pairs"][0]["verdict"]) == (0, "INCOMPARABLE")
    assert "sustained" in value["pairs"][0]["reasons"][0]
    assert compare(results, b=str(results))[0] == 2  # of the folder only the other runs count, and that is A itself
    made.write_record(results, OLD, sustained=10.0)
    assert compare(results)[1]["pairs"][0]["verdict"] == "slower"


def test_two_devices(tmp_path: Path) -> None:
    results = tmp_path / "results"
    made.write_repeats(results, OLD, [made.normal(seed=s) for s in range(3)])
    other = {"device": "galaxy", "started": made.STARTED}
    for repeat in (1, 2, 3):
        value = made.measurement(made.normal(seed=9 + repeat, ms=20), repeat=repeat, **other)
        value["device"] |= {"soc": "Exynos", "model": "Galaxy"}
        made.write(results, OLD, value)
    code, value, _ = compare(results, a="device:pixel-7", b="device:galaxy")
    (pair,) = value["pairs"]
    assert (code, pair["verdict"], pair["a"]["device"], pair["b"]["device"]) == (6, "slower", "pixel-7", "galaxy")


def test_versions_and_folders(tmp_path: Path) -> None:
    results = tmp_path / "results"
    both(results, slower(), {"runtime": {"version": "2.4.0"}})
    assert compare(results, a="version:runtime=2.3.0", b="version:runtime=2.4.0")[1]["pairs"][0]["verdict"] == "slower"
    assert compare(results, a=str(results / OLD), b=str(results))[1]["pairs"][0]["b"]["run"] == NEW
    assert compare(results, a="run-20261101", b=str(results / NEW))[0] == 6


def test_a_branch_with_committed_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results"
    both(results, slower())

    def git(*words: str) -> None:
        who = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    git("init", "-b", "main")
    git("add", f"results/{OLD}")
    git("commit", "-m", "old")
    git("checkout", "-b", "feature")
    git("add", f"results/{NEW}")
    git("commit", "-m", "new")
    monkeypatch.chdir(tmp_path)
    code, value, _ = compare(results, a="branch:main", b="branch:feature:results")
    assert (code, value["pairs"][0]["verdict"]) == (6, "slower")
    assert compare(results, a="branch:nothing")[0] == 2
    assert compare(results, a="branch:main:nothing")[0] == 2
    assert compare(results, a="branch:main:../x")[0] == 2
    assert compare(results, a="branch:--output=x")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense", NEW], "nothing that can be compared"),
        (["run-2026", NEW], "several runs begin with"),
        (["run-1999", NEW], "no run begins with 'run-1999'"),
        (["device:another", "device:pixel-7"], "Devices there: pixel-7."),
        (["device:pixel-7", NEW], "a device is compared with a device"),
        (["version:", NEW], "names nothing"),
        (["version:executorch=9", NEW], "no measurements that fit"),
        ([OLD, OLD], "the same measurements"),
        ([OLD, NEW, "--model", "another"], "no measurements that fit"),
        ([OLD, NEW, "--threshold", "0%"], "--threshold 0%"),
        ([OLD, NEW, "--threshold", "nan"], "--threshold nan"),
        ([OLD, NEW, "--confidence", "1"], "--confidence 1"),
        ([OLD, NEW, "--fail-on", "anything"], "--fail-on anything"),
        ([OLD, NEW, "--seed", "-1"], "--seed -1"),
        ([OLD, NEW, "--max-metric-drop", "nan"], "--max-metric-drop nan"),
        ([OLD, NEW, "--max-metric-drop=-1"], "--max-metric-drop -1"),
        ([OLD], "required: B"),
        ([OLD, NEW, "--wrong"], "--wrong"),
        ([".", NEW], "neither a run of the lab nor"),
    ],
)
def test_what_cannot_be_used_is_one_clear_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    says: str,
) -> None:
    both(tmp_path / "results")
    monkeypatch.chdir(tmp_path / "results" / OLD / "pixel-7")
    assert main([*arguments, "--results", str(tmp_path / "results")]) == 2
    shown = capsys.readouterr().err.splitlines()
    assert says in shown[-1]
    assert shown[-1].startswith("error: ")
    assert not any("Traceback" in line for line in shown)


def test_nothing_in_common_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.write(tmp_path, OLD, made.measurement())
    made.write(tmp_path, NEW, made.measurement(started=LATER, threads=4))
    assert main([OLD, NEW, "--results", str(tmp_path)]) == 2
    assert "nothing in common: 1 only in A, 1 only in B" in capsys.readouterr().err


def test_hostile_names_act_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    name = made.HOSTILE
    both(results, slower(), device=name, model="a|b`c@d http://x www.y", variant="<b>")
    made.write(results, OLD, made.measurement(device=name, details={"provider": "x\x1b[2J"}, model="m"))
    made.write(results, NEW, made.measurement(device=name, started=LATER, model="m"))
    (results / OLD / "bad\x1b[31m.txt").write_text("")
    code, value, text = compare(results)
    shown = capsys.readouterr()
    assert code == 6
    assert value["pairs"][0]["device"] == name
    for output in (shown.out, shown.err, text):
        assert all(c.isprintable() or c == "\n" for c in output)
    assert "skipped" in shown.err
    for active in ("<script", "<b>", "@d", "://", "www.", "`c"):
        assert active not in text.replace("\\`", "")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1


def test_markdown_shows_text_as_it_is() -> None:
    assert markdown("a*b_[c](d)|e\n") == "a\\*b\\_\\[c\\](d)\\|e\\\\x0a"
