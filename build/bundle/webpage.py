"""The page of a web bundle: it checks, measures and shows the model that lies beside it, from any static host."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build.bundle import manifest as manifests
from build.bundle import selftest
from build.bundle.choose import Chosen
from build.errors import GateError
from device_bench.job import input_json
from device_bench.web import page
from device_bench.web.pictures import picture_json
from device_bench.web.runtime import runtime

#: the page and its runtime, models left out, in bytes: ONNX Runtime's WebAssembly alone has 14.2 MB (3.7 MB gzipped).
BUDGET = 15_000_000
FILE = "page.json"
#: from the page's folder to the bundle's.
_UP = "../../"
SCHEMA_VERSION = 1


def make(chosen: Chosen, contract: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Path below the page's folder -> file.

    Args:
        folder: for what is made on the way.

    Raises:
        MissingToolError: the runtime cannot be fetched.
        GateError: it is larger than its budget.
    """
    engine = runtime("ort_web", "wasm", 1)
    files: dict[str, Path] = dict(engine.files)
    made = {**page.bundled(), FILE: (json.dumps(_facts(chosen, contract, engine.to_json()), indent=1) + "\n").encode()}
    for name, content in made.items():
        if isinstance(content, Path):
            files[name] = content
            continue
        files[name] = folder / "page" / name
        files[name].parent.mkdir(parents=True, exist_ok=True)
        files[name].write_bytes(content)
    size = sum(path.stat().st_size for path in files.values())
    if size > BUDGET:
        raise GateError(
            f"the page and its runtime have {size} bytes, the budget is {BUDGET}",
            remedy="Leave --harness out, or ship a smaller runtime.",
        )
    return files


def _facts(chosen: Chosen, contract: Mapping[str, Any], engine: Mapping[str, Any]) -> dict[str, Any]:
    record = chosen.record
    items = [i for i in chosen.items if i.target.name == "ort_web"]
    return {
        "schema_version": SCHEMA_VERSION,
        "model": record.name,
        "runtime": dict(engine),
        "inputs": [input_json(s) for s in record.signature.inputs],
        "outputs": [s.name for s in record.signature.outputs],
        "artifacts": [
            {
                "label": f"{i.target.name}/{i.precision}",
                "precision": i.precision,
                "main": i.manifest["main"],
                "files": [
                    {
                        "name": f["path"],
                        "path": f"{_UP}{manifests.place_of(i)}/{f['path']}",
                        "bytes": f["bytes"],
                        "sha256": f["sha256"],
                    }
                    for f in i.manifest["files"]
                ],
            }
            for i in items
        ],
        "selftest": f"{_UP}{selftest.FILE}",
        "root": _UP,
        **picture_json(record),
        "decision_output": contract["decision_output"],
    }
