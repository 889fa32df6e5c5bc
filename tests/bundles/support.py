"""Bundles for tests: small ones made without a converter, and ways to spoil one."""

from __future__ import annotations

import hashlib
import json
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from build.bundle import archive, selftest
from build.bundle import contract as contracts
from build.bundle.__main__ import session
from build.bundle.make import write_bundle
from build.bundle.manifest import text

SHA = "0" * 64
NAME = "toy-web"
Spoil = Callable[[dict[str, bytes]], None]
PLATFORMS = {
    "android": ("executorch", "litert"),
    "linux-arm64": ("executorch", "litert"),
    "apple": ("coreml",),
    "pc": ("openvino",),
    "web": ("ort_web",),
}


def contract(**changes: Any) -> dict[str, Any]:
    """The contract of a model with one dynamic input and three classes."""
    batch = {"symbol": "s0", "lo": 1, "hi": 8, "scale": 1, "offset": 0}
    value: dict[str, Any] = {
        "schema_version": 1,
        "model": "toy",
        "inputs": [{"name": "x", "dtype": "float32", "shape": [dict(batch), 2], "layout": None}],
        "outputs": [{"name": "y", "dtype": "float32", "shape": [dict(batch), 3]}],
        "symbols": {"s0": "batch"},
        "decision_output": "y",
        "labels": ["a", "b", "c"],
        "preprocessing": {"steps": ["scale"], "layout": "BC", "color": None, "mean": [], "std": [], "tokenizer": None},
        "tokenizer": [],
        "constants": {},
        "artifacts": [
            {
                "target": "ort_web",
                "precision": "fp32",
                "main": "models/ort_web/fp32/model.onnx",
                "entry_points": [{"name": "forward", "sizes": {}}],
                "narrowed": [],
                "notes": {},
            }
        ],
    }
    return {**value, **changes}


def toy_bundle(
    bundles: Path,
    version: str,
    *,
    weights: bytes = b"weights",
    decided: Sequence[int] = (0, 1, 2),
    p95_ms: float | None = None,
    sign: Path | None = None,
    **changes: Any,
) -> Path:
    """A whole bundle of a model that no runtime would take, below ``bundles``; returns its folder.

    Args:
        decided: the artifact's class on each of three calls.
        changes: of the contract.
    """
    parts = bundles / f"parts-{version}-{len(list(bundles.parent.rglob('*')))}"
    value = contract(**changes)
    files = {"models/ort_web/fp32/model.onnx": weights, "README.md": b"# toy\n"}
    files["selftest/000/in0.bin"] = struct.pack("<2f", 1, 2)
    files["selftest/000/out0.bin"] = struct.pack("<3f", 1, 0, 0)
    rows = [("inputs", "in0", [1, 2]), ("outputs", "out0", [1, 3])]
    call: dict[str, Any] = {"id": "evaluation/0", "sizes": {"batch": 1}, "label": 0, "answer": "a"}
    for side, file, shape in rows:
        name = value[side][0]["name"]
        tensor = {"name": name, "dtype": "float32", "shape": shape, "file": f"selftest/000/{file}.bin"}
        call[side] = [tensor]
    limit = {"atol": 1e-5, "rtol": 0.0, "scale": 0.0}
    test = {"schema_version": 1, "bytes": "little-endian", "rule": "close", "calls": [call]}
    test["tolerances"] = {"ort_web/fp32": {"y": limit}}
    decisions = {str(i): [c] for i, c in enumerate(decided)}
    files[contracts.FILE] = text(value).encode()
    files["labels.txt"] = "".join(f"{x}\n" for x in value["labels"]).encode()
    files[selftest.FILE] = text(test).encode()
    calls = {k: f"hash{k}" for k in decisions}
    made = {"schema_version": 1, "inputs": calls, "reference": decisions, "artifacts": {"ort_web/fp32": decisions}}
    files[selftest.DECISIONS] = text(made).encode()
    paths = {}
    for name, data in files.items():
        paths[name] = parts / name
        paths[name].parent.mkdir(parents=True, exist_ok=True)
        paths[name].write_bytes(data)
    place = bundles / f"{NAME}-{version}"
    place.mkdir(parents=True)
    write_bundle(_manifest(value, version, paths, p95_ms), paths, place, parts=parts, sign=sign)
    return place


def _manifest(
    value: Mapping[str, Any], version: str, paths: Mapping[str, Path], p95_ms: float | None
) -> dict[str, Any]:
    metric = {"name": "top1_accuracy", "value": 0.9, "reference": 0.9}
    device = {"kind": "browser", "machine": "phone", "model": "Phone 1"}
    measured = {
        "device": device,
        "runtime": None,
        "threads": 1,
        "batch": None,
        "variant": "",
        "started": "",
        "finished": "",
        "repeats": 3,
        "samples": 150,
        "p50_ms": 1.0,
        "p95_ms": p95_ms,
        "peak_mb": 10.0,
        "emulated": False,
        "doubts": [],
        "files": [SHA],
    }
    main = paths["models/ort_web/fp32/model.onnx"]
    artifact = {
        "target": "ort_web",
        "precision": "fp32",
        "main": "models/ort_web/fp32/model.onnx",
        "files": ["models/ort_web/fp32/model.onnx"],
        "bytes": main.stat().st_size,
        "narrowed": [],
        "warnings": [],
        "entry_points": value["artifacts"][0]["entry_points"],
        "judged_by": None,
        "toolchain": {"onnxruntime": "1"},
        "calibration": None,
        "kept_float": [],
        "status": "ok",
        "verification": None,
        "accuracy": None,
        "runtime": dict.fromkeys(("library", "minimum_version", "deployment_target", "verified_in")) | {"name": "ORT"},
        "metric": metric,
        "coverage": None,
        "measurements": [measured] if p95_ms else [],
        "budgets": [],
    }
    return {
        "schema_version": 1,
        "name": NAME,
        "version": version,
        "platform": "web",
        "model": "toy",
        "program": SHA,
        "source": {"revision": None, "modified": None},
        "recipe": {"kind": "model", "harness": False},
        "contract": {k: value[k] for k in ("inputs", "outputs", "symbols", "decision_output")},
        "artifacts": [artifact],
        "exceptions": [],
        "licence": "MIT",
        "warnings": [],
        "files": [
            {"path": n, "bytes": p.stat().st_size, "sha256": hashlib.sha256(p.read_bytes()).hexdigest()}
            for n, p in sorted(paths.items())
        ],
    }


def archive_of(folder: Path) -> Path:
    """The archive of a bundle's folder."""
    (found,) = folder.glob("*.zip")
    return found


def repack(file: Path, change: Callable[[dict[str, bytes]], None], work: Path) -> None:
    """Write an archive anew with other content, as someone who knows the format would: every checksum of it fits."""
    with zipfile.ZipFile(file) as old:
        content = {i.filename.split("/", 1)[1]: old.read(i) for i in old.infolist()}
        top = old.infolist()[0].filename.split("/")[0]
    change(content)
    paths = {}
    for name, data in content.items():
        paths[name] = work / name
        paths[name].parent.mkdir(parents=True, exist_ok=True)
        paths[name].write_bytes(data)
    file.unlink()
    archive.write(paths, file, top=top)


def relist(content: dict[str, bytes]) -> None:
    """Let the manifest list what the files are now: a forger's work, which only a signature shows."""
    value = json.loads(content["manifest.json"])
    for row in value["files"]:
        data = content[row["path"]]
        row |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    content["manifest.json"] = text(value).encode()


def flip(data: bytes) -> bytes:
    """The same bytes but for one bit in the middle."""
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    return bytes(changed)


def refused(place: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """What ``verify-bundle`` says against a bundle, in its one line."""
    capsys.readouterr()
    assert session(["verify-bundle", str(archive_of(place)), *options]) in (2, 4)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    return lines[0]


def key_pair(folder: Path) -> tuple[Path, Path]:
    """A fresh ed25519 pair: private and public PEM."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    folder.mkdir(parents=True, exist_ok=True)
    key = Ed25519PrivateKey.generate()
    private, public = folder / "key.pem", folder / "key.pub"
    private.write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo))
    return private, public


def folder_of(out: Path, platform: str, version: str = "0.1.0") -> Path:
    return out / "bundles" / f"digits_cnn-{platform}-{version}"


def bundle(out: Path, platform: str, *arguments: str) -> int:
    return session([f"bundle-{platform}", "--out", str(out), *arguments])


def artifact(out: Path, target: str) -> Path:
    return out / "digits_cnn" / target / "fp32"


def change_manifest(out: Path, target: str, **changes: Any) -> None:
    path = artifact(out, target) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
