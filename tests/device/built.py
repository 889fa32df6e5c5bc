"""An output folder as a build leaves it, from the files in ``data/``: the lab's tests need no converter."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from build import manifest
from build.cache import sha256_file
from build.record import PROGRAM, RECORD, REFERENCE, CallRecord, ProgramRecord
from targets.contract import DynamicDim, Signature, TensorSpec

DATA = Path(__file__).with_name("data")
MODEL = "digits_cnn"
FILES = {"executorch": ("model.pte", "forward"), "litert": ("model.tflite", "serving_default")}
#: of the targets whose harness is a process in Python: main file or folder, and what lies beside it.
PYTHON_FILES = {"openvino": ("model.xml", "model.bin"), "coreml": ("model.mlpackage",)}
CALLS = 24
_BATCH = DynamicDim(symbol="s40", lo=1, hi=64)
SIGNATURE = Signature(
    inputs=(TensorSpec(name="image", dtype="float32", shape=(_BATCH, 1, 8, 8)),),
    outputs=(TensorSpec(name="logits", dtype="float32", shape=(_BATCH, 10)),),
)


def make_out(
    out: Path,
    *,
    precisions: Sequence[str] = ("fp32",),
    targets: Sequence[str] = tuple(FILES),
    budgets: Sequence[dict[str, Any]] = (),
) -> Path:
    """Lay out ``out/digits_cnn``; every precision is the same fp32 file under another name."""
    program = out / MODEL / "program"
    program.mkdir(parents=True)
    record = make_record(program, budgets)
    (program / RECORD).write_text(json.dumps(record.to_json()))
    for target in targets:
        for precision in precisions:
            put_artifact(out, record, target, precision)
    return out


def make_record(program: Path, budgets: Sequence[dict[str, Any]] = ()) -> ProgramRecord:
    """Copy the reference data and describe it."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(DATA / REFERENCE)
    labels = {name.removesuffix("/label"): int(value) for name, value in tensors.items() if name.endswith("/label")}
    save_file({n: v for n, v in tensors.items() if not n.endswith("/label")}, program / REFERENCE)
    calls = sorted(labels, key=lambda call: int(call.rsplit("/", 1)[1]))
    return ProgramRecord(
        name=MODEL,
        key="test",
        sha256="0" * 64,
        signature=SIGNATURE,
        calls=tuple(CallRecord(id=c, kind="evaluation", sizes={"s40": 1}, label=labels[c]) for c in calls),
        files={PROGRAM: "0" * 64, REFERENCE: sha256_file(program / REFERENCE)},
        source={"kind": "model"},
        symbols={"s40": "batch"},
        decision_output="logits",
        metric="top1_accuracy",
        metric_output="logits",
        labels=tuple("0123456789"),
        budgets=tuple(budgets),
    )


def put_artifact(out: Path, record: ProgramRecord, target: str, precision: str, *, extra: bytes = b"") -> Path:
    """One artifact with its manifest; ``extra`` bytes at its end make it another artifact."""
    file, entry = FILES[target] if target in FILES else (PYTHON_FILES[target][0], "forward")
    folder = out / MODEL / target / precision
    folder.mkdir(parents=True, exist_ok=True)
    for name in (file, *PYTHON_FILES.get(target, ())[1:]):
        if (DATA / name).is_dir():
            shutil.copytree(DATA / name, folder / name, dirs_exist_ok=True)
        else:
            shutil.copyfile(DATA / name, folder / name)
    if extra:
        with (folder / file).open("ab") as stream:
            stream.write(extra)
    job = {"target": target, "precision": precision, "key": "test", "toolchain": {target: "test"}, "keep_float": []}
    value = manifest.begin(record, job)
    value |= {"main": file, "entry_points": [{"name": entry, "sizes": {}}], "status": "ok", "error": None}
    value["files"] = manifest.describe_files(folder)
    manifest.write(folder, value)
    return folder / file


def main(out: Path) -> None:
    """Make ``data/`` again from a build."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    from build.record import read_record

    record = read_record(out / MODEL / "program")
    tensors = load_file(out / MODEL / "program" / REFERENCE)
    kept = {}
    for call in [c for c in record.calls if c.kind == "evaluation"][:CALLS]:
        for name in (f"{call.id}/in/image", f"{call.id}/out/logits"):
            kept[name] = tensors[name]
        kept[f"{call.id}/label"] = np.array(call.label, dtype=np.int64)
    save_file(kept, DATA / REFERENCE)
    for target, (file, _) in FILES.items():
        shutil.copyfile(out / MODEL / target / "fp32" / file, DATA / file)
    for target, names in PYTHON_FILES.items():
        for name in names:
            source = out / MODEL / target / "fp32" / name
            if source.is_dir():
                shutil.rmtree(DATA / name, ignore_errors=True)
                shutil.copytree(source, DATA / name)
            else:
                shutil.copyfile(source, DATA / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
