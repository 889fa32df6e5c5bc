"""Runs an artifact's calls in a target's runtime: ``python -m device_bench.web.host_worker``. One job, one artifact."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build.protocol import Emit, serve
from targets import registry
from targets.checks import signature_from_json


def run(job: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    """Load, run every call, write ``CALL/out/OUTPUT``.

    Args:
        job: ``target``, ``folder`` and ``files`` (the main one first), ``signature``, ``data`` (safetensors),
            ``calls``, ``file`` (where to).
    """
    from safetensors import safe_open
    from safetensors.numpy import save_file

    signature = signature_from_json(json.dumps(job["signature"]))
    target = registry.load(registry.select([job["target"]])[0])
    emit("load")
    runner = target.load(Path(job["folder"]), job["files"], signature)
    emit("run")
    found: dict[str, Any] = {}
    with safe_open(job["data"], framework="numpy") as data:
        for call in job["calls"]:
            outputs = runner.run({s.name: data.get_tensor(f"{call}/in/{s.name}") for s in signature.inputs})
            found |= {f"{call}/out/{name}": value for name, value in outputs.items()}
    save_file(found, job["file"])
    return {"runtime": runner.runtime}


if __name__ == "__main__":
    serve(run)
