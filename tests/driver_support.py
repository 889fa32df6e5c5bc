"""What the tests of a build's own part share: a stand-in for its workers, records, artifacts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from build import driver, manifest, record
from build.cache import put_folder
from build.errors import InputError
from build.options import Options, parse
from build.protocol import error_to_json
from build.record import ProgramRecord
from build.workers import Workers
from targets.contract import Signature

TARGET = "ort_web"


def record_of(**more: Any) -> ProgramRecord:
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


def keep(folder: Path, value: ProgramRecord) -> None:
    """As a capture does: a fresh folder in the old one's place."""
    fresh = folder.parent / "fresh"
    fresh.mkdir(parents=True)
    (fresh / record.RECORD).write_text(json.dumps(value.to_json()))
    put_folder(fresh, folder)
    shutil.rmtree(fresh, ignore_errors=True)  # what was there before


def artifact(out: Path, program: ProgramRecord, key: str = "0" * 64, precision: str = "fp32") -> Path:
    """An artifact that was built and is good."""
    folder = out / program.name / TARGET / precision
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_text("bytes")
    job = {"target": TARGET, "precision": precision, "key": key, "toolchain": {}}
    value = manifest.begin(program, job) | {"status": "ok", "error": None, "peak_mb": 1.0, "main": "model.onnx"}
    manifest.write(folder, value | {"files": manifest.describe_files(folder), "bytes": 5})
    return folder


@dataclass
class Stub:
    """Answers every job alike."""

    answer: Callable[[Mapping[str, Any]], dict[str, Any]]
    jobs: list[Mapping[str, Any]] = field(default_factory=list)

    def submit(self, job: Mapping[str, Any], on_stage: Callable[[str], None]) -> dict[str, Any]:
        self.jobs.append(job)
        return self.answer(job)

    def close(self) -> None: ...

    kill = close


def options_of(tmp_path: Path, *arguments: str) -> Options:
    return parse("build", (TARGET,), ["--out", str(tmp_path / "out"), *arguments])


def build_with(
    options: Options,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[Mapping[str, Any]], dict[str, Any]],
    kind: type[driver.Build] = driver.Build,
) -> tuple[driver.Build, list[dict[str, Any]]]:
    monkeypatch.setattr(Workers, "start", lambda *_: Stub(answer))
    monkeypatch.setattr(Workers, "prepare", lambda *_: None)
    run = kind(options)
    return run, run.run()


def refuses(job: Mapping[str, Any]) -> dict[str, Any]:
    return {"error": error_to_json(InputError("not a program"))}


def program_file(tmp_path: Path) -> Path:
    file = tmp_path / "net.pt2"
    file.write_bytes(b"not a program any more")
    return file
