"""An output folder with the digits model for both engines, from files: the web tests need no converter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from build import manifest
from build.record import RECORD, ProgramRecord
from device_bench import artifacts
from device_bench.artifacts import Artifact
from device_bench.job import Data, Settings, make_data
from tests.device import built

DATA = Path(__file__).with_name("data")
MODEL = built.MODEL
#: (target, precision) -> file
FILES: Mapping[tuple[str, str], Path] = {
    ("ort_web", "fp32"): DATA / "ort_web-fp32.onnx",
    ("ort_web", "int8-static"): DATA / "ort_web-int8-static.onnx",
    ("ort_web", "int8-dynamic"): DATA / "ort_web-int8-dynamic.onnx",
    ("litert", "fp32"): built.DATA / "model.tflite",
    ("litert", "int8-static"): DATA / "litert-int8-static.tflite",
    ("litert", "int8-dynamic"): DATA / "litert-int8-dynamic.tflite",
}
_MAIN = {"ort_web": ("model.onnx", "forward"), "litert": ("model.tflite", "serving_default")}
PREPROCESSING = {
    "steps": ["8x8 pixels, ink 16, paper 0 (count of dark pixels per 4x4 block of a 32x32 bitmap)", "divide by 16"],
    "layout": "NCHW",
    "color": "gray",
    "mean": [0.0],
    "std": [16.0],
    "tokenizer": None,
}
#: for a page: it is hidden when it comes to the stage STAGE, for a moment or until ``showAgain()``.
_HIDE = """() => {
  let hidden = STAGE === null;
  let over = hidden;
  const say = (value) => { hidden = value; document.dispatchEvent(new Event('visibilitychange')); };
  Object.defineProperty(document, 'visibilityState', { get: () => (hidden ? 'hidden' : 'visible') });
  self.showAgain = () => say(false);
  new MutationObserver(() => {
    if (over || document.querySelector('#stages li[data-state=now]')?.textContent !== STAGE) return;
    over = true;
    say(true);
    say(false);
  }).observe(document, { subtree: true, attributes: true, childList: true });
}"""
#: short: these tests look at what is recorded, not at how fast it was.
QUICK = Settings(warmup_runs=1, warmup_seconds=0, min_runs=5, min_seconds=0.05, max_seconds=20)


def hiding(stage: str | None) -> str:
    """A script that hides its page for a moment when it comes to a stage; None: from its start, until showAgain()."""
    return _HIDE.replace("STAGE", json.dumps(stage))


def require_browser() -> None:
    """Skip, with the reason, where Chromium or npm is missing."""
    from build.errors import MissingToolError
    from device_bench.web.chromium import find_program
    from device_bench.web.runtime import ensure

    try:
        find_program()
        ensure()
    except MissingToolError as error:
        pytest.skip(f"{error}")


def make_out(out: Path, **changes: Any) -> Path:
    """Lay out ``out/digits_cnn``. ``changes``: of the program's record."""
    program = out / MODEL / "program"
    program.mkdir(parents=True)
    record = replace(built.make_record(program), **{"preprocessing": PREPROCESSING, **changes})
    (program / RECORD).write_text(json.dumps(record.to_json()))
    for target, precision in FILES:
        put(out, record, target, precision)
    return out


def put(out: Path, record: ProgramRecord, target: str, precision: str, *, content: bytes | None = None) -> Path:
    """One artifact with its manifest; ``content``: bytes in place of the model's."""
    name, entry = _MAIN[target]
    folder = out / MODEL / target / precision
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(FILES[target, precision], folder / name)
    if content is not None:
        (folder / name).write_bytes(content)
    job = {"target": target, "precision": precision, "key": "test", "toolchain": {target: "test"}, "keep_float": []}
    value = manifest.begin(record, job)
    value |= {"main": name, "entry_points": [{"name": entry, "sizes": {}}], "status": "ok", "error": None}
    value["files"] = manifest.describe_files(folder)
    manifest.write(folder, value)
    return folder / name


def put_with_weights_beside(out: Path, record: ProgramRecord) -> Path:
    """The fp32 ONNX artifact with its weights in a file of their own; returns that file."""
    import onnx

    main = put(out, record, "ort_web", "fp32")
    model = onnx.load(main)
    weights = main.with_name("model.onnx.data")
    onnx.save_model(model, main, save_as_external_data=True, location=weights.name, size_threshold=1024)
    value = manifest.read(main.parent)
    assert value is not None
    (main.parent / manifest.MANIFEST).unlink()
    value["files"] = manifest.describe_files(main.parent)
    manifest.write(main.parent, value)
    return weights


def artifact(out: Path, target: str = "ort_web", precision: str = "fp32") -> Artifact:
    """One artifact of an output folder."""
    wanted = {"models": [MODEL], "targets": [target], "precisions": [precision]}
    (found,) = artifacts.find(out, **wanted, build_session="build")
    return found


def data_of(out: Path, found: Artifact, batch: int | None = None) -> Data:
    """Its tensors."""
    return make_data(out, found.record, found.program_folder, batch)
