"""A made-up full run: 3 models, 5 targets, all precisions, on this machine, in a browser, on an emulated device.

Nothing here was measured: figures are drawn from seeded distributions, so that every run of the tests sees the same.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from targets.precisions import PRECISIONS
from targets.registry import all_targets
from tests.results.made_up import PLACES, failed_measurement, heating, measurement, samples

RUN = "run-20260301-090000-abcdef"
BUDGETS = """
[[budget]]
platform = "*"
max_bytes = 20_000_000
max_metric_drop = 0.05
p95_ms = 30.0
peak_mb = 400.0
"""


@dataclass(frozen=True)
class Model:
    """A made-up model: size in fp32, latency of one thread in ms, metric, and the drop per bit that is saved."""

    name: str
    bytes: int
    ms: float
    metric: str
    value: float
    decisions: int
    nodes: int


MODELS = (
    Model("digits_cnn", 66_000, 0.021, "top1_accuracy", 0.986111, 360, 9),
    Model("efficientnet_lite0", 18_600_000, 14.0, "top1_agreement", 1.0, 40, 110),
    Model("minilm", 90_300_000, 22.0, "cosine_agreement", 1.0, 0, 204),
)
_SPEED = {"executorch": 1.0, "litert": 0.92, "openvino": 0.7, "ort_web": 1.9}
_FAST = {"fp32": 1.0, "fp16": 0.9, "int8-weight": 1.05, "int8-dynamic": 0.6, "int8-static": 0.42, "int4-weight": 0.8}
_DROP = {"fp32": 0.0, "fp16": 0.0, "int8-weight": 0.01, "int8-dynamic": 0.014, "int8-static": 0.02, "int4-weight": 0.06}


def sha(*words: Any) -> str:
    """A hash that stands for some bytes."""
    return hashlib.sha256(repr(words).encode()).hexdigest()


def artifact(*name: str) -> bytes:
    """The file of an artifact."""
    return repr(("file", *name)).encode()


def write_build(out: Path, value: Mapping[str, Any]) -> Path:
    """An artifact's folder as a build leaves it: manifest and files."""
    name = (value["model"], value["target"], value["precision"])
    folder = out.joinpath(*name)
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(value))
    for file in value["files"]:
        (folder / file["path"]).write_bytes(artifact(*name))
    return folder


def manifest(model: Model, target: str, precision: str, **changes: Any) -> dict[str, Any]:
    """A manifest that keeps to its schema, of an artifact that was built and verified. Its one file is short, whatever
    size the manifest tells: nobody writes gigabytes to test a report."""
    content = artifact(model.name, target, precision)
    dice = random.Random(f"{model.name}/{target}/{precision}")
    bits = PRECISIONS[precision].weight_bits
    size = int(model.bytes * bits / 32 * dice.uniform(1.0, 1.12)) + 1500
    drop = _DROP[precision] * dice.uniform(0.3, 1.2) * (model.decisions > 0 or 0.4)
    value = max(0.0, round(model.value - drop, 6))
    changed = round(drop * model.decisions)
    fallback = {"aten.convolution.default": 3, "aten.linear.default": 1} if target == "executorch" and bits < 32 else {}
    kept = {
        "schema_version": 1,
        "model": model.name,
        "target": target,
        "precision": precision,
        "key": sha("key", model.name, target, precision),
        "program": sha("program", model.name),
        "toolchain": {p: f"{len(p)}.{i}.0" for i, p in enumerate(all_targets()[target].packages)},
        "judged_by": {"code": None, "reference": None},
        "calibration": None,
        "kept_float": [],
        "cost": None,
        "inputs": [],
        "outputs": [],
        "warnings": [],
        "licence": "unknown",
        "files": [{"path": "model.bin", "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}],
        "main": "model.bin",
        "entry_points": [],
        "bytes": size,
        "metric": {"name": model.metric, "value": value, "reference": model.value},
        "coverage": {
            "delegated": model.nodes + dice.randrange(20) - sum(fallback.values()),
            "fallback": fallback,
            "delegated_share": 0.9,
            "method": "nodes of the partitioned program",
        },
        "verification": {
            "runtime": f"{target} 1.0",
            "calls": 10,
            "sizes": [],
            "max_abs_diff": 1e-5,
            "outputs": {
                "logits": {"max_abs": 0, "max_rel": 0, "cosine": 1, "snr_db": 40.0, "nonfinite": 0, "call": "example"}
            },
            "decisions": model.decisions,
            "changed_decisions": changed,
            "near_ties": 0,
            "changed": [],
            "problems": [],
        },
        "status": "ok",
        "error": None,
        "seconds": 1.0,
        "peak_mb": 100.0,
    }
    return kept | changes


def failed(model: Model, target: str, precision: str, status: str, code: str, text: str) -> dict[str, Any]:
    """A manifest of an artifact that is not there."""
    error = {"code": code, "message": text, "op": "aten.erfinv.default", "source": "model.py:12 in forward: x.erfinv()"}
    error["remedy"] = "Keep the layer in floating point: --keep-float NODE."
    return manifest(
        model, target, precision, status=status, error=error, files=[], bytes=0, verification=None, metric=None
    ) | {"coverage": None}


def manifests() -> Iterator[dict[str, Any]]:
    """All of them: most are there, some failed."""
    for model in MODELS:
        for name, facts in all_targets().items():
            for precision in PRECISIONS:
                if facts.unavailable(precision) is not None:
                    continue
                if model.name == "efficientnet_lite0" and (name, precision) == ("coreml", "int4-weight"):
                    value = failed(
                        model, name, precision, "failed:metric", "verification-failed", "top1_agreement is 0.5750"
                    )
                elif model.name == "minilm" and name == "litert" and PRECISIONS[precision].activations == "static":
                    value = failed(model, name, precision, "failed:preflight", "unsupported", "no op for erfinv")
                else:
                    value = manifest(model, name, precision)
                if precision == "int4-weight" and value["status"] == "ok":
                    value["warnings"] = ["2 layers stay in floating point: their sizes are no multiple of 32"]
                yield {
                    k: v for k, v in value.items() if v is not None or k in ("error", "metric", "calibration", "cost")
                }


def measurements(built: Sequence[Mapping[str, Any]], *, count: int = 400) -> Iterator[dict[str, Any]]:
    """A full run over these manifests: three repeats of everything, a sweep, a long run, and some failures."""
    by_name = {m.name: m for m in MODELS}
    for place in PLACES:
        position = 0
        for value in built:
            if value["status"] != "ok" or value["target"] not in place.targets:
                continue
            model, precision = by_name[value["model"]], value["precision"]
            base = model.ms * _SPEED[value["target"]] * _FAST[precision] * place.slower
            for variant in place.variants:
                if variant == "webgpu" and PRECISIONS[precision].quantized:
                    continue
                ms = base * (0.55 if variant == "webgpu" and model.ms > 1 else 1.4 if variant == "webgpu" else 1)
                for repeat in (1, 2, 3):
                    position += 1
                    seed = f"{place.name}/{model.name}/{value['target']}/{precision}/{variant}/{repeat}"
                    shift = 1.3 if (precision, value["target"], repeat) == ("int8-weight", "litert", 3) else 1.0
                    yield measurement(
                        value,
                        place,
                        repeat=repeat,
                        variant=variant,
                        position=position,
                        samples_ns=samples(seed, ms * shift, count),
                    )
    digits = next(m for m in built if (m["model"], m["target"], m["precision"]) == ("digits_cnn", "litert", "fp32"))
    for threads in (1, 2, 4):
        for batch in (1, 4, 16, 64):
            ms = 0.02 * (1 + batch * 0.6) / (1 + 0.6 * (threads - 1) * min(batch / 16, 1))
            drawn = samples(f"sweep/{threads}/{batch}", ms, 200)
            yield measurement(digits, PLACES[0], threads=threads, batch=batch, samples_ns=drawn, position=500)
    net = next(m for m in built if (m["model"], m["target"], m["precision"]) == ("minilm", "executorch", "fp16"))
    lasting = measurement(net, PLACES[0], threads=4, samples_ns=heating(9.0, 120.0), position=600)
    yield lasting | {"settings": {**lasting["settings"], "min_seconds": 120.0, "max_seconds": 120.0}}
    broken = measurement(net, PLACES[0], threads=8, position=601)
    yield failed_measurement(broken, "the harness was ended by signal 9 (out of memory)")


def write(folder: Path, *, count: int = 400) -> tuple[Path, Path]:
    """Write it all as a build and a run leave it.

    Returns:
        The output folder and the results folder.
    """
    out, results = folder / "out", folder / "results"
    built = list(manifests())
    for value in built:
        write_build(out, value)
    record = {"schema_version": 1, "session": "bench-local", "started": "2026-03-01T09:00:00Z", "repeats": 3}
    record |= {"seed": 7, "settings": {}, "devices": [p.name for p in PLACES]}
    (results / RUN).mkdir(parents=True)
    (results / RUN / "run.json").write_text(json.dumps(record))
    for number, value in enumerate(measurements(built, count=count)):
        place = results / RUN / value["measurement"]["device"]
        place.mkdir(exist_ok=True)
        (place / f"{number:04}.json").write_text(json.dumps(value))
    return out, results
