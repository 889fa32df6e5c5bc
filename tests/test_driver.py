"""The build's own part, with stand-ins for its workers: whose program counts, and how it ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from build import driver, manifest, plan, record, worker
from build.errors import EXIT_CODES, StorageError, UntrustedInputError
from build.protocol import error_to_json
from build.record import CalibrationRecord
from build.sources import sources
from build.workers import Workers
from targets.contract import Target
from targets.registry import select
from tests.driver_support import TARGET, artifact, build_with, keep, options_of, program_file, record_of, refuses

pytestmark = pytest.mark.usefixtures("one_environment")


def test_a_program_that_is_replaced_is_an_error_before_and_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "net" / "program"
    mine, other = record_of(), record_of(calibration=CalibrationRecord(sha256="c" * 64, calls=("0",), source="calls"))
    key = record.record_key(mine)
    keep(folder, other)
    with pytest.raises(StorageError, match="another program under the name 'net'"), record.unchanged(folder, key):
        pytest.fail("it is another one from the start")
    keep(folder, mine)
    with record.unchanged(folder, key):
        pass
    with pytest.raises(StorageError, match="another program"), record.unchanged(folder, key):
        keep(folder, other)

    def there_and_back() -> None:
        keep(folder, other)
        keep(folder, mine)

    keep(folder, mine)
    with pytest.raises(StorageError, match="another program"), record.unchanged(folder, key):
        there_and_back()  # what was read in between is not known


def _job(program: Path, directory: Path) -> dict[str, Any]:
    directory.mkdir()
    return {
        "target": TARGET,
        "precision": "fp32",
        "key": "0" * 64,
        "toolchain": {},
        "log": "log",
        "program": str(program),
        "record": record.record_key(record_of()),
        "directory": str(directory),
    }


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_whose_program_is_swapped_makes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    folder = tmp_path / "net" / "program"
    keep(folder, record_of())

    def preflight(*_: object) -> list[Any]:
        keep(folder, record_of(sha256="b" * 64))
        if fails:
            raise ValueError("what it read was of two programs")
        return []

    monkeypatch.setattr(worker, "load_program", lambda path: None)
    target = cast(Target, SimpleNamespace(preflight=preflight))
    job = _job(folder, tmp_path / "made")
    with pytest.raises(StorageError, match="another program"):
        worker.build_artifact(target, job, lambda stage: None)


def test_a_converter_that_leaves_fails_its_own_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "net" / "program"
    keep(folder, record_of())
    monkeypatch.setattr(worker, "load_program", lambda path: sys.exit(3))
    job = _job(folder, tmp_path / "made")
    value = worker.build_artifact(cast(Target, None), job, lambda stage: None)
    assert (value["status"], value["error"]["code"]) == ("failed:preflight", "lowering-failed")


def test_an_artifact_of_another_program_is_not_there(tmp_path: Path) -> None:
    """Its key says this program, its worker read another: as builds of one name could leave it."""
    file = program_file(tmp_path)
    options = options_of(tmp_path, "--program", str(file), "--precisions", "int8-static")
    (row,) = plan.rows(sources(options, {}), select((TARGET,)), ("int8-static",))
    calibration = CalibrationRecord(sha256="c" * 64, calls=("0",), source="calls")
    mine = record_of(calibration=calibration, files={record.REFERENCE: "d" * 64})
    artifact(options.out, mine, precision="int8-static")
    assert plan.cached(row, mine, options.out, "0" * 64) is not None
    for other in (
        replace(mine, sha256="b" * 64),
        replace(mine, calibration=replace(calibration, sha256="e" * 64)),
        replace(mine, files={record.REFERENCE: "f" * 64}),
    ):
        assert plan.cached(row, other, options.out, "0" * 64) is None


def test_the_same_program_captured_again_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another build may be reading it, and nothing that it read is of another program."""
    options = options_of(tmp_path, "--program", str(program_file(tmp_path)), "--force")
    place = options.out / "net" / "program"
    keep(place, record_of())
    before = (place / record.RECORD).stat().st_ino

    def captures(sha256: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        def answer(job: Mapping[str, Any]) -> dict[str, Any]:
            if "source" not in job:
                return refuses(job)
            text = json.dumps(record_of(sha256=sha256).to_json())
            (Path(job["directory"]) / record.RECORD).write_text(text)
            return {"result": {}}

        return answer

    build_with(options, monkeypatch, captures("a" * 64))
    assert (place / record.RECORD).stat().st_ino == before
    build_with(options, monkeypatch, captures("b" * 64))
    assert record.read_record(place).sha256 == "b" * 64


def test_a_forgotten_trust_leaves_the_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pickled(job: Mapping[str, Any]) -> dict[str, Any]:
        return {"error": error_to_json(UntrustedInputError("it holds pickled objects", remedy="Say so with --trust."))}

    file = str(program_file(tmp_path))
    folder = artifact(options_of(tmp_path, "--program", file).out, record_of())
    build_with(options_of(tmp_path, "--program", file), monkeypatch, pickled)
    assert (folder / "model.onnx").exists()
    build_with(options_of(tmp_path, "--program", file, "--trust"), monkeypatch, pickled)
    assert not (folder / "model.onnx").exists()


@pytest.mark.parametrize("code", [*EXIT_CODES, "never-heard-of"])
def test_a_row_that_failed_never_ends_with_0(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"status": "failed:lower", "error": {"code": code}}
    assert manifest.exit_code([row]) == EXIT_CODES.get(code, 1) != 0
    monkeypatch.setattr(manifest, "_SEVERITY", (4, 1))  # a kind of failure that was added, and not ranked
    assert manifest.exit_code([row]) != 0
    assert manifest.exit_code([{"status": "failed:lower", "error": None}]) == 1
    assert manifest.exit_code([{"status": s, "error": None} for s in ("ok", "unavailable: no", "would-build")]) == 0


def test_one_rows_trouble_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(tmp_path, "--program", str(program_file(tmp_path)), "--precisions", "fp32,fp16,int8-weight")
    monkeypatch.setattr(driver, "captured", lambda out, source: record_of())

    def answer(job: Mapping[str, Any]) -> dict[str, Any]:
        if job["precision"] == "fp32":
            raise OSError(28, "No space left on device")
        if job["precision"] == "fp16":
            raise ValueError("ours")
        value = manifest.begin(record_of(), job) | {"status": "ok", "error": None}
        manifest.write(Path(job["directory"]), value)
        return {"result": value}

    run, rows = build_with(options, monkeypatch, answer)
    assert [(r["status"], (r["error"] or {}).get("code")) for r in rows] == [
        ("failed:lower", "storage"),
        ("failed:lower", "internal"),
        ("ok", None),
    ]
    assert run.exit_code == 7


@pytest.mark.parametrize("is_captured", [False, True])
def test_no_room_for_a_worker_still_gives_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_captured: bool
) -> None:
    def full(*_: object) -> NoReturn:
        raise StorageError("cannot write below 'out': No space left on device")

    options = options_of(tmp_path, "--program", str(program_file(tmp_path)), "--precisions", "fp32,fp16")
    folder = artifact(options.out, record_of())
    if is_captured:
        monkeypatch.setattr(driver, "captured", lambda out, source: record_of())
    monkeypatch.setattr(Workers, "start", full)
    run = driver.Build(options)
    stage = "lower" if is_captured else "capture"
    assert [(r["status"], r["error"]["code"]) for r in run.run()] == [(f"failed:{stage}", "storage")] * 2
    assert run.exit_code == 7
    assert (folder / "model.onnx").exists()


def test_a_manifest_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write a manifest"):
        manifest.write(tmp_path / "nowhere", {})
