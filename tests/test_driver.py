"""The build's own part, with stand-ins for its workers: what it keeps, what it replaces, what it says."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import jsonschema
import pytest

from build import __main__ as build_session
from build import check, driver, entry, manifest, plan, preflight, record, worker
from build.blame import __main__ as blame
from build.cache import put_folder
from build.errors import EXIT_CODES, ConverterCrash, InputError, StorageError, UntrustedInputError
from build.options import Options, parse
from build.protocol import Worker, error_to_json
from build.record import CalibrationRecord, ProgramRecord
from build.sources import sources
from build.workers import Workers
from targets.contract import Signature, Target
from targets.registry import select
from tests.conftest import ROOT

_TARGET = "ort_web"


@pytest.fixture(autouse=True)
def _one_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEPORT_PYTHON", sys.executable)


def _record(**more: Any) -> ProgramRecord:
    start = ProgramRecord(
        name="net",
        key="k",
        sha256="a" * 64,
        signature=Signature(inputs=(), outputs=()),
        calls=(),
        files={},
        source={"kind": "program"},
    )
    return replace(start, **more)


def _keep(folder: Path, value: ProgramRecord) -> None:
    """As a capture does: a fresh folder in the old one's place."""
    fresh = folder.parent / "fresh"
    fresh.mkdir(parents=True)
    (fresh / record.RECORD).write_text(json.dumps(value.to_json()))
    put_folder(fresh, folder)
    shutil.rmtree(fresh, ignore_errors=True)  # what was there before


def _artifact(out: Path, program: ProgramRecord, key: str = "0" * 64, precision: str = "fp32") -> Path:
    """An artifact that was built and is good."""
    folder = out / program.name / _TARGET / precision
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_text("bytes")
    job = {"target": _TARGET, "precision": precision, "key": key, "toolchain": {}}
    value = manifest.begin(program, job) | {"status": "ok", "error": None, "peak_mb": 1.0, "main": "model.onnx"}
    manifest.write(folder, value | {"files": manifest.describe_files(folder), "bytes": 5})
    return folder


@dataclass
class _Stub:
    """Answers every job alike."""

    answer: Callable[[Mapping[str, Any]], dict[str, Any]]
    jobs: list[Mapping[str, Any]] = field(default_factory=list)

    def submit(self, job: Mapping[str, Any], on_stage: Callable[[str], None]) -> dict[str, Any]:
        self.jobs.append(job)
        return self.answer(job)

    def close(self) -> None: ...

    kill = close


def _options(tmp_path: Path, *arguments: str) -> Options:
    return parse("build", (_TARGET,), ["--out", str(tmp_path / "out"), *arguments])


def _build(
    options: Options,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[Mapping[str, Any]], dict[str, Any]],
    kind: type[driver.Build] = driver.Build,
) -> tuple[driver.Build, list[dict[str, Any]]]:
    monkeypatch.setattr(Workers, "start", lambda *_: _Stub(answer))
    run = kind(options)
    return run, run.run()


def _refuses(job: Mapping[str, Any]) -> dict[str, Any]:
    return {"error": error_to_json(InputError("not a program"))}


def _program(tmp_path: Path) -> Path:
    file = tmp_path / "net.pt2"
    file.write_bytes(b"not a program any more")
    return file


# ---- another build's program under the same name ---------------------------------------------------------------------


def test_a_program_that_is_replaced_is_an_error_before_and_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "net" / "program"
    mine, other = _record(), _record(calibration=CalibrationRecord(sha256="c" * 64, calls=("0",), source="calls"))
    key = record.record_key(mine)
    _keep(folder, other)
    with pytest.raises(StorageError, match="another program under the name 'net'"), record.unchanged(folder, key):
        pytest.fail("it is another one from the start")
    _keep(folder, mine)
    with record.unchanged(folder, key):
        pass
    with pytest.raises(StorageError, match="another program"), record.unchanged(folder, key):
        _keep(folder, other)

    def there_and_back() -> None:
        _keep(folder, other)
        _keep(folder, mine)

    _keep(folder, mine)
    with pytest.raises(StorageError, match="another program"), record.unchanged(folder, key):
        there_and_back()  # what was read in between is not known


def _job(program: Path, directory: Path) -> dict[str, Any]:
    directory.mkdir()
    return {
        "target": _TARGET,
        "precision": "fp32",
        "key": "0" * 64,
        "toolchain": {},
        "log": "log",
        "program": str(program),
        "record": record.record_key(_record()),
        "directory": str(directory),
    }


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_whose_program_is_swapped_makes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    folder = tmp_path / "net" / "program"
    _keep(folder, _record())

    def preflight(*_: object) -> list[Any]:
        _keep(folder, _record(sha256="b" * 64))
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
    _keep(folder, _record())
    monkeypatch.setattr(worker, "load_program", lambda path: sys.exit(3))
    job = _job(folder, tmp_path / "made")
    value = worker.build_artifact(cast(Target, None), job, lambda stage: None)
    assert (value["status"], value["error"]["code"]) == ("failed:preflight", "lowering-failed")


def test_an_artifact_of_another_program_is_not_there(tmp_path: Path) -> None:
    """Its key says this program, its worker read another: as builds of one name could leave it."""
    file = _program(tmp_path)
    options = _options(tmp_path, "--program", str(file), "--precisions", "int8-static")
    (row,) = plan.rows(sources(options, {}), select((_TARGET,)), ("int8-static",))
    calibration = CalibrationRecord(sha256="c" * 64, calls=("0",), source="calls")
    mine = _record(calibration=calibration, files={record.REFERENCE: "d" * 64})
    _artifact(options.out, mine, precision="int8-static")
    assert plan.cached(row, mine, options.out, "0" * 64) is not None
    for other in (
        replace(mine, sha256="b" * 64),
        replace(mine, calibration=replace(calibration, sha256="e" * 64)),
        replace(mine, files={record.REFERENCE: "f" * 64}),
    ):
        assert plan.cached(row, other, options.out, "0" * 64) is None


def test_the_same_program_captured_again_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another build may be reading it, and nothing that it read is of another program."""
    options = _options(tmp_path, "--program", str(_program(tmp_path)), "--force")
    place = options.out / "net" / "program"
    _keep(place, _record())
    before = (place / record.RECORD).stat().st_ino

    def captures(sha256: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        def answer(job: Mapping[str, Any]) -> dict[str, Any]:
            if "source" not in job:
                return _refuses(job)
            text = json.dumps(_record(sha256=sha256).to_json())
            (Path(job["directory"]) / record.RECORD).write_text(text)
            return {"result": {}}

        return answer

    _build(options, monkeypatch, captures("a" * 64))
    assert (place / record.RECORD).stat().st_ino == before
    _build(options, monkeypatch, captures("b" * 64))
    assert record.read_record(place).sha256 == "b" * 64


def test_a_forgotten_trust_leaves_the_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pickled(job: Mapping[str, Any]) -> dict[str, Any]:
        return {"error": error_to_json(UntrustedInputError("it holds pickled objects", remedy="Say so with --trust."))}

    file = str(_program(tmp_path))
    folder = _artifact(_options(tmp_path, "--program", file).out, _record())
    _build(_options(tmp_path, "--program", file), monkeypatch, pickled)
    assert (folder / "model.onnx").exists()
    _build(_options(tmp_path, "--program", file, "--trust"), monkeypatch, pickled)
    assert not (folder / "model.onnx").exists()


# ---- what a refused source leaves ------------------------------------------------------------------------------------


def test_a_refused_source_takes_its_artifact_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = _options(tmp_path, "--program", str(_program(tmp_path)))
    folder = _artifact(options.out, _record())
    other = _artifact(options.out, _record(), precision="fp16")  # not asked for
    run, rows = _build(options, monkeypatch, _refuses)
    assert run.exit_code == 2
    assert [r["status"] for r in rows] == ["failed:capture"]
    value = json.loads((folder / "manifest.json").read_text())
    assert (value["status"], value["error"]["message"]) == ("failed:capture", "not a program")
    assert [p.name for p in folder.iterdir()] == ["manifest.json"]
    assert value["files"] == []
    jsonschema.validate(value, json.loads((ROOT / "build" / "manifest.schema.json").read_text()))
    assert (other / "model.onnx").exists()


def test_a_quantised_programs_artifact_is_where_it_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = _options(tmp_path, "--program", str(_program(tmp_path)))
    before = _record(quantized=True)
    _keep(options.out / "net" / "program", before)
    folder = _artifact(options.out, before, precision="int8-static")
    _build(options, monkeypatch, _refuses)
    assert not (folder / "model.onnx").exists()


@pytest.mark.parametrize("why", ["storage", "calibration", "dry-run", "blame", "crash"])
def test_what_is_not_the_sources_fault_leaves_the_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    program = _program(tmp_path)
    calibrated = ["--calibration", str(program), "--precisions", "fp32,int8-static"]
    more = {"calibration": calibrated, "dry-run": ["--dry-run"]}.get(why, [])
    options = _options(tmp_path, "--program", str(program), *more)
    folder = _artifact(options.out, _record())

    def answer(job: Mapping[str, Any]) -> dict[str, Any]:
        if why == "storage":
            return {"error": error_to_json(OSError(28, "No space left on device"))}
        if why == "crash":
            raise ConverterCrash("the capture process died")
        return _refuses(job)

    _build(options, monkeypatch, answer, blame.Blame if why == "blame" else driver.Build)
    assert (folder / "model.onnx").exists()
    assert json.loads((folder / "manifest.json").read_text())["status"] == "ok"


@pytest.mark.parametrize(("factory", "stays"), [("make", False), ("mak", True)])
def test_a_misspelt_factory_leaves_the_other_ones_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: str, stays: bool
) -> None:
    (tmp_path / "net.py").write_text("")
    options = _options(tmp_path, "--module", f"{tmp_path}/net.py:{factory}")
    _keep(options.out / "net" / "program", _record(source={"kind": "module", "factory": "make"}))
    folder = _artifact(options.out, _record())
    _build(options, monkeypatch, _refuses)
    assert (folder / "model.onnx").exists() == stays


@pytest.mark.parametrize(("built_from", "stays"), [("b" * 64, False), ("a" * 64, True)])
def test_a_row_that_is_refused_replaces_only_what_another_program_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built_from: str, stays: bool
) -> None:
    options = _options(tmp_path, "--program", str(_program(tmp_path)), "--precisions", "fp32")
    folder = _artifact(options.out, _record(sha256=built_from))
    monkeypatch.setattr(driver, "captured", lambda out, source: _record(quantized=True))
    run, rows = _build(options, monkeypatch, _refuses)
    assert (run.exit_code, rows[0]["status"]) == (2, "failed:input")
    assert (folder / "model.onnx").exists() == stays


def test_a_folder_that_was_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = _options(tmp_path, "--program", str(_program(tmp_path)))
    (options.out / "logs").mkdir(parents=True)
    (options.out / "logs" / "mine.txt").write_text("mine")
    _build(options, monkeypatch, _refuses)
    assert (options.out / "logs" / "mine.txt").read_text() == "mine"


# ---- how it ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [*EXIT_CODES, "never-heard-of"])
def test_a_row_that_failed_never_ends_with_0(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"status": "failed:lower", "error": {"code": code}}
    assert manifest.exit_code([row]) == EXIT_CODES.get(code, 1) != 0
    monkeypatch.setattr(manifest, "_SEVERITY", (4, 1))  # a kind of failure that was added, and not ranked
    assert manifest.exit_code([row]) != 0
    assert manifest.exit_code([{"status": "failed:lower", "error": None}]) == 1
    assert manifest.exit_code([{"status": s, "error": None} for s in ("ok", "unavailable: no", "would-build")]) == 0


def test_one_rows_trouble_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = _options(tmp_path, "--program", str(_program(tmp_path)), "--precisions", "fp32,fp16,int8-weight")
    monkeypatch.setattr(driver, "captured", lambda out, source: _record())

    def answer(job: Mapping[str, Any]) -> dict[str, Any]:
        if job["precision"] == "fp32":
            raise OSError(28, "No space left on device")
        if job["precision"] == "fp16":
            raise ValueError("ours")
        value = manifest.begin(_record(), job) | {"status": "ok", "error": None}
        manifest.write(Path(job["directory"]), value)
        return {"result": value}

    run, rows = _build(options, monkeypatch, answer)
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

    options = _options(tmp_path, "--program", str(_program(tmp_path)), "--precisions", "fp32,fp16")
    folder = _artifact(options.out, _record())
    if is_captured:
        monkeypatch.setattr(driver, "captured", lambda out, source: _record())
    monkeypatch.setattr(Workers, "start", full)
    run = driver.Build(options)
    stage = "lower" if is_captured else "capture"
    assert [(r["status"], r["error"]["code"]) for r in run.run()] == [(f"failed:{stage}", "storage")] * 2
    assert run.exit_code == 7
    assert (folder / "model.onnx").exists()


_LEAVES = """
import sys
from build.protocol import serve
serve(lambda job, emit: sys.exit(0) if job["label"] == "leaves" else {"label": job["label"]})
"""


def test_a_job_that_leaves_the_process_costs_one_job(tmp_path: Path) -> None:
    found = Worker([sys.executable, "-c", _LEAVES], log=tmp_path / "log", env={"PYTHONPATH": str(ROOT)}, name="toy")
    try:
        answers = [found.submit({"label": label}, lambda stage: None) for label in ("a", "leaves", "b")]
    finally:
        found.close()
    assert answers[0] == {"result": {"label": "a"}}
    assert "error" in answers[1]
    assert answers[2] == {"result": {"label": "b"}}


def test_a_log_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    for command, log in (([sys.executable], tmp_path / "logs" / "x.log"), (["/nowhere"], tmp_path / "log")):
        with pytest.raises(StorageError, match="cannot start the toy process"):
            Worker(command, log=log, env={}, name="toy").start()
    assert not before or len(os.listdir("/proc/self/fd")) == before


def test_a_manifest_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write a manifest"):
        manifest.write(tmp_path / "nowhere", {})


# ---- --json ----------------------------------------------------------------------------------------------------------


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


# ---- what may not be read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--program", "--data", "--calibration"])
def test_a_file_that_may_not_be_read_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    program, other = _program(tmp_path), tmp_path / "other.safetensors"
    other.write_bytes(b"")
    refused = program if option == "--program" else other

    def sha256(path: Path) -> str:
        if path == refused:
            raise PermissionError(13, "Permission denied")
        return "0" * 64

    monkeypatch.setattr("build.sources.sha256_file", sha256)
    more = [] if option == "--program" else [option, str(other), "--precisions", "int8-static"]
    with pytest.raises(InputError, match=f"'{refused}': cannot be read: Permission denied"):
        sources(_options(tmp_path, "--program", str(program), *more), {})


def test_a_circle_of_links_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for option, session in (("--program", "build"), ("--out", "build"), ("--results", "check")):
        with pytest.raises(InputError, match=f"{option} .*: "):
            parse(session, (_TARGET,), [option, str(tmp_path / "a" / "x.pt2")])


def test_names_below_out_are_not_those_of_sessions(tmp_path: Path) -> None:
    for name in ("report", "Bench", "release", "logs"):
        (tmp_path / f"{name}.pt2").write_bytes(b"")
        assert sources(_options(tmp_path, "--program", f"{tmp_path}/{name}.pt2"), {})[0].name == f"{name}_"
    (tmp_path / "m.py").write_text("")
    asked = [w for f in ("a" * 200, "b" * 255) for w in ("--module", f"{tmp_path}/m.py:{f}")]
    with pytest.raises(InputError, match="too long a name for a folder"):
        sources(_options(tmp_path, *asked), {})


def test_an_unreadable_artifact_is_not_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _artifact(tmp_path, _record())
    value = manifest.read(folder)
    assert value is not None
    assert manifest.intact(folder, value)

    def sha256(path: Path) -> str:
        raise FileNotFoundError(2, "another build replaced it just now")

    monkeypatch.setattr(manifest, "sha256_file", sha256)
    assert not manifest.intact(folder, value)
