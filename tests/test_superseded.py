"""What a refused source leaves of the artifact that was built from it before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from build import driver
from build.blame import __main__ as blame
from build.errors import ConverterCrash
from build.protocol import error_to_json
from tests.conftest import ROOT
from tests.driver_support import artifact, build_with, keep, options_of, program_file, record_of, refuses

pytestmark = pytest.mark.usefixtures("one_environment")


def test_a_refused_source_takes_its_artifact_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(tmp_path, "--program", str(program_file(tmp_path)))
    folder = artifact(options.out, record_of())
    other = artifact(options.out, record_of(), precision="fp16")  # not asked for
    run, rows = build_with(options, monkeypatch, refuses)
    assert run.exit_code == 2
    assert [r["status"] for r in rows] == ["failed:capture"]
    value = json.loads((folder / "manifest.json").read_text())
    assert (value["status"], value["error"]["message"]) == ("failed:capture", "not a program")
    assert [p.name for p in folder.iterdir()] == ["manifest.json"]
    assert value["files"] == []
    jsonschema.validate(value, json.loads((ROOT / "build" / "manifest.schema.json").read_text()))
    assert (other / "model.onnx").exists()


def test_a_quantised_programs_artifact_is_where_it_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(tmp_path, "--program", str(program_file(tmp_path)))
    before = record_of(quantized=True)
    keep(options.out / "net" / "program", before)
    folder = artifact(options.out, before, precision="int8-static")
    build_with(options, monkeypatch, refuses)
    assert not (folder / "model.onnx").exists()


@pytest.mark.parametrize("why", ["storage", "calibration", "dry-run", "blame", "crash"])
def test_what_is_not_the_sources_fault_leaves_the_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    program = program_file(tmp_path)
    calibrated = ["--calibration", str(program), "--precisions", "fp32,int8-static"]
    more = {"calibration": calibrated, "dry-run": ["--dry-run"]}.get(why, [])
    options = options_of(tmp_path, "--program", str(program), *more)
    folder = artifact(options.out, record_of())

    def answer(job: Mapping[str, Any]) -> dict[str, Any]:
        if why == "storage":
            return {"error": error_to_json(OSError(28, "No space left on device"))}
        if why == "crash":
            raise ConverterCrash("the capture process died")
        return refuses(job)

    build_with(options, monkeypatch, answer, blame.Blame if why == "blame" else driver.Build)
    assert (folder / "model.onnx").exists()
    assert json.loads((folder / "manifest.json").read_text())["status"] == "ok"


@pytest.mark.parametrize(("factory", "stays"), [("make", False), ("mak", True)])
def test_a_misspelt_factory_leaves_the_other_ones_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: str, stays: bool
) -> None:
    (tmp_path / "net.py").write_text("")
    options = options_of(tmp_path, "--module", f"{tmp_path}/net.py:{factory}")
    keep(options.out / "net" / "program", record_of(source={"kind": "module", "factory": "make"}))
    folder = artifact(options.out, record_of())
    build_with(options, monkeypatch, refuses)
    assert (folder / "model.onnx").exists() == stays


@pytest.mark.parametrize(("built_from", "stays"), [("b" * 64, False), ("a" * 64, True)])
def test_a_row_that_is_refused_replaces_only_what_another_program_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built_from: str, stays: bool
) -> None:
    options = options_of(tmp_path, "--program", str(program_file(tmp_path)), "--precisions", "fp32")
    folder = artifact(options.out, record_of(sha256=built_from))
    monkeypatch.setattr(driver, "captured", lambda out, source: record_of(quantized=True))
    run, rows = build_with(options, monkeypatch, refuses)
    assert (run.exit_code, rows[0]["status"]) == (2, "failed:input")
    assert (folder / "model.onnx").exists() == stays


def test_a_folder_that_was_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(tmp_path, "--program", str(program_file(tmp_path)))
    (options.out / "logs").mkdir(parents=True)
    (options.out / "logs" / "mine.txt").write_text("mine")
    build_with(options, monkeypatch, refuses)
    assert (options.out / "logs" / "mine.txt").read_text() == "mine"
