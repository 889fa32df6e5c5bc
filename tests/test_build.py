"""The main job as a user runs it: real converters, real runtimes, one output folder."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import jsonschema
import pytest
import torch

from build import check, entry
from build.errors import StorageError
from build.options import parse
from build.sources import sources
from targets.precisions import PRECISIONS
from targets.registry import all_targets
from tests import fuzz
from tests.conftest import NOX_PYTHON, ROOT, Run, build_in, environment

TARGETS = tuple(all_targets())


def _schema(name: str) -> dict[str, object]:
    value: dict[str, object] = json.loads((ROOT / "build" / name).read_text())
    return value


def test_every_target_is_built_and_verified(digits: Run) -> None:
    assert digits.code == 0, digits.stdout + digits.stderr
    assert {(r["target"], r["precision"]) for r in digits.rows} == {(t, p) for t in TARGETS for p in PRECISIONS}
    for row in digits.rows:
        assert row["status"] == "ok" or row["status"].startswith("unavailable"), row
        assert row["status"] == "ok" or row["precision"] != "fp32", "fp32 exists on every target"


def test_summary_follows_its_schema(digits: Run) -> None:
    value = json.loads(digits.summary.read_text())
    jsonschema.validate(value, _schema("summary.schema.json"))


@pytest.mark.parametrize("target", TARGETS)
def test_manifest_says_what_the_artifact_is(digits: Run, target: str) -> None:
    folder = digits.out / "digits_cnn" / target / "fp32"
    value = json.loads((folder / "manifest.json").read_text())
    jsonschema.validate(value, _schema("manifest.schema.json"))
    assert [i["name"] for i in value["inputs"]] == ["image"]
    assert [o["name"] for o in value["outputs"]] == ["logits"]
    batch = value["inputs"][0]["shape"][0]
    assert (batch["lo"], batch["hi"]) == (1, 64)
    assert value["narrowed"] == []
    sizes = {next(iter(s.values())) for s in value["verification"]["sizes"]}
    assert {1, 7, 64} <= sizes, "verified at both bounds and at a size never used for export"
    assert value["verification"]["changed_decisions"] == 0
    assert value["verification"]["decisions"] > 100
    assert (folder / value["main"]).exists()


def test_nothing_changed_means_nothing_runs(digits: Run) -> None:
    again = build_in(ROOT, digits.out, "--model", "digits_cnn", "--precisions", "all")
    assert again.code == 0
    assert all(r["cached"] for r in again.rows if r["status"] == "ok")
    assert "lower" not in again.stderr


def test_an_altered_artifact_is_built_again(digits: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(digits.out, out)
    file = next((out / "digits_cnn" / "openvino" / "fp32").glob("*.bin"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    run = build_in(ROOT, out, "--model", "digits_cnn", "--targets", "openvino,ort_web")
    assert run.row("openvino")["cached"] is False
    assert run.row("openvino")["status"] == "ok"
    assert run.row("ort_web")["cached"] is True


def test_same_input_same_bytes(digits: Run, tmp_path: Path) -> None:
    again = build_in(ROOT, tmp_path / "elsewhere", "--model", "digits_cnn", "--precisions", "fp32,int8-static")
    assert again.code == 0, again.stdout
    for row in again.rows:
        assert row["files"] == digits.row(row["target"], row["precision"])["files"], row["target"]


def test_dry_run_writes_nothing(run_build: Callable[..., Run], tmp_path: Path) -> None:
    run = run_build("--dry-run", "--targets", "ort_web")
    assert run.code == 0
    assert [r["status"] for r in run.rows] == ["would-build"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--model", "digit_cnn"), "Did you mean 'digits_cnn'"),
        (("--targets", "tflite"), "no target is named 'tflite'"),
        (("--precisions", "fp8"), "no precision is named 'fp8'"),
        (("--program", "nowhere.pt2"), "no such file"),
        (("--module", "nowhere.py"), "FILE.py:FACTORY"),
        (("--jobs", "0"), "needs at least 1"),
        (("--frobnicate",), "unrecognized arguments"),
        (("--json", "docs"), "this is a folder"),
        (("--json", "README.md/summary.json"), "is a file, not a folder"),
        (("--out", "README.md"), "this is a file"),
        (("--out", ""), "--out is empty"),
        (("--program", ""), "--program is empty"),
    ],
)
def test_bad_options_are_one_clear_line(
    run_build: Callable[..., Run], tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    run = run_build(*arguments)
    assert run.code == 2
    assert says in run.stderr
    assert "Traceback" not in run.stderr
    assert len([line for line in run.stderr.splitlines() if line.startswith("error:")]) == 1
    assert not (tmp_path / "out").exists()


def test_help_lists_the_options() -> None:
    done = subprocess.run(
        [*NOX_PYTHON, "-m", "build", "build-web", "--help"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    for option in ("--model", "--program", "--module", "--data", "--targets", "--precisions", "--out", "--jobs",
                   "--dry-run", "--json", "--force", "--debug", "--strict", "--min-delegated", "--trust"):  # fmt: skip
        assert option in done.stdout


def test_a_killed_build_leaves_old_or_new_and_the_next_one_works(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [*NOX_PYTHON, "-m", "build", "build", "--out", str(out), "--targets", "ort_web"]
    for after in (1.0, 6.0):
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(after)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for manifest in out.rglob("manifest.json"):
            if ".staging" not in manifest.parts:
                value = json.loads(manifest.read_text())
                assert all((manifest.parent / f["path"]).stat().st_size == f["bytes"] for f in value["files"])
    run = build_in(ROOT, out, "--targets", "ort_web")
    assert run.code == 0, run.stdout + run.stderr
    assert run.row("ort_web")["status"] == "ok"
    assert not (out / ".staging").exists()


def test_interrupt_reports_every_row(tmp_path: Path) -> None:
    summary = tmp_path / "s.json"
    command = [*NOX_PYTHON, "-m", "build", "build", "--out", str(tmp_path / "out"), "--json", str(summary)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "capture" in line:
            break
    process.send_signal(signal.SIGINT)
    process.stderr.read()
    assert process.wait() == 130
    rows = json.loads(summary.read_text())["artifacts"]
    assert {r["target"] for r in rows} == set(TARGETS)
    assert all(r["status"] == "failed:interrupted" for r in rows)
    assert {r["error"]["code"] for r in rows} == {"interrupted"}


def test_sessions_are_listed_with_one_line_each() -> None:
    listed = subprocess.run([sys.executable, "-m", "nox", "-l"], cwd=ROOT, capture_output=True, text=True, check=True)
    sessions = dict(re.findall(r"^[*-] (\S+) -> (\S.*)$", listed.stdout, re.M))
    wanted = {"setup", "build-android", "build-apple", "build-ios", "build-pc", "build-web", "build-linux-arm64",
              "build", "preflight", "tests", "lint", "cases", "bench-build"}  # fmt: skip
    assert wanted <= set(sessions)


def test_refused_programs_are_one_line_each_and_leave_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "mutants"
    folder.mkdir()
    program = torch.export.export(torch.nn.Linear(4, 3).eval(), (torch.randn(2, 4),))
    torch.export.save(program, folder / "good.pt2")
    good = (folder / "good.pt2").read_bytes()
    (folder / "good.pt2").unlink()
    kinds = {
        "truncated": fuzz.truncate,
        "traversal": fuzz.unsafe_name,
        "symlink": fuzz.symlink,
        "bomb": fuzz.bomb,
        "pickle": fuzz.evil_pickle,
        "newer": fuzz.newer_version,
    }
    for name, mutate in kinds.items():
        (folder / f"{name}.pt2").write_bytes(mutate(good, random.Random(3)))
    run = build_in(ROOT, tmp_path / "out", "--program", str(folder), "--targets", "ort_web")
    assert run.code == 2
    assert {r["model"] for r in run.rows} == set(kinds)
    for row in run.rows:
        assert row["status"] == "failed:capture"
        assert row["error"]["code"] in ("bad-input", "untrusted-input")
        assert row["error"]["message"]
    assert "Traceback" not in run.stdout + run.stderr
    assert not (tmp_path / "out").exists()


def test_one_bad_program_does_not_lose_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    program = torch.export.export(torch.nn.Linear(4, 3).eval(), (torch.randn(2, 4),))
    torch.export.save(program, folder / "good.pt2")
    (folder / "bad.pt2").write_bytes(b"not a program")
    run = build_in(ROOT, tmp_path / "out", "--program", str(folder), "--targets", "ort_web")
    assert run.code == 2
    assert {r["model"]: r["status"] for r in run.rows} == {"good": "ok", "bad": "failed:capture"}
    assert not (tmp_path / "out" / "bad").exists()


_THREADS = """
import torch

class Threads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("threads", torch.tensor(float(torch.get_num_threads())))

    def forward(self, x):
        return x * 0 + self.threads

def made():
    return Threads(), torch.zeros(2, 3)
"""


def test_references_do_not_depend_on_how_many_jobs_there_are(run_build: Callable[..., Run], tmp_path: Path) -> None:
    """Two threads sum in another order than one: a bundle would differ from machine to machine."""
    from safetensors.numpy import load_file

    (tmp_path / "threads.py").write_text(_THREADS)
    run = run_build("--module", f"{tmp_path / 'threads.py'}:made", "--targets", "ort_web", "--jobs", "1")
    assert run.code == 0, run.stderr
    (reference,) = run.out.glob("*/program/reference.safetensors")
    assert {float(v) for k, t in load_file(reference).items() if "/out/" in k for v in t.ravel() if v == v} == {1.0}


def test_a_summary_that_cannot_be_written_at_the_end_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: object) -> NoReturn:
        raise StorageError("cannot write 's.json': No space left on device")

    monkeypatch.setattr(entry, "write_atomic", write)
    assert entry.run_session("build", ["--json", str(tmp_path / "s.json")], write, empty={}) == 7
    assert capsys.readouterr().err == "error: cannot write 's.json': No space left on device\n"


_FACTORIES = """
import os, sys


def raises():
    raise RuntimeError("boom")


def leaves():
    sys.exit(0)


def dies():
    os._exit(0)
"""


def test_what_goes_wrong_in_the_users_factory_is_bad_input(run_build: Callable[..., Run], tmp_path: Path) -> None:
    file = tmp_path / "made.py"
    file.write_text(_FACTORIES)
    asked = [f"--module={file}:{name}" for name in ("raises", "leaves", "dies", "missing")]
    run = run_build(*asked, "--targets", "ort_web")
    assert run.code == 2, run.stderr
    found = {r["model"]: r["error"] for r in run.rows}
    assert set(found) == {"made_raises", "made_leaves", "made_dies", "made_missing"}
    assert {e["code"] for e in found.values()} == {"bad-input"}
    assert found["made_raises"]["message"].endswith("RuntimeError: boom")
    assert found["made_raises"]["source"] == 'made.py:6 in raises: raise RuntimeError("boom")'
    assert "called sys.exit(0)" in found["made_leaves"]["message"]
    assert "died during 'run made.py:dies'" in found["made_dies"]["message"]
    assert "os._exit" in found["made_dies"]["remedy"]
    assert "defines no function 'missing'" in found["made_missing"]["message"]
    assert "raises, leaves, dies" in found["made_missing"]["remedy"]


def test_a_file_that_gives_several_modules_names_them_by_factory(tmp_path: Path) -> None:
    for name in ("a b.py", "c.py"):
        (tmp_path / name).write_text("")

    def names(*asked: str) -> list[str]:
        options = parse("build", ("ort_web",), [w for a in asked for w in ("--module", f"{tmp_path}/{a}")])
        return [s.name for s in sources(options, {})]

    assert names("a b.py:f", "c.py:f") == ["a_b", "c"]
    assert names("a b.py:f", "c.py:f", "a b.py:g") == ["a_b_f", "c", "a_b_g"]
    assert names("c.py:f", f"../{tmp_path.name}/c.py:f") == ["c"]


def test_check_says_how_to_build_what_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.py"
    file.write_text("")
    assert check.session(["--module", f"{file}:make", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert f"nox -s build -- --module {file}:make --out {tmp_path / 'out'} --precisions all" in said
